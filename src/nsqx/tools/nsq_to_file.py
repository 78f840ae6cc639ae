"""nsq_to_file: writes the messages of topics to files, rotated by name, size or time, optionally compressed.

A message is finished after it was synced to disk. ``file_names`` and ``rotating_file`` name, rotate and move the files;
this module decides when to write and when to sync, and finds the topics.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import re2

from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.http import HTTPSession
from nsqx.cluster.lookupd import LookupdClient
from nsqx.errors import NSQError
from nsqx.flags import BOOL, DURATION, INT, STRING, STRINGS, Flag, VersionRequested, parse, resolve
from nsqx.log import INFO, Log, parse_level
from nsqx.tools.file_names import FileNames, file_names, host_identifier
from nsqx.tools.io_thread import IOThread
from nsqx.tools.progress import ProgressLine
from nsqx.tools.rotating_file import RotatingFile, Rules, prepare
from nsqx.tools.sources import (
    CONSUMER_FLAG,
    LOOKUPD_FLAG,
    MAX_IN_FLIGHT,
    MAX_IN_FLIGHT_FLAG,
    NSQD_FLAG,
    check_sources,
    client_credentials,
    client_options,
    make_consumer,
    start_consumer,
)
from nsqx.tools.utility import UtilityFailed, check_positive, explain
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from nsqx.client.consumer import Consumer
    from nsqx.client.subscription import Message

PROGRAM = "nsq_to_file"

_NEWLINE = b"\n"

FLAGS: tuple[Flag, ...] = (
    Flag("version", BOOL, False, "print version string", in_config=False),
    Flag("log-level", STRING, "info", "set log verbosity: debug, info, warn, error, or fatal"),
    Flag("log-prefix", STRING, "[nsq_to_file] ", "log message prefix"),
    Flag("channel", STRING, "nsq_to_file", "nsq channel"),
    MAX_IN_FLIGHT_FLAG,
    Flag("output-dir", STRING, "/tmp", "directory to write output files to"),
    Flag("work-dir", STRING, "", "directory for in-progress files before moving to output-dir"),
    Flag(
        "datetime-format",
        STRING,
        "%Y-%m-%d_%H",
        "strftime compatible format for <DATETIME> in filename format",
    ),
    Flag(
        "filename-format",
        STRING,
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "output filename format (<TOPIC>, <HOST>, <PID>, <DATETIME>, <REV> are replaced."
        " <REV> is increased when file already exists)",
    ),
    Flag(
        "host-identifier",
        STRING,
        "",
        "value to output in log filename in place of hostname."
        " <SHORT_HOST> and <HOSTNAME> are valid replacement tokens",
    ),
    Flag("gzip-level", INT, 6, "gzip compression level (1-9, 1=BestSpeed, 9=BestCompression)"),
    Flag("gzip", BOOL, False, "gzip output files."),
    Flag("skip-empty-files", BOOL, False, "skip writing empty files"),
    Flag("topic-refresh", DURATION, 60 * NS_PER_S, "how frequently the topic list should be refreshed"),
    Flag("topic-pattern", STRING, "", "only log topics matching the following pattern"),
    Flag("rotate-size", INT, 0, "rotate the file when it grows bigger than `rotate-size` bytes"),
    Flag("rotate-interval", DURATION, 0, "rotate the file every duration"),
    Flag("sync-interval", DURATION, 30 * NS_PER_S, "sync file to disk every duration"),
    Flag("http-client-connect-timeout", DURATION, 2 * NS_PER_S, "timeout for HTTP connect"),
    Flag("http-client-request-timeout", DURATION, 5 * NS_PER_S, "timeout for HTTP request"),
    NSQD_FLAG,
    LOOKUPD_FLAG,
    Flag("topic", STRINGS, [], "nsq topic (may be given multiple times)", config_key="topics"),
    CONSUMER_FLAG,
)


@dataclass(slots=True)
class NsqToFileOptions:
    """The options of nsq_to_file; durations in nanoseconds."""

    topics: list[str] = field(default_factory=list)
    topic_pattern: str = ""
    topic_refresh: int = 60 * NS_PER_S
    channel: str = "nsq_to_file"
    nsqd_tcp_addresses: list[str] = field(default_factory=list)
    lookupd_http_addresses: list[str] = field(default_factory=list)
    consumer_options: list[str] = field(default_factory=list)
    max_in_flight: int = MAX_IN_FLIGHT
    http_client_connect_timeout: int = 2 * NS_PER_S
    http_client_request_timeout: int = 5 * NS_PER_S
    log_prefix: str = "[nsq_to_file] "
    log_level: int = INFO
    output_dir: str = "/tmp"
    work_dir: str = ""
    datetime_format: str = "%Y-%m-%d_%H"
    filename_format: str = "<TOPIC>.<HOST><REV>.<DATETIME>.log"
    host_identifier: str = ""
    gzip_level: int = 6
    gzip: bool = False
    skip_empty_files: bool = False
    rotate_size: int = 0
    rotate_interval: int = 0
    sync_interval: int = 30 * NS_PER_S

    def rules(self) -> Rules:
        """Return the rules for a rotating file."""
        return Rules(
            output_dir=self.output_dir,
            work_dir=self.work_dir or self.output_dir,
            gzip_level=self.gzip_level if self.gzip else 0,
            rotate_size=self.rotate_size,
            rotate_interval_s=self.rotate_interval / NS_PER_S,
        )

    def names(self, topic: str) -> FileNames:
        """Return the file names of ``topic``; raises UtilityFailed."""
        return file_names(
            self.filename_format,
            self.datetime_format,
            topic=topic,
            host=host_identifier(self.host_identifier, socket.gethostname()),
            gzip=self.gzip,
            needs_revision=self.rules().has_revisions,
        )


def read_options(argv: Sequence[str]) -> NsqToFileOptions:
    """Return the options from the command line; raises UsageError, VersionRequested or UtilityFailed."""
    given, words = parse(FLAGS, argv, PROGRAM)
    if words:
        raise UtilityFailed(f"unknown arguments: [{' '.join(words)}]")
    values = resolve(FLAGS, given, {}).values
    try:
        values["log_level"] = parse_level(values["log_level"])
    except ValueError:
        raise UtilityFailed("--log-level is invalid") from None
    if given.get("version"):
        raise VersionRequested
    options = NsqToFileOptions(**values)
    _check(options, values)
    return options


def _check(options: NsqToFileOptions, values: dict[str, Any]) -> None:
    if not options.channel:
        raise UtilityFailed("--channel is required")
    check_positive(values, "http-client-connect-timeout", "http-client-request-timeout")
    try:
        check_sources(options.nsqd_tcp_addresses, options.lookupd_http_addresses)
    except UtilityFailed as error:
        # Only this Go utility ends this message with a full stop.
        raise UtilityFailed(f"{error}." if str(error).endswith("required") else str(error)) from None
    if not 1 <= options.gzip_level <= 9:
        raise UtilityFailed(f"invalid --gzip-level value ({options.gzip_level}), should be 1-9")
    if not options.topics and not options.topic_pattern:
        raise UtilityFailed("--topic or --topic-pattern required")
    if not options.topics and not options.lookupd_http_addresses:
        raise UtilityFailed("--lookupd-http-address must be specified when no --topic specified")
    check_positive(values, "sync-interval", "topic-refresh")
    try:
        re2.compile(options.topic_pattern)
    except re2.error as error:
        raise UtilityFailed(f"--topic-pattern is invalid - {error}") from None


class TopicWriter:
    """Writes the messages of one topic and finishes them after a sync."""

    def __init__(self, topic: str, options: NsqToFileOptions, log: Log, progress: ProgressLine) -> None:
        """Raises UtilityFailed, ConfigError or InvalidName."""
        # A failed write is not the fault of the message, so no message is given up.
        client = {"max_attempts": 0, **client_options(PROGRAM, options.consumer_options)}
        client["max_in_flight"] = options.max_in_flight
        self._options = options
        self._label = f"{topic}/{options.channel}"
        self._file = RotatingFile(options.names(topic), options.rules(), log, self._label)
        self._consumer: Consumer = make_consumer(
            topic, options.channel, options.nsqd_tcp_addresses, options.lookupd_http_addresses, client
        )
        self._log = log
        self._progress = progress
        self._io_thread = IOThread(f"files of {topic}")
        # Messages that were written and not synced yet.
        self._unfinished: list[Message] = []
        self._wake = asyncio.Event()
        self._must_close = False
        self._is_stopping = False

    async def start(self) -> None:
        """Start consuming; raises UtilityFailed."""
        await start_consumer(self._consumer, self._options.nsqd_tcp_addresses)

    def close_file(self) -> None:
        """Request to sync and close the current file; the next message opens a new one."""
        self._must_close = True
        self._wake.set()

    def stop(self) -> None:
        """End ``run`` after the received messages are written."""
        self._is_stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Write until stopped; raises UtilityFailed if a file operation fails."""
        clock = asyncio.get_running_loop().time
        interval_s = self._options.sync_interval / NS_PER_S
        tick_s = clock() + interval_s
        batches = self._consumer.batches(max(1, self._options.max_in_flight), 0)
        coming = asyncio.create_task(_next_of(batches))
        stopping: asyncio.Task[None] | None = None
        try:
            while True:
                await self._something(coming, tick_s - clock())
                if self._is_stopping and stopping is None:
                    stopping = asyncio.create_task(self._consumer.stop())
                    await self._sync()
                if self._must_close:
                    self._must_close = False
                    await self._sync()
                    await self._io_thread.call(self._file.close)
                if clock() >= tick_s:
                    tick_s = clock() + interval_s
                    await self._tick()
                if coming.done():
                    batch = coming.result()
                    if not batch:
                        break
                    await self._write(batch)
                    coming = asyncio.create_task(_next_of(batches))
            await self._sync()
            await self._io_thread.call(self._file.close)
        finally:
            await self._give_back(coming)
            if stopping is not None:
                await stopping
            self._io_thread.close()

    async def _give_back(self, coming: asyncio.Task[list[Message]]) -> None:
        """Stop the consumer and requeue all messages that are not on disk."""
        coming.cancel()
        [left] = await asyncio.gather(coming, return_exceptions=True)
        for message in [*self._unfinished, *(left if isinstance(left, list) else [])]:
            if not message.is_answered:
                message.requeue(0, backoff=False)
        await self._consumer.stop(0)

    async def _something(self, coming: asyncio.Task[list[Message]], timeout_s: float) -> None:
        """Wait for messages, for ``stop`` or ``close_file``, or until the next sync."""
        ordered = asyncio.create_task(self._wake.wait())
        try:
            events: set[asyncio.Task[Any]] = {coming, ordered}
            await asyncio.wait(events, timeout=max(0.0, timeout_s), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ordered.cancel()
            self._wake.clear()

    async def _tick(self) -> None:
        """Sync, and rotate the file if it is time."""
        needs_rotation = await self._io_thread.call(self._file.needs_rotation)
        if needs_rotation and not self._options.skip_empty_files:
            await self._io_thread.call(self._file.rotate)
        await self._sync()
        if needs_rotation and self._options.skip_empty_files:
            await self._io_thread.call(self._file.close)

    async def _write(self, batch: list[Message]) -> None:
        self._unfinished += batch
        has_rotated = await self._io_thread.call(self._file.write_all, [message.body + _NEWLINE for message in batch])
        is_full = len(self._unfinished) >= self._options.max_in_flight
        if has_rotated or is_full or self._is_stopping or self._consumer.is_starved:
            await self._sync()

    async def _sync(self) -> None:
        if not self._unfinished:
            return
        self._log.info("[%s] syncing %d records to disk", self._label, len(self._unfinished))
        await self._io_thread.call(self._file.sync)
        for message in self._unfinished:
            message.finish()
        self._progress.add(len(self._unfinished))
        self._unfinished.clear()


async def _next_of(batches: AsyncIterator[list[Message]]) -> list[Message]:
    """Return the next batch; an empty one at the end."""
    return await anext(batches, [])


class TopicWriters:
    """The writers of all topics, given by name or found by pattern."""

    def __init__(self, options: NsqToFileOptions, log: Log, progress: ProgressLine) -> None:
        self._options = options
        self._log = log
        self._progress = progress
        http = HTTPSession(
            client_credentials(options.consumer_options),
            options.http_client_connect_timeout / NS_PER_S,
            options.http_client_request_timeout / NS_PER_S,
        )
        self._lookupds = LookupdClient.at(http, options.lookupd_http_addresses)
        self._pattern = re2.compile(options.topic_pattern)
        self._writers: dict[str, TopicWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Write until ``stopping`` is set; raises UtilityFailed as soon as one topic cannot be written."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._close_files)
        prepare(self._options.rules())
        told_to_stop = asyncio.create_task(stopping.wait())
        try:
            if self._options.topics:
                await self._add(self._options.topics, is_required=True)
            else:
                self._tasks.add(asyncio.create_task(self._keep_looking()))
            while not stopping.is_set():
                done, _ = await asyncio.wait({told_to_stop, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {told_to_stop}:
                    task.result()
                    self._tasks.discard(task)
            for writer in self._writers.values():
                writer.stop()
            await asyncio.gather(*(task for task in self._tasks if task.get_name() in self._writers))
        finally:
            told_to_stop.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _close_files(self) -> None:
        for writer in self._writers.values():
            writer.close_file()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._options.topic_refresh / NS_PER_S)
            answers = await ask_all(self._lookupds, LookupdClient.topics)
            for problem in answers.problems:
                self._log.error("could not retrieve topic list: %s", problem)
            found = {topic for topics in answers.values for topic in topics}
            await self._add(sorted(found), is_required=False)

    async def _add(self, topics: Sequence[str], *, is_required: bool) -> None:
        for topic in topics:
            if topic in self._writers:
                continue
            if not self._pattern.search(topic):
                pattern = self._options.topic_pattern
                self._log.warn("skipping topic %s (doesn't match pattern %s)", topic, pattern)
                continue
            try:
                writer = TopicWriter(topic, self._options, self._log, self._progress)
                await writer.start()
            except NSQError as error:
                text = f"couldn't create logger for new topic {topic}: {explain(error)}"
                if is_required:
                    raise UtilityFailed(text) from error
                self._log.error("%s", text)
                continue
            self._writers[topic] = writer
            task = asyncio.create_task(writer.run(), name=topic)
            self._tasks.add(task)


async def run(options: NsqToFileOptions, stopping: asyncio.Event) -> int:
    """Write files until ``stopping`` is set; return the exit code."""
    log = Log(options.log_prefix, options.log_level)
    with ProgressLine("messages written") as progress:
        try:
            await TopicWriters(options, log, progress).run(stopping)
        except UtilityFailed as error:
            log.fatal("%s", error)
            return 1
    return 0
