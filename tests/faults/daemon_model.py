"""nsqd under random use over several restarts, each after a failpoint, a kill or a stop, against a model of losses.

Everything goes to disk, so no acknowledged message may be lost, whatever happens to the process. Finished messages may
be delivered again. A message that was never sent must never be delivered.
"""

import contextlib
import random

from stage import CHANNEL, DISK_ONLY, TOPIC, Outcome, Stage, bodies, kill

from daemons import Daemon, DaemonFailed
from rawclient import ERROR, OK, ConnectionEnded, Message, RawClient

LIVES = 3
STEPS = 25
POINTS = (
    *("data.write", "data.sync", "data.open", "data.unlink"),
    *("sums.write", "sums.open", "sums.unlink"),
    *("meta.write", "meta.sync", "meta.rename", "meta.open"),
    *("nsqd.rename", "directory.sync", "*.write", "*.rename", "*.*"),
)


class DaemonRun:
    """One run on a stage, which the seed determines except for the timing."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage = stage
        self._rng = random.Random(seed)
        self._serial = 0
        self.history: list[str] = []
        self._flags = (
            DISK_ONLY,
            f"--max-bytes-per-file={self._rng.choice((300, 1000, 5000))}",
            f"--sync-every={self._rng.choice((1, 5, 2500))}",
            "--sync-timeout=20ms",
            "--msg-timeout=1s",
        )

    def perform(self) -> Outcome:
        """Start and end nsqd several times; return what a last daemon delivers."""
        first = self._stage.nsqd_with_channel(*self._flags)
        first.stop()
        for _ in range(LIVES):
            self._live()
        return self._stage.restart_and_drain(*self._flags[1:])

    def _live(self) -> None:
        order = ""
        if self._rng.random() < 0.8:
            order = f"{self._rng.choice(POINTS)}={self._rng.choice(('stop', 'tear'))}@{self._rng.randint(1, 40)}"
        self.history.append(order or "no failpoint")
        try:
            daemon = self._stage.nsqd(*self._flags, env={"NSQX_FAILPOINTS": order})
        except DaemonFailed:
            self.history.append("ended during its start")
            return
        try:
            self._use(daemon)
        except (OSError, ConnectionEnded):
            daemon.process.wait(10.0)  # only the failpoint can have ended it
            self.history.append("ended at its failpoint")
        if self._rng.random() < 0.5:
            kill(daemon)
        else:
            with contextlib.suppress(DaemonFailed):
                daemon.stop()  # the failpoint may be hit on the way

    def _use(self, daemon: Daemon) -> None:
        held: list[bytes] = []
        with RawClient(daemon.tcp_address) as producer, RawClient(daemon.tcp_address) as consumer:
            assert consumer.sub(TOPIC, CHANNEL) == OK
            consumer.rdy(20)
            for _ in range(STEPS):
                if self._rng.random() < 0.5:
                    self._publish(producer)
                else:
                    self._consume(consumer, held)

    def _publish(self, client: RawClient) -> None:
        tracker = self._stage.tracker
        self._serial += 1
        batch = bodies(f"message {self._serial}", self._rng.choice((1, 1, 7, 40)), self._rng.randint(30, 200))
        tracker.sent.update(batch)
        if client.mpub(TOPIC, batch) == OK:
            tracker.acked.update(batch)

    def _consume(self, client: RawClient, held: list[bytes]) -> None:
        """Take the available messages; finish some, requeue some, and let the others time out."""
        for _ in range(self._rng.randint(1, 10)):
            try:
                frame = client.read_answer(0.02)
            except TimeoutError:
                return
            if frame.type == ERROR:
                assert frame.data.startswith((b"E_FIN_FAILED", b"E_REQ_FAILED")), frame  # the message had timed out
                continue
            message = Message.decode(frame.data)
            draw = self._rng.random()
            if draw < 0.6:
                self._stage.tracker.finished.add(message.body)
                client.fin(message.id)
            elif draw < 0.8:
                client.req(message.id, self._rng.choice((0, 0, 50)))
            else:
                held.append(message.id)


def run_daemon_seed(stage: Stage, seed: int) -> Outcome:
    """Perform the run of a seed; a failure includes the seed."""
    run = DaemonRun(stage, seed)
    try:
        outcome = run.perform()
        assert outcome.lost == 0, sorted(stage.tracker.lost)[:5]
        assert outcome.foreign == 0, [body for body in stage.tracker.delivered if body not in stage.tracker.sent][:5]
    except AssertionError as failure:
        history = "\n".join(run.history)
        raise AssertionError(f"{failure}\n{history}\nNSQX_SEED={seed} repeats this run") from failure
    return outcome
