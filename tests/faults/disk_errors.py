"""Scenarios of a failing fsync, and of a daemon without free file descriptors (rows 13 and 14)."""

import contextlib
import os
import resource
import time
from collections.abc import Iterator

from disk_full import recovers, try_to_publish
from power_cut import END, Recording
from stage import DISK_ONLY, SMALL_FILES, TOPIC, Outcome, Stage, bodies, wait_for_depth
from tracing import Tracer, failing

from daemons import Daemon, wait_until
from rawclient import OK, ConnectionEnded, RawClient

SYNC_ALWAYS = ("--sync-every=1", "--sync-timeout=100ms")
SYNC_SOON = ("--sync-timeout=100ms",)
COUNT = 200


def publish_while_fsync_fails(stage: Stage, flags: tuple[str, ...] = SYNC_ALWAYS) -> Outcome:
    """Row 13: every fsync fails for a while. After the first failure, what answers do publishers get?"""
    daemon = stage.nsqd_with_channel(DISK_ONLY, *flags)
    for body in bodies("before", 20):
        assert try_to_publish(stage, daemon, body) == OK
    with Tracer(daemon, *failing("fsync,fdatasync", "EIO")):
        first = try_to_publish(stage, daemon, b"the first publish during the failure")
        _wait_for_bad_health(daemon)
        answers = [try_to_publish(stage, daemon, body) for body in bodies("while failing", 50)]
        ping = daemon.request("GET", "/ping")
    refusal = next((answer.data.decode() for answer in answers if answer != OK), "")
    seen: dict[str, object] = {"recovers": recovers(stage, daemon)}
    seen["ping after"] = daemon.request("GET", "/ping").status
    stage.drain(daemon)
    return stage.tracker.outcome(
        **{"first accepted": first == OK, "accepted": answers.count(OK), "ping": ping.status, "refusal": refusal},
        **seen,
    )


def trust_after_a_failed_fsync(stage: Stage) -> Outcome:
    """Row 13: one fsync fails and later ones succeed; then the power is cut. Its data is not on disk."""
    daemon = stage.nsqd_with_channel(DISK_ONLY, *SYNC_ALWAYS)
    record = Recording(stage, daemon, "-e", "inject=fsync,fdatasync:error=EIO:when=5")
    refused = sum(record.publish([body]) == 0 for body in bodies("trusted", 60))
    assert wait_until(lambda: record.publish([b"at the end"]), "publishing works again")
    record.end()
    outcome = record.restart_after_cut(END, len(record.messages))
    return Outcome(outcome.acked, outcome.lost, outcome.duplicated, outcome.foreign, {"refused": refused})


def read_without_descriptors(stage: Stage) -> Outcome:
    """Row 14: the channel's files cannot be opened when a consumer is ready for their messages."""
    filler = stage.nsqd_with_channel(DISK_ONLY, SMALL_FILES)
    stage.tracker.publish_many(filler, TOPIC, bodies("stored", COUNT))
    wait_for_depth(filler)
    filler.stop()
    daemon = stage.nsqd(DISK_ONLY, SMALL_FILES, "--msg-timeout=1s")
    with stage.consumer(daemon) as consumer, without_descriptors(daemon):
        consumer.rdy(COUNT)
        daemon.wait_for_log("(?i)too many open files")
    stage.drain(daemon)
    return stage.tracker.outcome(**_set_aside(stage))


def write_without_descriptors(stage: Stage) -> Outcome:
    """Row 14: no new file can be opened during publishing."""
    daemon = stage.nsqd_with_channel(DISK_ONLY, SMALL_FILES)
    accepted = 0
    with RawClient(daemon.tcp_address) as client:
        for body in bodies("before", 15):
            assert stage.tracker.publish(client, TOPIC, body)
        with without_descriptors(daemon), contextlib.suppress(ConnectionEnded):
            for body in bodies("without", 60):
                if not stage.tracker.publish(client, TOPIC, body):
                    break
                accepted += 1
    seen = {"accepted": accepted, "recovers": recovers(stage, daemon)}
    stage.drain(daemon)
    return stage.tracker.outcome(**seen, **_set_aside(stage))


def connect_without_descriptors(stage: Stage) -> Outcome:
    """Row 14: connections cannot be accepted for a while; existing ones are served."""
    daemon = stage.nsqd()
    with RawClient(daemon.tcp_address) as client:
        assert client.pub(TOPIC, b"x") == OK
        with without_descriptors(daemon), RawClient(daemon.tcp_address), RawClient(daemon.tcp_address):
            served = client.pub(TOPIC, b"x") == OK
    log_size = len(daemon.log)
    with RawClient(daemon.tcp_address) as client:
        accepted = client.pub(TOPIC, b"x") == OK
    return Outcome(seen={"served": served, "accepted after": accepted, "bytes logged": log_size})


@contextlib.contextmanager
def without_descriptors(daemon: Daemon) -> Iterator[None]:
    """Prevent the daemon from opening further descriptors."""
    soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{daemon.pid}/fd")}
    lowest_free = next(number for number in range(soft) if number not in used)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (soft, hard))


def _set_aside(stage: Stage) -> dict[str, int]:
    count = len(list(stage.data_path.glob("*.bad")))
    return {"set aside": count} if count else {}


def _wait_for_bad_health(daemon: Daemon) -> None:
    """Wait until /ping reports the failure, or for a limited time: not every nsqd does."""
    deadline_s = time.monotonic() + 2.0
    while time.monotonic() < deadline_s and daemon.request("GET", "/ping").status == 200:
        time.sleep(0.02)
