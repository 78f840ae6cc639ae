"""The descriptions of the routes for transactions. Part of nsqd's OpenAPI document."""

from typing import Annotated, Literal

from nsqx.net.openapi import BINARY, JSON, NAME, Content, Parameter, RouteDoc
from nsqx.nsqd.transaction_api import CommitAnswer, CommitBody, LedgersAnswer, StageAnswer

_QUERY_NAME = "1 to 64 of a-z A-Z 0-9 . _ -"

TRANSACTION_ROUTES = {
    "POST /log/stage": RouteDoc(
        "stagePart",
        "transactions",
        "Store a part of a batch until the batch is committed",
        "The answer is sent when the part is durable. No consumer sees its messages before the commit. A part that is "
        "staged again with the same attempt is replaced. Parts are removed with the next commit of the query, or after "
        "24 hours.",
        query=(
            Parameter("query", f"The query that the batch belongs to: {_QUERY_NAME}.", required=True),
            Parameter("batch", "The number of the batch.", Annotated[int, {"minimum": 0}], required=True),
            Parameter("part", f"The part: {_QUERY_NAME}.", required=True),
            Parameter("attempt", f"The attempt of the task that writes the part: {_QUERY_NAME}.", required=True),
            Parameter("topic", "The topic of all messages. Without it, the body is a list of groups.", NAME),
            Parameter("binary", "With `topic`: the body is that of an MPUB.", Literal["true", "false"]),
            Parameter("defer", "With `topic`: the delay from the commit on, in milliseconds.", int),
        ),
        body=Content(
            "With `topic`, one message in each line, or an MPUB body. Without it, groups: u8 size of the topic, topic, "
            "i64 delay in milliseconds, u32 size of an MPUB body, MPUB body; numbers are big-endian.",
            {BINARY: Annotated[str, {"format": "binary"}]},
        ),
        response=Content("The part is durable, or its batch is committed already.", {JSON: StageAnswer}),
        errors="MISSING_ARG_QUERY, MISSING_ARG_BATCH, MISSING_ARG_PART, MISSING_ARG_ATTEMPT, INVALID_QUERY, "
        "INVALID_BATCH, INVALID_PART, INVALID_ATTEMPT, INVALID_TOPIC, INVALID_DEFER, NOT_A_LOG, MSG_TOO_BIG, BAD_BODY, "
        "BAD_MESSAGE, EXITING",
    ),
    "POST /log/commit": RouteDoc(
        "commitBatch",
        "transactions",
        "Store the messages of a batch, once",
        "The messages of all named parts and the entry of the batch in the ledger are stored together: after a crash, "
        "all of it is there or nothing. If the ledger has the batch or a later one of the query, nothing is stored. "
        "The answer is sent when the batch is durable.",
        body=Content("The batch.", {JSON: CommitBody}),
        response=Content("The batch is durable.", {JSON: CommitAnswer}),
        errors="INVALID_BODY, INVALID_QUERY, INVALID_BATCH, INVALID_NODES, INVALID_PLACE, INVALID_PARTS, "
        "REPEATED_PART, INVALID_REPLACE, NOT_A_LOG, PART_NOT_FOUND, LEDGER_MISMATCH, PART_DAMAGED, "
        "TRANSACTION_TOO_LARGE, TOO_MANY_PARTS, TOO_MANY_DEFERRED, EXITING",
    ),
    "GET /log/ledger": RouteDoc(
        "ledger",
        "transactions",
        "Return the last committed batch of each query",
        query=(Parameter("query", "Only this query."),),
        response=Content("The ledger, oldest commits first.", {JSON: LedgersAnswer}),
        errors="INVALID_QUERY, QUERY_NOT_FOUND",
    ),
}

TRANSACTION_ERRORS: dict[int, dict[str, str]] = {
    400: {
        "MISSING_ARG_QUERY": "the request has no query",
        "MISSING_ARG_BATCH": "the request has no batch",
        "MISSING_ARG_PART": "the request has no part",
        "MISSING_ARG_ATTEMPT": "the request has no attempt",
        "INVALID_QUERY": f"the query is not {_QUERY_NAME}",
        "INVALID_BATCH": "the batch is not an integer from 0 to 2^62 - 1",
        "INVALID_PART": f"the part is not {_QUERY_NAME}",
        "INVALID_ATTEMPT": f"the attempt is not {_QUERY_NAME}",
        "INVALID_NODES": "`nodes` is not a list of 1 to 64 addresses",
        "INVALID_PLACE": "`place` is not an index of `nodes`",
        "INVALID_PARTS": "`parts` is not a list of objects with `part` and `attempt`",
        "REPEATED_PART": "`parts` has the same part twice",
        "INVALID_REPLACE": "`replace` is not true or false",
    },
    404: {
        "PART_NOT_FOUND": "`part` with `attempt` is not staged; nothing was stored",
        "QUERY_NOT_FOUND": "the ledger has no batch of the query",
    },
    409: {
        "LEDGER_MISMATCH": "the query has committed `batch` with other `nodes`; nothing was stored",
        "PART_DAMAGED": "the file of a staged part is damaged; nothing was stored",
    },
    413: {
        "TRANSACTION_TOO_LARGE": "the parts are larger than --max-transaction-bytes; nothing was stored",
        "TOO_MANY_PARTS": "`parts` is longer than 10,000",
        "TOO_MANY_DEFERRED": "the batch has more than 100,000 deferred messages; nothing was stored",
    },
}
