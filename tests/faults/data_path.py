"""Scenarios of a data directory that two daemons use, at the same time or in turn (rows 25 and 31)."""

from datafiles import files_that_go_ignores
from stage import CHANNEL, DISK_ONLY, SMALL_FILES, TOPIC, MessageTracker, Outcome, Stage, bodies, kill, wait_for_depth

from daemons import DaemonFailed
from rawclient import OK, RawClient

FLAGS = (DISK_ONLY, SMALL_FILES, "--sync-timeout=50ms")
FIRST, HELD, ADDED = 300, 40, 50


def two_at_once(stage: Stage) -> Outcome:
    """Row 25: a second nsqd on the same directory; the first continues, and its end releases the lock."""
    first = stage.nsqd(DISK_ONLY)
    try:
        stage.nsqd(DISK_ONLY)
        refusal = ""
    except DaemonFailed as failure:
        refusal = next(line for line in str(failure).splitlines() if "failed to lock" in line)
    with RawClient(first.tcp_address) as client:
        serves = client.pub(TOPIC, b"x") == OK
    kill(first)
    stage.nsqd(DISK_ONLY)
    return Outcome(seen={"refuses": bool(refusal), "first serves": serves, "refusal": refusal.partition("- ")[2]})


def hand_over(stage: Stage, chain: tuple[str, ...], *, crash: bool = False) -> Outcome:
    """Row 31: each daemon of a chain finishes some messages out of order, keeps some in flight, adds some, and ends.

    With ``crash`` the nsqx daemons are killed; Go's are not, because they lose messages then. Errors in Go's log are
    not counted: it sets files aside that it has read to their end.
    """
    extras: set[str] = set()
    errors: list[str] = []
    for number, implementation in enumerate(chain):
        stage.implementation = implementation
        daemon = stage.nsqd_with_channel(*FLAGS)
        stage.tracker.publish_many(daemon, TOPIC, bodies(f"life {number}", FIRST if number == 0 else ADDED))
        wait_for_depth(daemon)
        _use(stage.tracker, daemon.tcp_address)
        if crash and implementation == "nsqx":
            kill(daemon)
        else:
            daemon.stop()
        if implementation == "nsqx":
            errors += [line for line in daemon.log.splitlines() if " ERROR: DISKQUEUE" in line]
        extras.update(path.name for path in files_that_go_ignores(stage.data_path))
    outcome = stage.restart_and_drain(*FLAGS[1:])
    seen = {"errors": errors, "extras": sorted(extras)}
    return Outcome(outcome.acked, outcome.lost, outcome.duplicated, outcome.foreign, seen)


def _use(tracker: MessageTracker, address: str) -> None:
    """Take some messages; finish the later half of them and leave the others in flight."""
    with RawClient(address) as client:
        assert client.sub(TOPIC, CHANNEL) == OK
        client.rdy(2 * HELD)
        taken = [client.read_message() for _ in range(2 * HELD)]
        client.rdy(0)
        for message in reversed(taken[HELD:]):
            tracker.finished.add(message.body)
            client.fin(message.id)
        # The answer shows that all earlier commands are executed.
        assert client.cls() is not None
