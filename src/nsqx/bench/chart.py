"""A comparison as an SVG chart: a bar for each figure shows the ratio to the peer on a logarithmic scale.

A line through a bar is the spread of the rounds. A diamond is the ratio of the brokers' CPU times.

The SVG is written without a library. It suits light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqx.bench.comparison import Comparison, Row

_LABEL_WIDTH: Final = 205
_PLOT_WIDTH: Final = 480
_NUMBER_WIDTH: Final = 70
_ROW_HEIGHT: Final = 24
_TOP: Final = 58
_BOTTOM: Final = 14

_STYLE: Final = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600; font-size: 15px }
  .small { font-size: 11px; fill: #57606a }
  .grid { stroke: #d0d7de; stroke-width: 1 }
  .one { stroke: #57606a; stroke-width: 1.5 }
  .better { fill: #2da44e }
  .worse { fill: #cf7a2b }
  .spread { stroke: #24292f; stroke-width: 1.5; opacity: .55 }
  .cpu { fill: #0969da; stroke: #ffffff; stroke-width: 1 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small { fill: #9198a1 }
    .grid { stroke: #3d444d }
    .one { stroke: #9198a1 }
    .better { fill: #3fb950 }
    .worse { fill: #db8b3d }
    .spread { stroke: #e6edf3 }
    .cpu { fill: #58a6ff; stroke: #0d1117 }
  }
"""


class _Scale:
    """The logarithmic scale of the plot."""

    def __init__(self, rows: Sequence[Row]) -> None:
        found = [value for row in rows for value in (*row.times_better(), _times_by_cpu(row) or 1.0)]
        values = [value for value in found if 0 < value < math.inf] or [1.0]
        self.least = min(-1, math.floor(math.log2(min(values))))
        self.most = max(1, math.ceil(math.log2(max(values))))

    def x(self, ratio: float) -> float:
        """Return the x coordinate of ``ratio``, limited to the plot."""
        doublings = math.log2(ratio) if 0 < ratio < math.inf else (self.least if ratio <= 0 else self.most)
        share = (min(max(doublings, self.least), self.most) - self.least) / (self.most - self.least)
        return _LABEL_WIDTH + share * _PLOT_WIDTH


def draw(comparison: Comparison) -> str:
    """Return the SVG text."""
    rows = comparison.complete_rows()
    scale = _Scale(rows)
    width = _LABEL_WIDTH + _PLOT_WIDTH + _NUMBER_WIDTH
    height = _TOP + _ROW_HEIGHT * len(rows) + _BOTTOM
    title = f"{comparison.our_name} compared with {comparison.their_name} (higher is better)"
    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="8" y="20">{escape(title)}</text>',
        f'<path class="cpu" d="{_diamond(width - 196, 15)}"/>',
        f'<text class="small" x="{width - 184}" y="19">by CPU time of the broker</text>',
        *_grid(scale, height),
    ]
    for index, row in enumerate(rows):
        pieces += _bar(row, scale, _TOP + _ROW_HEIGHT * index)
    return "\n".join([*pieces, "</svg>", ""])


def _grid(scale: _Scale, height: int) -> list[str]:
    step = 1 if scale.most - scale.least <= 8 else 2
    pieces = []
    for doublings in range(scale.least, scale.most + 1):
        if doublings % step and doublings != 0:
            continue
        ratio = 2.0**doublings
        x = scale.x(ratio)
        kind = "one" if doublings == 0 else "grid"
        pieces.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{height - _BOTTOM + 4}"/>')
        pieces.append(f'<text class="small" x="{x:.1f}" y="{_TOP - 12}" text-anchor="middle">{ratio:g}&#215;</text>')
    return pieces


def _bar(row: Row, scale: _Scale, top: float) -> list[str]:
    ratio, low, high = row.times_better()
    one, end = scale.x(1.0), scale.x(ratio)
    middle = top + _ROW_HEIGHT / 2
    kind = "better" if ratio >= 1 else "worse"
    by_cpu = _times_by_cpu(row)
    pieces = [
        f'<text x="{_LABEL_WIDTH - 8}" y="{middle + 4.5:.1f}" text-anchor="end">{escape(row.name)}</text>',
        f'<rect class="{kind}" x="{min(one, end):.1f}" y="{top + 4:.1f}" width="{abs(end - one):.1f}"'
        f' height="{_ROW_HEIGHT - 8}" rx="2"/>',
        f'<line class="spread" x1="{scale.x(low):.1f}" x2="{scale.x(high):.1f}" y1="{middle:.1f}" y2="{middle:.1f}"/>',
        f'<text x="{_LABEL_WIDTH + _PLOT_WIDTH + 10}" y="{middle + 4.5:.1f}">{ratio:.2f}&#215;</text>',
    ]
    if by_cpu is not None:
        pieces.append(f'<path class="cpu" d="{_diamond(scale.x(by_cpu), middle)}"/>')
    return pieces


def _times_by_cpu(row: Row) -> float | None:
    """Return the ratio of messages per CPU time, ours to theirs."""
    ratio = row.cpu_ratio()
    return 1 / ratio if ratio else None


def _diamond(x: float, y: float) -> str:
    return f"M{x - 5:.1f} {y:.1f}l5 -5 5 5 -5 5z"
