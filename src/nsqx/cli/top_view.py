"""What nsqx top shows: the channels with their rates, sorted, as lines that fit into a terminal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from nsqx.cli.channels import state_of
from nsqx.cli.durations import age_text
from nsqx.cli.readings import ChannelSum, Key, Reading, flow_of
from nsqx.cluster.flow import Flow, drain_s, pending
from nsqx.tools.colours import BOLD, DIM, RED, YELLOW, paint
from nsqx.tools.table import table_text
from nsqx.tools.utility import counted

_COLUMNS = ("topic", "channel", "state", "depth", "in/s", "out/s", "drain", "in flight", "deferred", "clients")
_OPTIONAL = ("deferred", "in flight", "clients", "state")
KEYS = {"d": "depth", "i": "in", "o": "out", "n": "name", "c": "clients"}
SORTS = tuple(KEYS.values())
_HELP = "q quit   sort by: d depth  i in/s  o out/s  c clients  n name   r reverse"


@dataclass(slots=True)
class TopRow:
    """A channel, or a topic without channels, with its rates."""

    sums: ChannelSum
    flow: Flow | None

    @property
    def drain_s(self) -> float | None:
        """The seconds until its backlog is gone; infinite if it does not become shorter."""
        return drain_s(pending(self.sums.counts), self.flow)

    @property
    def document(self) -> dict[str, Any]:
        """The row for JSON; rates are null until they are known, and drain_s if the backlog grows."""
        drain = self.drain_s
        rates = {"in_per_s": None, "out_per_s": None} if self.flow is None else self.flow._asdict()
        return {**self.sums.document, **rates, "drain_s": None if drain is None or math.isinf(drain) else drain}


@dataclass(slots=True)
class TopView:
    """The state of the screen."""

    sort: str = "depth"
    is_reversed: bool = False
    is_ended: bool = False
    rows: list[TopRow] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    nsqds: int = 0
    topics: int = 0
    _before: Reading | None = None
    _sums_before: dict[Key, ChannelSum] = field(default_factory=dict)

    def note(self, reading: Reading) -> None:
        """Take a new reading."""
        sums = reading.sums()
        seconds = reading.at_s - self._before.at_s if self._before is not None else 0.0
        with_channels = {topic for topic, channel in sums if channel}
        self.rows = [
            TopRow(each, flow_of(self._sums_before, each, seconds))
            for each in sums.values()
            if each.channel or each.topic not in with_channels
        ]
        self.topics = len({topic for topic, _ in sums})
        self.nsqds = len(reading.found)
        self.problems = reading.problems
        self._before, self._sums_before = reading, sums

    def press(self, key: str) -> None:
        """Handle a key; unknown keys do nothing."""
        if key in ("q", "\x03", "\x1b"):
            self.is_ended = True
        elif key == "r":
            self.is_reversed = not self.is_reversed
        elif key in KEYS:
            self.sort, self.is_reversed = KEYS[key], False

    def sorted_rows(self) -> list[TopRow]:
        """Return the rows in the chosen order."""
        return sorted(self.rows, key=self._order, reverse=self.is_reversed)

    def _order(self, row: TopRow) -> tuple[object, ...]:
        flow = row.flow or Flow(0, 0)
        numbers = {
            "depth": row.sums.waiting,
            "in": flow.in_per_s,
            "out": flow.out_per_s,
            "clients": row.sums.counts["client_count"],
        }
        return (-numbers.get(self.sort, 0), row.sums.topic, row.sums.channel)

    def text(self, most_lines: int) -> str:
        """Return the screen with at most ``most_lines`` lines; 0 is no limit, for a pipe."""
        rows = self.sorted_rows()
        head = [paint(self._heading(), BOLD), *(paint(each, RED) for each in self.problems)]
        foot = [paint(_HELP, DIM)] if most_lines else []
        available = most_lines - len(head) - len(foot)
        count = len(rows)
        while True:
            table = table_text(_COLUMNS, [_cells(row) for row in rows[:count]], text_columns=3, optional=_OPTIONAL)
            lines = table.splitlines() if rows else ["no topics"]
            if count < len(rows):
                lines.append(paint(f"... {len(rows) - count} more", DIM))
            if not most_lines or len(lines) <= available or count <= 1:
                break
            count = max(1, min(count - 1, count * available // len(lines)))
        return "".join(f"{line}\n" for line in (*head, *lines, *foot))

    def _heading(self) -> str:
        flows = [row.flow for row in self.rows if row.flow is not None]
        counts = {"nsqd": self.nsqds, "topic": self.topics, "channel": sum(bool(row.sums.channel) for row in self.rows)}
        parts = [counted(number, noun) for noun, number in counts.items()]
        if flows:
            parts.append(f"out {sum(flow.out_per_s for flow in flows):,.0f}/s")
        parts.append(f"waiting {sum(row.sums.waiting for row in self.rows):,}")
        return "  ".join(parts)


def _cells(row: TopRow) -> list[str]:
    counts, flow, drain = row.sums.counts, row.flow, row.drain_s
    rates = ["-", "-"] if flow is None else [f"{flow.in_per_s:.0f}", f"{flow.out_per_s:.0f}"]
    if drain is None:
        drain_cell = "-"
    elif math.isinf(drain):
        drain_cell = paint("growing", RED) if flow is not None and flow.in_per_s > 0 else paint("stuck", YELLOW)
    else:
        drain_cell = age_text(drain)
    return [
        row.sums.topic,
        row.sums.channel or "-",
        state_of(row.sums) if row.sums.channel else "-",
        str(row.sums.waiting),
        *rates,
        drain_cell,
        *(str(counts[name]) for name in ("in_flight_count", "deferred_count", "client_count")),
    ]
