"""The figures of a pipeline's sinks, computed from Spark's progress reports."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

RUNNING, RETRYING, STOPPED, FAILED = "running", "retrying", "stopped", "failed"


@dataclass(slots=True)
class SinkFigures:
    """The figures of one sink since the start of the run."""

    sink: str
    state: str = RUNNING
    batch: int = -1
    rows_in: int = 0
    """Messages read from the sources."""
    rows_out: int = 0
    """Rows written."""
    batch_rows: int = 0
    batch_s: float = 0.0
    rows_per_s: float = 0.0
    lag: int | None = None
    """Messages received and not processed, plus the depth of the channels if known; None before the first report."""
    batches: int = 0
    """The number of batches that were written."""
    dead_letters: int = 0
    """Records that were rejected and are in the dead letters."""
    late_rows: int = 0
    """Rows that were dropped because they were later than the watermark allows."""
    failures: int = 0
    """How often the query has failed."""
    written_s: float = 0.0
    """The time of the last batch; 0 before the first one."""
    error: str = ""
    starts: Mapping[str, int] = field(default_factory=dict)
    """Where a new query began, as ``positions_of`` returns it; Spark does not report it."""
    _ends: dict[int, dict[str, int]] = field(default_factory=dict)

    def add(self, report: Mapping[str, Any]) -> None:
        """Add a progress report of Spark."""
        rows, lag = 0, 0
        is_lag_known = False
        for place, source in enumerate(report.get("sources") or []):
            end = positions_of(source.get("endOffset"))
            if not end:
                continue
            # A report may have been missed, so the batch starts at the end of the last report that was seen.
            start = self._ends.get(place) or positions_of(source.get("startOffset"))
            rows += sum(max(0, last - start.get(key, self.starts.get(key, 0))) for key, last in end.items())
            self._ends[place] = end
            latest = positions_of(source.get("latestOffset"))
            lag += sum(max(0, latest.get(key, last) - last) for key, last in end.items())
            lag += decode_offset(source.get("latestOffset")).get("depth") or 0
            is_lag_known = True
        if is_lag_known:
            self.lag = lag
        for operator in report.get("stateOperators") or []:
            self.late_rows += operator.get("numRowsDroppedByWatermark") or 0
        duration_s = report.get("batchDuration", 0) / 1000
        # A trigger without new rows sends a report too, with the number of the next batch.
        if "addBatch" in (report.get("durationMs") or {}):
            self.batch = report["batchId"]
            self.batches += 1
            self.written_s = time.time()
            self.rows_in += rows
            self.batch_rows = rows
            self.batch_s = duration_s
            self.rows_per_s = rows / duration_s if duration_s else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the figures for status.json."""
        return {
            "state": self.state,
            "batch": self.batch,
            "batches": self.batches,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "batch_rows": self.batch_rows,
            "batch_s": round(self.batch_s, 3),
            "rows_per_s": round(self.rows_per_s),
            "lag": self.lag,
            "dead_letters": self.dead_letters,
            "late_rows": self.late_rows,
            "failures": self.failures,
            "error": self.error,
        }


def positions_of(offset: Any) -> dict[str, int]:
    """Return the positions in an offset of the data source: by log, or by segment directory; empty for others."""
    found = decode_offset(offset)
    if "rows" in found:
        return {str(found.get("segments", "")): found["rows"]}
    logs = ((topic, value) for topic, value in found.items() if isinstance(value, dict))
    positions = {f"{topic}/{log}": next_ for topic, value in logs for log, next_ in value.items()}
    # The rows of an archive that were read before the logs.
    return positions | ({"#archive": found["#archive"]} if "#archive" in found else {})


def decode_offset(value: Any) -> dict[str, Any]:
    """Return an offset as a dict; Spark reports it as text or as JSON."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}
