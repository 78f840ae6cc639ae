"""The figures of a pipeline's sinks, computed from Spark's progress reports."""

from __future__ import annotations

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
    error: str = ""
    _ends: dict[int, int] = field(default_factory=dict)

    def add(self, report: Mapping[str, Any]) -> None:
        """Add a progress report of Spark."""
        rows, lag = 0, 0
        is_lag_known = False
        for place, source in enumerate(report.get("sources") or []):
            end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
            if "rows" not in end:
                continue
            # A report may have been missed, so the batch starts at the end of the last report that was seen.
            start = self._ends.get(place, _offset(source.get("startOffset")).get("rows", 0))
            rows += max(0, end["rows"] - start)
            self._ends[place] = end["rows"]
            lag += max(0, latest.get("rows", end["rows"]) - end["rows"]) + (latest.get("depth") or 0)
            is_lag_known = True
        if is_lag_known:
            self.lag = lag
        duration_s = report.get("batchDuration", 0) / 1000
        # A trigger without new rows sends a report too, with the number of the next batch.
        if "addBatch" in (report.get("durationMs") or {}):
            self.batch = report["batchId"]
            self.rows_in += rows
            self.batch_rows = rows
            self.batch_s = duration_s
            self.rows_per_s = rows / duration_s if duration_s else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the figures for status.json."""
        return {
            "state": self.state,
            "batch": self.batch,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "batch_rows": self.batch_rows,
            "batch_s": round(self.batch_s, 3),
            "rows_per_s": round(self.rows_per_s),
            "lag": self.lag,
            "error": self.error,
        }


def _offset(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}
