"""nsqx pipeline: runs, checks or explains a data pipeline from a TOML file, or shows its status.

    nsqx pipeline run FILE.toml [--once]

spark-submit can run this file too, and then determines the master:

    spark-submit --master spark://host:7077 …/nsqx/cli/pipeline.py run FILE.toml
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nsqx.cli.spark_flags import MASTER_FLAG, check_packages
from nsqx.errors import ConfigError, NSQError
from nsqx.flags import BOOL, STRINGS, Flag, UsageError, usage
from nsqx.tools.cluster_address import find_tcp, read_words

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline
    from nsqx.pipeline.plan import Planned

PROGRAM = "nsqx pipeline"
VERBS = ("run", "check", "explain", "status")

FLAGS: tuple[Flag, ...] = (
    Flag("once", BOOL, False, "run: process the messages that are in the channels now, then exit"),
    MASTER_FLAG,
    Flag("lookupd", STRINGS, [], "HTTP address of an nsqlookupd (may be repeated); overrides [nsq] of the file"),
    Flag("nsqd", STRINGS, [], "TCP address of an nsqd (may be repeated); overrides [nsq] of the file"),
    Flag("set", STRINGS, [], "`key=value` overrides a value of the file, such as sink.out.path=/out (may be repeated)"),
    Flag("accept-schema-change", BOOL, False, "run: continue although the type of a column has changed"),
    Flag("plan", BOOL, False, "explain: show Spark's plan too"),
    Flag("verbose", BOOL, False, "show Spark's log instead of writing it to spark.log in the state directory"),
)


@dataclass(slots=True)
class PipelineOptions:
    """The options of nsqx pipeline."""

    verb: str
    file: str
    once: bool = False
    master: str = ""
    lookupd: list[str] = field(default_factory=list)
    nsqd: list[str] = field(default_factory=list)
    set: list[str] = field(default_factory=list)
    accept_schema_change: bool = False
    plan: bool = False
    verbose: bool = False


def read_options(argv: Sequence[str]) -> PipelineOptions:
    """Return the options from the command line; raises UsageError or ConfigError."""
    title = f"{PROGRAM} {'|'.join(VERBS)} FILE.toml"
    values, words = read_words(FLAGS, argv, title, least=2, most=2)
    if words[0] not in VERBS:
        raise UsageError(f"{PROGRAM}: unknown command {words[0]!r}\n{usage(FLAGS, title)}", 2)
    return PipelineOptions(words[0], words[1], **values)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of nsqx pipeline; return the exit code."""
    try:
        options = read_options(sys.argv[1:] if argv is None else argv)
        check_packages()
        return {"run": run, "check": check, "explain": explain, "status": status}[options.verb](options)
    except UsageError as error:
        print(error, file=sys.stderr, end="")
        return error.exit_code
    except NSQError as error:
        print(f"nsqx: {error}", file=sys.stderr)
        return 1


def run(options: PipelineOptions) -> int:
    """Run the pipeline; return the exit code."""
    with stop_signals() as stopping:
        return run_pipeline(
            read(options),
            stopping,
            once=options.once,
            master=options.master,
            verbose=options.verbose,
            accepts_schema_change=options.accept_schema_change,
        )


def run_pipeline(
    pipeline: Pipeline,
    stopping: threading.Event,
    *,
    once: bool,
    master: str = "",
    verbose: bool = False,
    accepts_schema_change: bool = False,
) -> int:
    """Run a pipeline until it ends or ``stopping`` is set, and return the exit code.

    Raises ConfigError before any message is consumed.
    """
    from nsqx.pipeline.channels import check_reachable, make_channels
    from nsqx.pipeline.display import make_display
    from nsqx.pipeline.runner import Runner
    from nsqx.spark.session import check_spark

    check_spark()
    try:
        check_reachable(pipeline.nsq)
    except ConfigError as error:
        raise ConfigError(f"{pipeline.file}: {error}") from None
    display = make_display(pipeline.name)
    with session(pipeline, master, verbose=verbose, runs=True) as spark:

        def plan() -> Sequence[Planned]:
            planned = plan_with_samples(spark, pipeline, display.note)
            make_channels(pipeline, planned)
            return planned

        return Runner(pipeline, display, once=once, accepts_schema_change=accepts_schema_change).run(plan, stopping)


def check(options: PipelineOptions) -> int:
    """Check that the pipeline can run, without consuming messages; return the exit code."""
    from nsqx.pipeline.plan import NotInferred, Planner

    pipeline = read(options)
    with session(pipeline, options.master, verbose=options.verbose) as spark:
        try:
            planned = Planner(spark, pipeline).plan()
        except NotInferred as error:
            print(f"{error}; steps and sinks that depend on it were not checked")
            return 0
    print(f"{options.file}: no errors, sinks: {', '.join(each.sink.name for each in planned)}")
    return 0


def explain(options: PipelineOptions) -> int:
    """Print sources, steps and sinks with their columns; return the exit code."""
    from nsqx.pipeline.explanation import explain_pipeline
    from nsqx.pipeline.plan import Planner

    pipeline = read(options)
    with session(pipeline, options.master, verbose=options.verbose) as spark:
        planner = Planner(spark, pipeline)
        planned = planner.plan()
        print("\n".join(explain_pipeline(pipeline, planner, planned)))
        if options.plan:
            for each in planned:
                print(f"\n{each.sink.name}")
                each.rows.explain(mode="formatted")
    return 0


def status(options: PipelineOptions) -> int:
    """Print the status of the pipeline; return the exit code."""
    from nsqx.pipeline.status import status_lines

    lines, code = status_lines(read(options, must_find_nsq=False))
    print("\n".join(lines))
    return code


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


@contextmanager
def session(pipeline: Pipeline, master: str, *, verbose: bool, runs: bool = False) -> Iterator[Any]:
    """Open a Spark session for a pipeline; only with ``runs`` is Spark's log kept in the state directory."""
    from nsqx.pipeline.session import open_session
    from nsqx.spark.s3_urls import check_spark_reaches

    settings = dict(pipeline.spark.settings)
    if pipeline.spark.packages:
        settings["spark.jars.packages"] = ",".join(pipeline.spark.packages)
    is_local = "://" not in pipeline.state
    log = "" if verbose else f"{pipeline.state}/spark.log" if runs and is_local else os.devnull
    with open_session(pipeline.name, master or None, settings, is_local_state=is_local, log=log) as spark:
        # Spark writes its checkpoints to the state directory.
        check_spark_reaches(spark, pipeline.state)
        yield spark


def plan_with_samples(spark: Any, pipeline: Pipeline, note: Any) -> Sequence[Planned]:
    """Return the plan, after taking samples of the sources whose schema must be inferred."""
    from nsqx.pipeline.plan import NotInferred, Planner
    from nsqx.pipeline.sample import infer_schema

    while True:
        try:
            return Planner(spark, pipeline).plan()
        except NotInferred as error:
            note(f"source.{error.source.name}: taking a sample to infer the schema")
            ddl = infer_schema(spark, pipeline, error.source)
            note(f"source.{error.source.name}: {ddl}")


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Provide an event that SIGTERM and SIGINT set; a second signal ends the process at once."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = {}

    def on_signal(number: int, _: object) -> None:
        if stopping.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, on_signal)
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
