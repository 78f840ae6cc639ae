"""nsqx pipeline: runs, checks or explains a data pipeline from a TOML file, runs its tests, shows its status, or
resets a sink.

    nsqx pipeline run FILE.toml [--once]

spark-submit can run this file too, and then determines the master:

    spark-submit --master spark://host:7077 …/nsqx/cli/pipeline.py run FILE.toml
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nsqx.cli.command_line import read_words, usage_error
from nsqx.cli.spark_flags import MASTER_FLAG, check_packages
from nsqx.cli.stop_signals import stop_signals
from nsqx.errors import ConfigError, NSQError
from nsqx.flags import BOOL, STRING, STRINGS, Flag, UsageError
from nsqx.tools.cluster_address import find_tcp
from nsqx.tools.utility import UtilityFailed

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline

PROGRAM = "nsqx pipeline"
VERBS = ("run", "check", "explain", "status", "reset", "test")

FLAGS: tuple[Flag, ...] = (
    Flag("once", BOOL, False, "run: process the messages that are in the channels now, then exit"),
    MASTER_FLAG,
    Flag("lookupd", STRINGS, [], "HTTP address of an nsqlookupd (may be repeated); overrides [nsq] of the file"),
    Flag("nsqd", STRINGS, [], "TCP address of an nsqd (may be repeated); overrides [nsq] of the file"),
    Flag("set", STRINGS, [], "`key=value` overrides a value of the file, such as sink.out.path=/out (may be repeated)"),
    Flag("accept-schema-change", BOOL, False, "run: continue although the type of a column has changed"),
    Flag("metrics-address", STRING, "", "run: serve metrics for Prometheus at this `host:port`; overrides [pipeline]"),
    Flag("json", BOOL, False, "status: print JSON"),
    Flag("yes", BOOL, False, "reset: do not ask"),
    Flag("plan", BOOL, False, "explain: show Spark's plan too"),
    Flag("verbose", BOOL, False, "show Spark's log instead of writing it to spark.log in the state directory"),
)


@dataclass(slots=True)
class PipelineOptions:
    """The options of nsqx pipeline."""

    verb: str
    file: str
    name: str = ""
    """The sink to reset, or the test to run; all tests if empty."""
    once: bool = False
    master: str = ""
    lookupd: list[str] = field(default_factory=list)
    nsqd: list[str] = field(default_factory=list)
    set: list[str] = field(default_factory=list)
    accept_schema_change: bool = False
    metrics_address: str = ""
    json: bool = False
    yes: bool = False
    plan: bool = False
    verbose: bool = False


def read_options(argv: Sequence[str]) -> PipelineOptions:
    """Return the options from the command line; raises UsageError or ConfigError."""
    title = f"{PROGRAM} {'|'.join(VERBS)} FILE.toml [SINK|TEST]"
    values, words = read_words(FLAGS, argv, title, least=2, most=3, verbs=VERBS)
    if words[0] == "reset" and len(words) < 3:
        raise usage_error(title, "SINK is missing")
    if words[0] not in ("reset", "test") and len(words) == 3:
        raise usage_error(title, f'unexpected argument "{words[2]}"')
    return PipelineOptions(words[0], words[1], words[2] if len(words) == 3 else "", **values)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of nsqx pipeline; return the exit code."""
    try:
        options = read_options(sys.argv[1:] if argv is None else argv)
        check_packages()
        verbs = {"run": run, "check": check, "explain": explain, "status": status, "reset": reset, "test": test}
        return verbs[options.verb](options)
    except UsageError as error:
        return error.show()
    except NSQError as error:
        print(f"nsqx: {error}", file=sys.stderr)
        return 1


def run(options: PipelineOptions) -> int:
    """Run the pipeline; return the exit code."""
    from nsqx.pipeline.display import make_display
    from nsqx.pipeline.model import read_host_port
    from nsqx.pipeline.phases import run_pipeline
    from nsqx.pipeline.runner import RunOptions

    run_options = RunOptions(
        once=options.once,
        accepts_schema_change=options.accept_schema_change,
        master=options.master,
        verbose=options.verbose,
        metrics_address=options.metrics_address,
    )
    if options.metrics_address:
        read_host_port(options.metrics_address)
    with stop_signals() as stopping:
        pipeline = read(options)
        return run_pipeline(pipeline, run_options, make_display(pipeline.name), stopping).exit_code


def check(options: PipelineOptions) -> int:
    """Check that the pipeline can run, without consuming messages; return the exit code."""
    from nsqx.pipeline.phases import plan_pipeline
    from nsqx.pipeline.schemas import not_inferred
    from nsqx.pipeline.session import open_pipeline_session

    pipeline = read(options)
    with open_pipeline_session(pipeline, options.master, verbose=options.verbose) as spark:
        found = plan_pipeline(spark, pipeline)
    for source in found.not_inferred:
        print(f"{not_inferred(pipeline, source)}; steps and sinks that depend on it were not checked")
    if not found.not_inferred:
        print(f"{options.file}: no errors, sinks: {', '.join(each.sink.name for each in found.planned)}")
    return 0


def explain(options: PipelineOptions) -> int:
    """Print sources, steps and sinks with their columns; return the exit code."""
    from nsqx.pipeline.explanation import explain_pipeline
    from nsqx.pipeline.phases import plan_pipeline
    from nsqx.pipeline.session import open_pipeline_session

    pipeline = read(options)
    with open_pipeline_session(pipeline, options.master, verbose=options.verbose) as spark:
        planned = plan_pipeline(spark, pipeline).planned
        print("\n".join(explain_pipeline(spark, pipeline, planned)))
        if options.plan:
            for each in planned:
                print(f"\n{each.sink.name}")
                each.rows.explain(mode="formatted")
    return 0


def status(options: PipelineOptions) -> int:
    """Print the status of the pipeline; return the exit code."""
    from nsqx.pipeline.status import read_status

    found = read_status(read(options, must_find_nsq=False))
    print(found.as_json() if options.json else "\n".join(found.lines()))
    return found.exit_code


def reset(options: PipelineOptions) -> int:
    """Reset one sink after a confirmation; return the exit code."""
    from nsqx.pipeline.reset import SinkReset, find_sink
    from nsqx.pipeline.state import hold_state

    try:
        pipeline = read(options)
    except UtilityFailed:
        # Only the position of a query that reads logs is at nsqd.
        pipeline = without_cluster(read(options, must_find_nsq=False))
    sink = find_sink(pipeline, options.name)
    with hold_state(pipeline.state, wait_s=0) as state:
        found = SinkReset(pipeline, state, sink)
        print("\n".join(found.describe()))
        if found.checkpoint is None:
            return 0
        if not options.yes:
            if not sys.stdin.isatty():
                raise ConfigError("nothing was changed: add --yes to reset the sink without a question")
            if input(f"Reset sink {sink.name}? [y/N] ").strip().lower() not in ("y", "yes"):
                print("nothing was changed")
                return 1
        found.apply()
    print(f"sink {sink.name} was reset")
    return 0


def test(options: PipelineOptions) -> int:
    """Run the tests beside the pipeline file; return the exit code."""
    from nsqx.pipeline.case_file import case_file_of, read_cases
    from nsqx.pipeline.case_run import run_case
    from nsqx.pipeline.session import open_pipeline_session
    from nsqx.spark.session import connect_url

    pipeline = without_cluster(read(options, must_find_nsq=False))
    path = case_file_of(options.file)
    cases = [case for case in read_cases(pipeline, path) if options.name in ("", case.name)]
    if not cases:
        raise ConfigError(f"{path}: no test {options.name!r}")
    failed = 0
    master = options.master or ("" if connect_url(None, pipeline.spark.settings) else "local[2]")
    with open_pipeline_session(pipeline, master, verbose=options.verbose) as spark:
        for case in cases:
            result = run_case(spark, pipeline, case)
            print("\n".join(result.lines()), flush=True)
            failed += bool(result.differences)
    print(f"{len(cases)} {'test' if len(cases) == 1 else 'tests'}, {failed} failed")
    return 1 if failed else 0


def without_cluster(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with any address, for commands that connect to nothing."""
    if pipeline.nsq.lookupd or pipeline.nsq.nsqd:
        return pipeline
    return replace(pipeline, nsq=replace(pipeline.nsq, nsqd=("127.0.0.1:4150",)))


def read(options: PipelineOptions, *, must_find_nsq: bool = True) -> Pipeline:
    """Return the pipeline of the file, with the address of a cluster; raises ConfigError."""
    from nsqx.pipeline.parser import read_pipeline

    overrides = {}
    for text in options.set:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"invalid --set {text!r}: use key=value, such as sink.out.path=/tmp/out")
        overrides[key.strip()] = value.strip()
    pipeline = read_pipeline(options.file, overrides=overrides, lookupd=options.lookupd, nsqd=options.nsqd)
    if must_find_nsq and not pipeline.nsq.lookupd and not pipeline.nsq.nsqd:
        place = asyncio.run(find_tcp([], []))
        nsq = replace(pipeline.nsq, lookupd=tuple(place.lookupd_addresses), nsqd=tuple(place.nsqd_addresses))
        pipeline = replace(pipeline, nsq=nsq)
    return pipeline


if __name__ == "__main__":
    sys.exit(main())
