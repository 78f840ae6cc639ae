"""Durations as short texts: ages, uptimes and times to drain."""

from __future__ import annotations

import math

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def age_text(seconds: float) -> str:
    """Return a duration with its two largest units: 45s, 3m20s, 2h5m, 4d1h; infinity is ``never``."""
    if math.isinf(seconds):
        return "never"
    left = max(0, int(seconds))
    for index, (size, unit) in enumerate(_UNITS):
        if left >= size:
            smaller, name = _UNITS[min(index + 1, len(_UNITS) - 1)]
            rest = left % size // smaller
            return f"{left // size}{unit}" + (f"{rest}{name}" if rest and size > smaller else "")
    return "0s"
