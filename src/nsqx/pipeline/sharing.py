"""Sharing of sources: sinks that read the rows which one query has read and decoded for all of them.

The choice is made when a sink starts for the first time, by ``share`` of the source, and belongs to the sink's state
from then on. A sink that has begun with a channel of its own goes on with it, and one that shares goes on sharing.

The query that decodes is planned as a sink of the pipeline, ``shared-SOURCE``. It has the channel and the checkpoint.
The position of each sink is in the sink's own checkpoint, and before its first batch in ``shared-SINK-SOURCE.json``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsqx.pipeline.checkpoint import read_checkpoint
from nsqx.pipeline.decoded_rows import DecodedRows
from nsqx.pipeline.figures import positions_of
from nsqx.pipeline.model import SHARED, Sink, segment_location, shared_sink_name, trigger_of
from nsqx.pipeline.state import PipelineState, start_file
from nsqx.spark.segments import SegmentDirectory

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline, Source
    from nsqx.pipeline.references import References


@dataclass(frozen=True, slots=True)
class Sharing:
    """The sinks that share sources."""

    sinks: Mapping[str, Sink] = field(default_factory=dict)
    """The internal sink that decodes, by source."""
    pairs: frozenset[tuple[str, str]] = frozenset()
    """Names of a sink and of a source that it reads through that internal sink."""

    def is_shared(self, sink: Sink, source: Source) -> bool:
        """Return True if a sink reads the decoded rows of a source."""
        return (sink.name, source.name) in self.pairs

    def reader(self, sink: Sink, source: Source) -> Sink:
        """Return the sink whose query receives a source for a sink: an internal one, or the sink itself."""
        return self.sinks[source.name] if self.is_shared(sink, source) else sink

    def sinks_of(self, source: str) -> list[str]:
        """Return the names of the sinks that share a source."""
        return sorted(sink for sink, each in self.pairs if each == source)


def position_file(sink: str, source: str) -> str:
    """Return the name of the file with the row of a shared source at which the query of a sink began."""
    return f"shared-{sink}-{source}.json"


def decoded_location(pipeline: Pipeline, source: str) -> str:
    """Return the directory of the decoded rows of a source."""
    return f"{pipeline.state}/{shared_sink_name(source)}/rows"


def find_sharing(pipeline: Pipeline, references: References) -> Sharing:
    """Return which sinks share which sources, by the file and the state; without effects."""
    state = PipelineState(pipeline.state)
    found: dict[str, list[Sink]] = {}
    for name, sources in references.sources.items():
        sink = pipeline.sinks[name]
        for source in sources:
            if _shares(pipeline, state, source, sink):
                found.setdefault(source.name, []).append(sink)
    internal = {source: _internal_sink(source, sinks) for source, sinks in found.items()}
    return Sharing(internal, frozenset((sink.name, source) for source, sinks in found.items() for sink in sinks))


def _shares(pipeline: Pipeline, state: PipelineState, source: Source, sink: Sink) -> bool:
    if state.read(position_file(sink.name, source.name)) is not None:
        return True
    has_begun = (
        state.has(f"{sink.name}/checkpoint")
        or state.read(start_file(sink)) is not None
        or SegmentDirectory.exists(segment_location(pipeline, source, sink))
    )
    return source.share and not has_begun


def _internal_sink(source: str, sinks: Iterable[Sink]) -> Sink:
    trigger_ms = min(trigger_of(sink) for sink in sinks)
    return Sink(name=shared_sink_name(source), from_=source, type=SHARED, mode="append", trigger_ms=trigger_ms or None)


def store_starts(pipeline: Pipeline, state: PipelineState, sharing: Sharing) -> None:
    """Store the row at which each new sink begins: the next row that is decoded. Raises ConfigError."""
    for source in sharing.sinks:
        rows = DecodedRows(decoded_location(pipeline, source))
        rows.create()
        for sink in sharing.sinks_of(source):
            if state.read(position_file(sink, source)) is None:
                store_start(state, sink, source, rows.identity, rows.end)


def store_start(state: PipelineState, sink: str, source: str, identity: str, rows: int) -> None:
    """Store the row of a shared source at which the query of a sink begins."""
    state.write(position_file(sink, source), {"identity": identity, "rows": rows})


def starts_of(state: PipelineState, sink: str, sources: Iterable[Source]) -> dict[str, int]:
    """Return the rows at which the query of a sink began in its shared sources, as ``positions_of`` does."""
    found = (state.read(position_file(sink, source.name)) for source in sources)
    return {each["identity"]: each["rows"] for each in found if each is not None}


def trim_decoded(pipeline: Pipeline, state: PipelineState, sharing: Sharing) -> None:
    """Remove the decoded rows that all sinks of the pipeline have read; raises OSError."""
    for source in sharing.sinks:
        rows = DecodedRows(decoded_location(pipeline, source))
        rows.trim(min(_position(pipeline, state, sink, source, rows.identity) for sink in sharing.sinks_of(source)))


def _position(pipeline: Pipeline, state: PipelineState, sink: str, source: str, identity: str) -> int:
    """Return the row up to which the last completed batch of a sink has read; 0 if it is unknown."""
    checkpoint = read_checkpoint(f"{pipeline.state}/{sink}/checkpoint")
    for end in checkpoint.ends if checkpoint is not None else ():
        found = positions_of(end)
        if identity in found:
            return found[identity]
    start = state.read(position_file(sink, source))
    return int(start["rows"]) if start is not None and start["identity"] == identity else 0
