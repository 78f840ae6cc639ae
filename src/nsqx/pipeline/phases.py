"""The phases of a pipeline. Each takes the values that the phases before it returned.

read               ``parser.read_pipeline``, or ``archive.archive_pipeline``: the ``Pipeline``
infer              ``references.find_references``, ``schemas.infer_schemas``: ``References`` and ``SourceSchemas``
plan               ``plan.plan_sinks``: a ``Planned`` for each sink
create channels    ``channels.make_channels``
run                ``runner.Runner``: the ``PipelineResult``

Every phase raises ConfigError for an error that the user can correct. No message is consumed before the last phase: the
sample of the phase infer is requeued.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsqx.errors import ConfigError
from nsqx.pipeline.channels import check_reachable, make_channels
from nsqx.pipeline.plan import plan_sinks
from nsqx.pipeline.references import find_references
from nsqx.pipeline.runner import PipelineResult, Runner, RunOptions
from nsqx.pipeline.schemas import find_schemas, infer_schemas
from nsqx.pipeline.session import open_pipeline_session
from nsqx.pipeline.sharing import find_sharing, store_starts
from nsqx.pipeline.state import hold_state
from nsqx.spark.session import check_spark, connect_url

if TYPE_CHECKING:
    import threading

    from nsqx.pipeline.display import Display
    from nsqx.pipeline.model import Pipeline, Source
    from nsqx.pipeline.plan import Planned

_LOCK_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan with the schemas that are known without samples."""

    planned: tuple[Planned, ...]
    not_inferred: tuple[Source, ...]
    """Sources without a schema. Sinks that depend on them are not planned."""


def plan_pipeline(spark: Any, pipeline: Pipeline) -> StoredPlan:
    """Plan a pipeline without samples and without other effects; raises ConfigError."""
    references = find_references(spark, pipeline)
    schemas = find_schemas(pipeline, references.used_sources())
    sharing = find_sharing(pipeline, references)
    return StoredPlan(plan_sinks(spark, pipeline, references, schemas, sharing), schemas.missing)


def run_pipeline(
    pipeline: Pipeline, options: RunOptions, display: Display, stopping: threading.Event
) -> PipelineResult:
    """Run a pipeline until it ends or ``stopping`` is set; raises ConfigError before any message is consumed."""
    if not connect_url(options.master or None, pipeline.spark.settings):
        check_spark()
    try:
        check_reachable(pipeline.nsq)
    except ConfigError as error:
        raise ConfigError(f"{pipeline.file}: {error}") from None
    with (
        open_pipeline_session(pipeline, options.master, verbose=options.verbose, keeps_log=True) as spark,
        hold_state(pipeline.state, _LOCK_WAIT_S) as state,
    ):
        references = find_references(spark, pipeline)
        stored = find_schemas(pipeline, references.used_sources())
        sharing = find_sharing(pipeline, references)
        readers = {
            source.name: sharing.reader(pipeline.sinks[references.first_sink(source.name)], source)
            for source in stored.missing
        }
        schemas = infer_schemas(spark, pipeline, stored, readers, display.note)
        planned = plan_sinks(spark, pipeline, references, schemas, sharing)
        store_starts(pipeline, state, sharing)
        make_channels(pipeline, state, planned)
        return Runner(pipeline, state, planned, sharing, options, display).run(stopping)
