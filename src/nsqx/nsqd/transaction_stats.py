"""The numbers of transactions in /stats and /metrics."""

from typing import Annotated, TypedDict


class TransactionStats(TypedDict):
    """The staged parts and the ledger of an nsqd."""

    staged_parts: Annotated[int, "Parts that wait for the commit of their batch, or for their removal."]
    staged_bytes: Annotated[int, "The size of their files."]
    queries: Annotated[int, "Queries whose last committed batch is known."]
    queries_forgotten: Annotated[int, "Queries forgotten since the start, by --ledger-age or because of their number."]
    committed: Annotated[int, "Batches committed since the start."]
    messages: Annotated[int, "Messages of these batches."]
    duplicates: Annotated[int, "Commits since the start of batches that were committed before."]
