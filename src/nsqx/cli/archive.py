"""nsqx archive: writes topics to Parquet files by date and hour, exactly once."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nsqx.cli.cluster import tcp_cluster
from nsqx.cli.command_line import read_words
from nsqx.cli.spark_flags import CLUSTER_FLAGS, check_packages
from nsqx.cli.stop_signals import stop_signals
from nsqx.errors import ConfigError, NSQError
from nsqx.flags import BOOL, DURATION, STRING, STRINGS, Flag, UsageError
from nsqx.units import NS_PER_MINUTE, NS_PER_MS

PROGRAM = "nsqx archive"

FLAGS: tuple[Flag, ...] = (
    Flag("to", STRING, "", "`directory` of the archive, or a URI such as s3://bucket/path"),
    Flag("pattern", STRING, "", "archive all topics that match this regular expression; requires nsqlookupd"),
    Flag("channel", STRING, "archive", "channel to consume"),
    Flag("every", DURATION, NS_PER_MINUTE, "interval at which files are written"),
    Flag("once", BOOL, False, "archive the messages that are in the channel now, then exit"),
    Flag("compression", STRING, "zstd", "compression of the Parquet files: zstd, snappy, gzip, lz4 or none"),
    Flag("state", STRING, "", "state `directory`; default .nsqx in the archive"),
    Flag("option", STRINGS, [], "`key=value` of the data source, such as maxInFlight=1000 (may be repeated)"),
    *CLUSTER_FLAGS,
    Flag("verbose", BOOL, False, "show Spark's log instead of writing it to spark.log in the state directory"),
)


@dataclass(slots=True)
class ArchiveOptions:
    """The options of nsqx archive."""

    topics: list[str]
    to: str = ""
    pattern: str = ""
    channel: str = "archive"
    every: int = NS_PER_MINUTE
    """In nanoseconds."""
    once: bool = False
    compression: str = "zstd"
    state: str = ""
    option: list[str] = field(default_factory=list)
    master: str = ""
    context: str = ""
    lookupd: list[str] = field(default_factory=list)
    client_options: list[str] = field(default_factory=list)
    nsqd: list[str] = field(default_factory=list)
    set: list[str] = field(default_factory=list)
    verbose: bool = False


def read_options(argv: Sequence[str]) -> ArchiveOptions:
    """Return the options from the command line; raises UsageError or ConfigError."""
    values, topics = read_words(FLAGS, argv, f"{PROGRAM} TOPIC... --to DIR")
    options = ArchiveOptions(topics, **values)
    if bool(topics) == bool(options.pattern):
        raise ConfigError("either topics or --pattern is required, not both")
    if not options.to:
        raise ConfigError("--to DIR is required")
    if options.every < NS_PER_MS:
        raise ConfigError("--every must be at least 1ms")
    if options.compression not in ("zstd", "snappy", "gzip", "lz4", "none"):
        raise ConfigError(f"invalid --compression {options.compression!r}: use zstd, snappy, gzip, lz4 or none")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Archive topics; return the exit code."""
    try:
        options = read_options(sys.argv[1:] if argv is None else argv)
        check_packages()
        with stop_signals() as stopping:
            return archive(options, stopping)
    except UsageError as error:
        return error.show()
    except NSQError as error:
        print(f"{PROGRAM}: {str(error).removeprefix(f'{PROGRAM}: ')}", file=sys.stderr)
        return 1


def archive(options: ArchiveOptions, stopping: threading.Event) -> int:
    """Run the pipeline of an archive; return the exit code."""
    from nsqx.pipeline.archive import ArchiveSpec, archive_pipeline
    from nsqx.pipeline.channels import check_reachable
    from nsqx.pipeline.display import make_display
    from nsqx.pipeline.log_mode import reads_logs
    from nsqx.pipeline.model import Nsq
    from nsqx.pipeline.phases import run_pipeline
    from nsqx.pipeline.runner import RunOptions

    cluster = tcp_cluster(options.context, options.nsqd, options.lookupd)
    place = asyncio.run(cluster.find())
    wanted = ArchiveSpec(
        topics=options.topics,
        pattern=options.pattern,
        to=options.to,
        channel=options.channel,
        state=options.state,
        trigger_ms=options.every // NS_PER_MS,
        compression=options.compression,
        options=_pairs(options.option, "--option"),
    )
    nsq = Nsq(
        tuple(place.lookupd_addresses),
        tuple(place.nsqd_addresses),
        _client_settings([*cluster.client_options, *options.client_options]),
    )
    pipeline = archive_pipeline(wanted, nsq, _pairs(options.set, "--set"))
    check_reachable(nsq)
    if reads_logs(pipeline, pipeline.sources["messages"], pipeline.sinks["archive"]):
        pipeline = archive_pipeline(replace(wanted, has_offsets=True), nsq, _pairs(options.set, "--set"))
    run_options = RunOptions(once=options.once, master=options.master, verbose=options.verbose)
    return run_pipeline(pipeline, run_options, make_display(pipeline.name), stopping).exit_code


def _client_settings(texts: Sequence[str]) -> dict[str, str]:
    """Return the client's options in the form of a pipeline file."""
    parts = (text.partition(",") for text in texts)
    return {name.replace("-", "_"): value if comma else "true" for name, comma, value in parts}


def _pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"invalid {flag} {text!r}: use key=value")
        found[key.strip()] = value.strip()
    return found


if __name__ == "__main__":
    sys.exit(main())
