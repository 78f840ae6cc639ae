"""The faults, one row each: the fault, the scenario, and the expected result of nsqx's nsqd with each of its stores.

Faults that a scenario alone cannot show are covered by the tests that their rows name.
"""

from collections.abc import Callable
from dataclasses import dataclass

import bad_clients
import clocks
import crash
import damage
import data_path
import deferred
import disk_errors
import disk_full
import log_faults
import power_cut
import security
from stage import Outcome, Stage

Scenario = Callable[[Stage], Outcome]
Verdict = Callable[[Outcome], bool]


# Why a scenario is not run.
SAME_CODE = "same code as classic: no store is involved"
NO_FILES = "has no such files"
NO_MOVE = "messages do not move: a channel is a position in the log"


@dataclass(frozen=True)
class Row:
    """One fault. ``is_met`` decides whether an outcome is as expected.

    The log store runs the same scenario with the same expectation, except for what the fields say that begin with
    ``log``. ``log`` is another scenario, or the reason why none is run.
    """

    number: str
    fault: str
    expected: str
    scenario: Scenario
    is_met: Verdict
    is_slow: bool = False
    go_cannot: str = ""  # why the scenario cannot be run on Go's nsqd
    classic_cannot: str = ""  # why it cannot be run on the classic store
    log: Scenario | str = ""
    log_expected: str = ""
    log_is_met: Verdict | None = None


def log_row(
    number: str, fault: str, expected: str, scenario: Scenario, is_met: Verdict, *, cannot: str = NO_FILES
) -> Row:
    """Return a row that only the log store runs."""
    return Row(number, fault, expected, scenario, is_met, go_cannot=cannot, classic_cannot=cannot)


def none_lost(outcome: Outcome) -> bool:
    return outcome.lost == 0 and outcome.foreign == 0


def none_lost_none_aside(outcome: Outcome) -> bool:
    return none_lost(outcome) and "set aside" not in outcome.seen and "depth after restart" not in outcome.seen


def one_lost(outcome: Outcome) -> bool:
    return outcome.lost <= 1 and outcome.foreign == 0


def at_most_lost(count: int) -> Verdict:
    """Expect at most ``count`` lost messages, and that nsqd reports the damage."""
    return lambda outcome: outcome.lost <= count and outcome.foreign == 0 and outcome.seen["reported"]


def has(**seen: object) -> Verdict:
    """Expect everything in ``seen`` in the outcome; underscores stand for spaces."""
    return lambda outcome: all(outcome.seen.get(name.replace("_", " ")) == value for name, value in seen.items())


def both(*verdicts: Verdict) -> Verdict:
    return lambda outcome: all(verdict(outcome) for verdict in verdicts)


def _cut(record: Callable[[Stage], power_cut.Recording], *, names_survive: bool = True) -> Scenario:
    return lambda stage: power_cut.cut_power(record(stage), names_survive=names_survive)


def _damaged(how: damage.Damage) -> Scenario:
    return lambda stage: damage.damaged(stage, how)


def _log_damaged(how: damage.Damage, *, crashed: bool = False) -> Scenario:
    return lambda stage: log_faults.damaged(stage, how, crashed=crashed)


def _never_missing(outcome: Outcome) -> bool:
    return none_lost(outcome) and outcome.seen["at worst not durable when acked"] == 0


ROWS = (
    Row(
        "1",
        "kill -9 after 5000 acks, default flags",
        "messages in memory are lost",
        crash.kill_with_memory_queue,
        lambda outcome: (outcome.duplicated, outcome.foreign) == (0, 0),
        log_expected="0 lost, right depth",
        log_is_met=none_lost_none_aside,
    ),
    Row("2", "kill -9, mem-queue-size=0", "0 lost, right depth", crash.kill_with_disk_queue, none_lost_none_aside),
    Row(
        "3",
        "kill -9 with 500 in flight and 50 deferred",
        "0 lost, duplicates allowed",
        lambda stage: crash.kill_with_messages_in_flight(stage, "--sync-every=1"),
        none_lost,
        log=lambda stage: crash.kill_with_messages_in_flight(stage, delay_ms=3000),
        log_expected="0 lost, right depth",
        log_is_met=none_lost_none_aside,
    ),
    Row(
        "4",
        "kill -9 while files roll",
        "0 lost, no .bad",
        lambda stage: crash.kill_at_random(stage, 1),
        none_lost,
        log=lambda stage: log_faults.kill_during_checkpoints(stage, 1),
        log_expected="0 lost, right depth",
        log_is_met=none_lost_none_aside,
    ),
    Row(
        "4",
        "kill -9 during file changes",
        "0 lost, no .bad",
        lambda stage: crash.kill_at_file_change(stage, 8),
        both(none_lost, lambda outcome: "set aside" not in outcome.seen),
        log=lambda stage: log_faults.kill_at_file_change(stage, 300),
    ),
    Row(
        "4",
        "kill -9 while messages move to a channel",
        "0 lost",
        crash.kill_before_channel_write,
        none_lost,
        log=NO_MOVE,
    ),
    Row(
        "5",
        "power cut, sync-every=1",
        "OK only after fsync",
        _cut(power_cut.sync_always),
        _never_missing,
        log=log_faults.cut_power,
        log_expected="--durability=fsync: 0 lost",
        log_is_met=none_lost,
    ),
    Row(
        "5",
        "power cut, sync-every=100",
        "at most 100 acked missing",
        _cut(power_cut.sync_by_count),
        lambda outcome: outcome.seen["at worst not durable when acked"] <= power_cut.SYNC_EVERY,
        log="has no such window",
    ),
    Row(
        "5",
        "power cut after sync-timeout",
        "0 lost",
        _cut(power_cut.sync_by_time),
        none_lost,
        log=log_faults.cut_power_after_sync_timeout,
        log_expected="--durability=write: 0 lost",
    ),
    Row(
        "5",
        "power cut while messages move to a channel",
        "0 lost",
        power_cut.worst_on_the_way,
        none_lost,
        log=NO_MOVE,
    ),
    Row(
        "6",
        "power cut after sync-timeout; names need a sync",
        "0 lost",
        _cut(power_cut.sync_by_time, names_survive=False),
        none_lost,
        log=log_faults.cut_power_after_sync_timeout,
    ),
    Row(
        "7",
        "torn record at the tail",
        "1 lost",
        _damaged(damage.tear_last_record),
        one_lost,
        log=_log_damaged(log_faults.tear_segment),
        log_expected="the torn batch lost, reported",
        log_is_met=at_most_lost(log_faults.BATCH),
    ),
    Row(
        "7",
        "torn length at the tail",
        "1 lost",
        _damaged(damage.tear_last_length),
        one_lost,
        log=_log_damaged(log_faults.add_torn_frame, crashed=True),
        log_expected="a frame that was never acknowledged is ignored",
        log_is_met=none_lost_none_aside,
    ),
    Row(
        "8",
        "bit flip in a body",
        "damaged message not delivered",
        _damaged(damage.flip_body),
        one_lost,
        log=_log_damaged(log_faults.flip_body),
        log_is_met=at_most_lost(1),
    ),
    Row(
        "9",
        "bit flip in a length: too long",
        "1 lost",
        _damaged(damage.flip_length_upwards),
        one_lost,
        log=_log_damaged(log_faults.flip_length, crashed=True),
        log_is_met=at_most_lost(1),
    ),
    Row(
        "9",
        "bit flip in a length: plausible",
        "1 lost",
        _damaged(damage.flip_length_a_little),
        one_lost,
        log=_log_damaged(log_faults.flip_length),
        log_is_met=at_most_lost(1),
    ),
    log_row(
        "9",
        "bit flip in the head of a batch",
        "its batch lost",
        _log_damaged(log_faults.flip_head),
        at_most_lost(log_faults.BATCH),
    ),
    Row(
        "10",
        "meta file missing",
        "rebuilt, 0 lost",
        _damaged(damage.remove_meta),
        none_lost_none_aside,
        log=_log_damaged(log_faults.remove_identity),
        log_expected="file id rebuilt, 0 lost",
    ),
    Row(
        "10",
        "meta file empty",
        "rebuilt, 0 lost",
        _damaged(damage.empty_meta),
        none_lost_none_aside,
        log=_log_damaged(log_faults.damage_snapshots),
        log_expected="positions from the segment before, 0 lost",
        log_is_met=both(none_lost, has(reported=True)),
    ),
    log_row(
        "10",
        "both headers of a commit file damaged",
        "0 lost, file kept",
        _log_damaged(log_faults.damage_commit_headers, crashed=True),
        both(none_lost, has(reported=True, set_aside=1)),
    ),
    log_row(
        "10",
        "a segment missing",
        "its messages lost, reported",
        _log_damaged(log_faults.remove_segment),
        at_most_lost(40),
    ),
    log_row("10", "indexes missing", "0 lost", _log_damaged(log_faults.remove_indexes), none_lost_none_aside),
    Row(
        "11",
        "nsqd.dat damaged",
        "refuses to start with advice",
        lambda stage: damage.start_with_metadata(stage, b"half"),
        lambda outcome: "move it away" in outcome.seen.get("refuses to start", ""),
        log=log_faults.start_without_metadata,
        log_expected="refuses with advice; then topics and channels are in the log",
        log_is_met=both(none_lost, has(channels=["ch"])),
    ),
    Row(
        "12",
        "disk full: publishing",
        "0 lost, refused, recovers",
        disk_full.publish_when_full,
        both(none_lost, has(recovers=True, accepted_while_full=0, temporary_files=0)),
        log=log_faults.publish_until_commit_files_are_full,
        log_expected="goes on in the commit files, then refused at once, recovers",
        log_is_met=both(none_lost, has(recovers=True, accepted_while_full=0, ping_while_full=500, ping_after=200)),
    ),
    log_row(
        "12",
        "--min-free-disk reached",
        "0 lost, refused, recovers",
        log_faults.keep_some_disk_free,
        both(none_lost, has(recovers=True, accepted_while_full=0, ping_while_full=500)),
        cannot="has no such limit",
    ),
    Row(
        "12",
        "disk full: messages come back",
        "0 lost",
        lambda stage: disk_full.put_back_when_full(stage, "requeued"),
        none_lost,
        log=lambda stage: disk_full.put_back_when_full(stage, "requeued"),
    ),
    Row("12", "disk full: deferred are due", "0 lost", disk_full.become_due_when_full, none_lost),
    Row("12", "disk full: topic to channel", "0 lost", disk_full.move_when_full, none_lost),
    Row("12", "disk full: SIGTERM", "0 lost", disk_full.stop_when_full, none_lost),
    Row(
        "12",
        "disk full: a channel is created",
        "nsqd.dat is saved when there is room",
        disk_full.save_metadata_when_full,
        has(**{"nsqd.dat saved when there is room": True}),
    ),
    Row(
        "13",
        "fsync fails with EIO",
        "NOK, publishes refused",
        disk_errors.publish_while_fsync_fails,
        both(none_lost, has(accepted=0, ping=500, recovers=True)),
    ),
    Row(
        "13",
        "one failed fsync, then a power cut",
        "0 lost",
        disk_errors.trust_after_a_failed_fsync,
        none_lost,
        log=log_faults.trust_after_a_failed_sync,
    ),
    Row(
        "14",
        "no descriptors: reading",
        "0 lost, no .bad",
        disk_errors.read_without_descriptors,
        none_lost_none_aside,
        log=log_faults.read_without_descriptors,
    ),
    Row(
        "14",
        "no descriptors: writing",
        "0 lost, no .bad",
        disk_errors.write_without_descriptors,
        none_lost_none_aside,
        log=log_faults.write_without_descriptors,
        log_expected="goes on until the commit files are full, recovers",
        log_is_met=both(none_lost, has(recovers=True)),
    ),
    log_row(
        "14",
        "300 topics",
        "few descriptors",
        log_faults.descriptors_of_many_topics,
        lambda outcome: outcome.seen["descriptors"] < 60,
        cannot="not measured",
    ),
    Row(
        "15",
        "deferred messages across a restart",
        "on time",
        deferred.restart_with_deferred,
        both(none_lost, has(early=f"0 of {deferred.COUNT}")),
    ),
    Row(
        "15",
        "messages deferred by DPUB, kill -9",
        "lost if not yet due",
        lambda stage: log_faults.kill_with_deferred(stage, "channel"),
        lambda outcome: outcome.foreign == 0,
        log_expected="on time",
        log_is_met=both(none_lost, has(early=f"0 of {deferred.COUNT}")),
    ),
    log_row(
        "15",
        "messages deferred by REQ, kill -9",
        "on time",
        lambda stage: log_faults.kill_with_deferred(stage, "requeued"),
        both(none_lost, has(early=f"0 of {deferred.COUNT}")),
        cannot="see row 3",
    ),
    Row(
        "16",
        "SIGTERM with messages in flight",
        "kept",
        crash.stop_with_messages_everywhere,
        both(none_lost, has(exit=0)),
    ),
    Row("17", "consumer that never FINs", "redelivered", bad_clients.never_finish, has(different_messages=1)),
    Row(
        "18",
        "slow consumer, full socket",
        "closed, others are served",
        bad_clients.never_read,
        both(none_lost, has(closed=True)),
    ),
    Row(
        "19",
        "1000 idle connections",
        "at most 10 KiB each",
        lambda stage: bad_clients.idle_connections(stage, 1000),
        lambda outcome: outcome.seen["KiB each"] <= 10,
        log=SAME_CODE,
    ),
    Row(
        "20",
        "connections that send nothing, for 90 s",
        "closed",
        lambda stage: bad_clients.silent_clients(stage, 90.0),
        has(kept_open=[]),
        is_slow=True,
        log=SAME_CODE,
    ),
    Row(
        "20",
        "100 connections, a cap of 20",
        "further ones are closed",
        bad_clients.crowd,
        has(open=20, one_more_is_refused=True, served_when_one_has_left=True),
        log=SAME_CODE,
    ),
    Row(
        "21",
        "client that disappears without a close",
        "closed after two heartbeats",
        bad_clients.silent_after_identify,
        lambda outcome: len(outcome.seen["heartbeats before the end"]) == 2,
        log=SAME_CODE,
    ),
    Row(
        "21",
        "client's machine lost, a message in flight",
        "closed, delivered to another",
        bad_clients.vanished,
        has(closed=True, delivered_to_another=True),
    ),
    Row(
        "21",
        "client without heartbeats",
        "TCP keepalive",
        bad_clients.kept_alive,
        has(keepalive=True),
        log=SAME_CODE,
    ),
    Row(
        "21",
        "machine of a client without heartbeats lost",
        "closed",
        lambda stage: bad_clients.vanished(stage, -1, 200.0),
        has(closed=True),
        is_slow=True,
        log=SAME_CODE,
    ),
    Row(
        "22",
        "100 clients announce 5 MiB each",
        "nothing preallocated",
        bad_clients.announce_much,
        lambda outcome: outcome.seen["MiB grown"] < 20 and not outcome.seen["traceback"],
        log=SAME_CODE,
    ),
    Row(
        "23",
        "clock set back by an hour",
        "ids never block",
        clocks.set_back,
        lambda outcome: all(outcome.seen.values()),
        go_cannot="reads the kernel's clock directly, not through libfaketime",
    ),
    Row(
        "24",
        "no nsqlookupd (more in test_partition.py)",
        "publishing unaffected",
        security.without_lookupd,
        has(published=True, delivered=True),
        log=SAME_CODE,
    ),
    Row(
        "25", "two nsqd on one data path", "second refuses", data_path.two_at_once, has(refuses=True, first_serves=True)
    ),
    Row(
        "25",
        "data directory read-only at the start",
        "refuses to start with the reason",
        log_faults.read_only_directory,
        both(none_lost, lambda outcome: "Read-only file system" in outcome.seen["refuses to start"]),
        go_cannot="not tried",
        classic_cannot="not tried",
    ),
    Row(
        "26",
        "tls-client-auth-policy=require, with different client certificates",
        "any certificate is accepted, with a warning at start",
        security.any_client_certificate,
        has(served=["signed", "self-signed"], warns=True),
        log=SAME_CODE,
    ),
    Row(
        "26",
        "tls-client-auth-policy=require-verify",
        "untrusted certificates are refused",
        lambda stage: security.any_client_certificate(stage, "require-verify"),
        has(served=["signed"], warns=False),
        log=SAME_CODE,
    ),
    Row(
        "27",
        "auth TTL expired and access revoked",
        "checked again at TTL",
        security.revoked,
        lambda outcome: (
            "E_UNAUTHORIZED" in outcome.seen["right gone"] and "E_AUTH_FAILED" in outcome.seen["secret gone"]
        ),
        log=SAME_CODE,
    ),
    Row(
        "28",
        "HTTP with auth configured, without and with a token",
        "refused without",
        security.http_with_auth,
        lambda outcome: all(status == (200 if "token" in name else 401) for name, status in outcome.seen.items()),
        log=SAME_CODE,
    ),
    Row(
        "29",
        "ambiguous HTTP framing",
        "400",
        security.ambiguous_framing,
        lambda outcome: set(outcome.seen.values()) == {400},
        log=SAME_CODE,
    ),
    Row(
        "30",
        "backlog of large messages",
        "bounded in bytes",
        security.large_backlog,
        lambda outcome: outcome.seen["MB in memory"] <= 1,
        log=log_faults.large_backlog,
        log_expected="at most --log-memory",
        log_is_met=lambda outcome: outcome.seen["MB in memory"] <= 4,
    ),
    Row(
        "31",
        "data directory: three lives, the second of Go's",
        "0 lost, each once",
        lambda stage: data_path.hand_over(stage, ("nsqx", "go", "nsqx")),
        both(none_lost, lambda outcome: outcome.duplicated == 0),
        go_cannot="is in it",
        log=log_faults.to_go_and_back,
        log_expected="nsqx log export: 0 lost, each once",
    ),
    Row(
        "33",
        "secret in logs; the right to `pay` is one to `payroll`; (a+)+$",
        "never logged; as in NSQ; does not hang",
        security.secrets_and_patterns,
        has(secret_in_log=False, payroll="OK", slow_pattern_refused=True),
        log=SAME_CODE,
    ),
    Row(
        "37",
        "every fsync takes 3 s",
        "only publishers wait",
        log_faults.slow_sync,
        both(none_lost, lambda outcome: all(outcome.seen.values())),
        go_cannot="not tried",
        classic_cannot="in test_slow_disk.py",
    ),
    Row(
        "41",
        "clock set back a day over a restart with deferred messages",
        "at most --max-req-timeout late",
        log_faults.set_back_over_a_restart,
        both(none_lost, lambda outcome: all(outcome.seen.values())),
        go_cannot="reads the kernel's clock directly, not through libfaketime",
    ),
    Row("42", "kill -9 right after SUB answered OK", "channel kept", log_faults.kill_after_sub, has(channel_kept=True)),
)
