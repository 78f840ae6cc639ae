"""The ledger: the last batch that each query has committed at this broker.

A query is a program that numbers its batches and repeats a batch whose end it does not know, as a streaming query of
Spark does. A batch is committed once: the entry and the messages of the batch are in the same frame of a commit file.

The batches of a query go to several brokers in turn. So an entry also says which brokers, in their order, and which of
them this one is. With another list of brokers, a repeated batch could go to a broker that does not know it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class LedgerEntry(NamedTuple):
    """The last batch of a query. ``nodes`` are the addresses of the brokers, and ``place`` is the index of this one."""

    batch: int
    nodes: tuple[str, ...]
    place: int
    time_ns: int


class LogLedger:
    """The last batch of each query that is not forgotten, in the order of their commits."""

    __slots__ = ("_by_query",)

    def __init__(self) -> None:
        self._by_query: dict[str, LedgerEntry] = {}

    def __len__(self) -> int:
        return len(self._by_query)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogLedger) and list(self.items()) == list(other.items())

    __hash__ = None  # type: ignore[assignment]

    def items(self) -> Iterator[tuple[str, LedgerEntry]]:
        """Yield queries and their entries, oldest first."""
        yield from self._by_query.items()

    def find(self, query: str) -> LedgerEntry | None:
        """Return the entry of a query, or None."""
        return self._by_query.get(query)

    def set(self, query: str, entry: LedgerEntry) -> None:
        """Replace the entry of a query."""
        self._by_query.pop(query, None)
        self._by_query[query] = entry

    def forget(self, queries: Iterable[str]) -> None:
        """Remove the entries of queries."""
        for query in queries:
            self._by_query.pop(query, None)

    def forgettable(self, max_count: int, before_ns: int) -> list[str]:
        """Return the queries that must be forgotten.

        These are the oldest ones above ``max_count``, and those whose last commit was earlier than ``before_ns``.
        """
        excess = len(self._by_query) - max_count
        queries: list[str] = []
        for query, entry in self._by_query.items():
            if len(queries) >= excess and entry.time_ns >= before_ns:
                break
            queries.append(query)
        return queries
