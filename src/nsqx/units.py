"""Conversion factors between nanoseconds and longer units of time."""

from __future__ import annotations

from typing import Final

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
NS_PER_MINUTE: Final = 60 * NS_PER_S
