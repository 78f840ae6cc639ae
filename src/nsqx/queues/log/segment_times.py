"""Jobs that find how old the messages of segments are, from the indexes of the segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqx.queues.log.segment import LogSegment


class SegmentIndexJob:
    """Loads the index of a segment. ``run`` may be called in any thread."""

    def __init__(self, segment: LogSegment) -> None:
        self._segment = segment

    def run(self) -> None:
        """Load the index. A failure has no consequence: the index is not in memory then."""
        try:
            self._segment.loaded_index()
        except OSError:
            pass


class SegmentTimesJob:
    """Loads ``max_time`` of segments, without keeping their indexes in memory. ``run`` may be called in any thread."""

    def __init__(self, segments: Sequence[LogSegment]) -> None:
        self.error: OSError | None = None
        self._segments = [segment for segment in segments if segment.max_time is None]

    def run(self) -> None:
        """Read the indexes that are not in memory. A segment that was removed meanwhile is skipped."""
        for segment in self._segments:
            try:
                segment.load_max_time()
            except FileNotFoundError:
                continue
            except OSError as error:
                self.error = error
                return
