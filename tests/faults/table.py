"""The faults, one row each: the fault, the scenario, and the expected result of nsqx's nsqd.

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
import power_cut
import security
from stage import Outcome, Stage

Scenario = Callable[[Stage], Outcome]
Verdict = Callable[[Outcome], bool]


@dataclass(frozen=True)
class Row:
    """One fault. ``is_met`` decides whether an outcome is as expected."""

    number: str
    fault: str
    expected: str
    scenario: Scenario
    is_met: Verdict
    is_slow: bool = False
    go_cannot: str = ""  # why the scenario cannot be run on Go's nsqd


def none_lost(outcome: Outcome) -> bool:
    return outcome.lost == 0 and outcome.foreign == 0


def none_lost_none_aside(outcome: Outcome) -> bool:
    return none_lost(outcome) and "set aside" not in outcome.seen and "depth after restart" not in outcome.seen


def one_lost(outcome: Outcome) -> bool:
    return outcome.lost <= 1 and outcome.foreign == 0


def has(**seen: object) -> Verdict:
    """Expect everything in ``seen`` in the outcome; underscores stand for spaces."""
    return lambda outcome: all(outcome.seen.get(name.replace("_", " ")) == value for name, value in seen.items())


def both(*verdicts: Verdict) -> Verdict:
    return lambda outcome: all(verdict(outcome) for verdict in verdicts)


def _cut(record: Callable[[Stage], power_cut.Recording], *, names_survive: bool = True) -> Scenario:
    return lambda stage: power_cut.cut_power(record(stage), names_survive=names_survive)


def _damaged(how: damage.Damage) -> Scenario:
    return lambda stage: damage.damaged(stage, how)


def _never_missing(outcome: Outcome) -> bool:
    return none_lost(outcome) and outcome.seen["at worst not durable when acked"] == 0


ROWS = (
    Row(
        "1",
        "kill -9 after 5000 acks, default flags",
        "messages in memory are lost",
        crash.kill_with_memory_queue,
        lambda outcome: (outcome.duplicated, outcome.foreign) == (0, 0),
    ),
    Row("2", "kill -9, mem-queue-size=0", "0 lost, right depth", crash.kill_with_disk_queue, none_lost_none_aside),
    Row(
        "3",
        "kill -9 with 500 in flight and 50 deferred",
        "0 lost, duplicates allowed",
        lambda stage: crash.kill_with_messages_in_flight(stage, "--sync-every=1"),
        none_lost,
    ),
    Row("4", "kill -9 while files roll", "0 lost, no .bad", lambda stage: crash.kill_at_random(stage, 1), none_lost),
    Row(
        "4",
        "kill -9 during file changes",
        "0 lost, no .bad",
        lambda stage: crash.kill_at_file_change(stage, 8),
        both(none_lost, lambda outcome: "set aside" not in outcome.seen),
    ),
    Row("4", "kill -9 while messages move to a channel", "0 lost", crash.kill_before_channel_write, none_lost),
    Row("5", "power cut, sync-every=1", "OK only after fsync", _cut(power_cut.sync_always), _never_missing),
    Row(
        "5",
        "power cut, sync-every=100",
        "at most 100 acked missing",
        _cut(power_cut.sync_by_count),
        lambda outcome: outcome.seen["at worst not durable when acked"] <= power_cut.SYNC_EVERY,
    ),
    Row("5", "power cut after sync-timeout", "0 lost", _cut(power_cut.sync_by_time), none_lost),
    Row("5", "power cut while messages move to a channel", "0 lost", power_cut.worst_on_the_way, none_lost),
    Row(
        "6",
        "power cut after sync-timeout; names need a sync",
        "0 lost",
        _cut(power_cut.sync_by_time, names_survive=False),
        none_lost,
    ),
    Row("7", "torn record at the tail", "1 lost", _damaged(damage.tear_last_record), one_lost),
    Row("7", "torn length at the tail", "1 lost", _damaged(damage.tear_last_length), one_lost),
    Row("8", "bit flip in a body", "damaged message not delivered", _damaged(damage.flip_body), one_lost),
    Row("9", "bit flip in a length: too long", "1 lost", _damaged(damage.flip_length_upwards), one_lost),
    Row("9", "bit flip in a length: plausible", "1 lost", _damaged(damage.flip_length_a_little), one_lost),
    Row("10", "meta file missing", "rebuilt, 0 lost", _damaged(damage.remove_meta), none_lost_none_aside),
    Row("10", "meta file empty", "rebuilt, 0 lost", _damaged(damage.empty_meta), none_lost_none_aside),
    Row(
        "11",
        "nsqd.dat damaged",
        "refuses to start with advice",
        lambda stage: damage.start_with_metadata(stage, b"half"),
        lambda outcome: "move it away" in outcome.seen.get("refuses to start", ""),
    ),
    Row(
        "12",
        "disk full: publishing",
        "0 lost, refused, recovers",
        disk_full.publish_when_full,
        both(none_lost, has(recovers=True, accepted_while_full=0, temporary_files=0)),
    ),
    Row(
        "12",
        "disk full: messages come back",
        "0 lost",
        lambda stage: disk_full.put_back_when_full(stage, "requeued"),
        none_lost,
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
    Row("13", "one failed fsync, then a power cut", "0 lost", disk_errors.trust_after_a_failed_fsync, none_lost),
    Row("14", "no descriptors: reading", "0 lost, no .bad", disk_errors.read_without_descriptors, none_lost_none_aside),
    Row(
        "14", "no descriptors: writing", "0 lost, no .bad", disk_errors.write_without_descriptors, none_lost_none_aside
    ),
    Row(
        "15",
        "deferred messages across a restart",
        "on time",
        deferred.restart_with_deferred,
        both(none_lost, has(early=f"0 of {deferred.COUNT}")),
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
    ),
    Row(
        "20",
        "connections that send nothing, for 90 s",
        "closed",
        lambda stage: bad_clients.silent_clients(stage, 90.0),
        has(kept_open=[]),
        is_slow=True,
    ),
    Row(
        "20",
        "100 connections, a cap of 20",
        "further ones are closed",
        bad_clients.crowd,
        has(open=20, one_more_is_refused=True, served_when_one_has_left=True),
    ),
    Row(
        "21",
        "client that disappears without a close",
        "closed after two heartbeats",
        bad_clients.silent_after_identify,
        lambda outcome: len(outcome.seen["heartbeats before the end"]) == 2,
    ),
    Row(
        "21",
        "client's machine lost, a message in flight",
        "closed, delivered to another",
        bad_clients.vanished,
        has(closed=True, delivered_to_another=True),
    ),
    Row("21", "client without heartbeats", "TCP keepalive", bad_clients.kept_alive, has(keepalive=True)),
    Row(
        "21",
        "machine of a client without heartbeats lost",
        "closed",
        lambda stage: bad_clients.vanished(stage, -1, 200.0),
        has(closed=True),
        is_slow=True,
    ),
    Row(
        "22",
        "100 clients announce 5 MiB each",
        "nothing preallocated",
        bad_clients.announce_much,
        lambda outcome: outcome.seen["MiB grown"] < 20 and not outcome.seen["traceback"],
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
    ),
    Row(
        "25", "two nsqd on one data path", "second refuses", data_path.two_at_once, has(refuses=True, first_serves=True)
    ),
    Row(
        "26",
        "tls-client-auth-policy=require, with different client certificates",
        "any certificate is accepted, with a warning at start",
        security.any_client_certificate,
        has(served=["signed", "self-signed"], warns=True),
    ),
    Row(
        "26",
        "tls-client-auth-policy=require-verify",
        "untrusted certificates are refused",
        lambda stage: security.any_client_certificate(stage, "require-verify"),
        has(served=["signed"], warns=False),
    ),
    Row(
        "27",
        "auth TTL expired and access revoked",
        "checked again at TTL",
        security.revoked,
        lambda outcome: (
            "E_UNAUTHORIZED" in outcome.seen["right gone"] and "E_AUTH_FAILED" in outcome.seen["secret gone"]
        ),
    ),
    Row(
        "28",
        "HTTP with auth configured, without and with a token",
        "refused without",
        security.http_with_auth,
        lambda outcome: all(status == (200 if "token" in name else 401) for name, status in outcome.seen.items()),
    ),
    Row(
        "29",
        "ambiguous HTTP framing",
        "400",
        security.ambiguous_framing,
        lambda outcome: set(outcome.seen.values()) == {400},
    ),
    Row(
        "30",
        "backlog of large messages",
        "bounded in bytes",
        security.large_backlog,
        lambda outcome: outcome.seen["MB in memory"] <= 1,
    ),
    Row(
        "31",
        "data directory: three lives, the second of Go's",
        "0 lost, each once",
        lambda stage: data_path.hand_over(stage, ("nsqx", "go", "nsqx")),
        both(none_lost, lambda outcome: outcome.duplicated == 0),
        go_cannot="is in it",
    ),
    Row(
        "33",
        "secret in logs; the right to `pay` is one to `payroll`; (a+)+$",
        "never logged; as in NSQ; does not hang",
        security.secrets_and_patterns,
        has(secret_in_log=False, payroll="OK", slow_pattern_refused=True),
    ),
)
