"""Members take turns, and the event loop continues when a turn has lasted long enough."""

import pytest

from nsqx.net.round_robin import ROUND_NS, RoundRobin


class RoundRobinHarness:
    """A round-robin with a fake clock that the members advance."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.soon: list = []
        self.worked: list[str] = []
        self.round_robin = RoundRobin(self.soon.append, lambda: self.now_ns)

    def run_scheduled(self) -> list[str]:
        """Run one turn of the loop; return the names of the members that worked."""
        self.worked.clear()
        callbacks, self.soon[:] = self.soon[:], []
        for callback in callbacks:
            callback()
        return list(self.worked)


class Worker:
    """A member with ``slices`` slices of work of ``slice_ns`` each."""

    def __init__(self, harness: RoundRobinHarness, name: str, slices: int, slice_ns: int = ROUND_NS // 4) -> None:
        self._harness = harness
        self._name = name
        self._slices = slices
        self._slice_ns = slice_ns
        harness.round_robin.join(self)

    def work(self) -> None:
        self._harness.worked.append(self._name)
        self._harness.now_ns += self._slice_ns
        self._slices -= 1
        if self._slices:
            self._harness.round_robin.join(self)


@pytest.fixture
def harness() -> RoundRobinHarness:
    return RoundRobinHarness()


def test_a_turn_lasts_about_a_millisecond_and_the_next_one_continues(harness):
    for name in "abc":
        Worker(harness, name, 3)
    assert harness.run_scheduled() == ["a", "b", "c", "a"]
    assert harness.run_scheduled() == ["b", "c", "a", "b"]
    assert harness.run_scheduled() == ["c"]
    assert harness.run_scheduled() == []


def test_a_single_member_gets_the_whole_turn(harness):
    Worker(harness, "a", 6)
    assert harness.run_scheduled() == ["a"] * 4
    assert harness.run_scheduled() == ["a"] * 2


def test_a_long_slice_ends_the_turn(harness):
    Worker(harness, "a", 2, 10 * ROUND_NS)
    Worker(harness, "b", 1)
    assert harness.run_scheduled() == ["a"]
    assert harness.run_scheduled() == ["b", "a"]


def test_members_share_one_callback(harness):
    for name in "abc":
        Worker(harness, name, 1)
    assert len(harness.soon) == 1


def test_a_member_that_fails_does_not_stop_the_others(harness):
    class Failing:
        def work(self) -> None:
            raise KeyError

    harness.round_robin.join(Failing())
    Worker(harness, "a", 1)
    with pytest.raises(KeyError):
        harness.run_scheduled()
    assert harness.run_scheduled() == ["a"]
