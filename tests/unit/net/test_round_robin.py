"""Members take turns, and the event loop continues when a turn has lasted long enough."""

import pytest

from nsqx.net.round_robin import ROUND_NS, RoundRobin


class Bench:
    """A round-robin with a fake clock that the members advance."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.soon: list = []
        self.worked: list[str] = []
        self.ends = 0
        self.round_robin = RoundRobin(self.soon.append, lambda: self.now_ns, self.end)

    def end(self) -> None:
        self.ends += 1

    def run_scheduled(self) -> list[str]:
        """Run one turn of the loop; return the names of the members that worked."""
        self.worked.clear()
        callbacks, self.soon[:] = self.soon[:], []
        for callback in callbacks:
            callback()
        return list(self.worked)


class Worker:
    """A member with ``slices`` slices of work of ``slice_ns`` each."""

    def __init__(self, bench: Bench, name: str, slices: int, slice_ns: int = ROUND_NS // 4) -> None:
        self._bench = bench
        self._name = name
        self._slices = slices
        self._slice_ns = slice_ns
        bench.round_robin.join(self)

    def work(self) -> None:
        self._bench.worked.append(self._name)
        self._bench.now_ns += self._slice_ns
        self._slices -= 1
        if self._slices:
            self._bench.round_robin.join(self)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_turn_lasts_about_a_millisecond_and_the_next_one_continues(bench):
    for name in "abc":
        Worker(bench, name, 3)
    assert bench.run_scheduled() == ["a", "b", "c", "a"]
    assert bench.run_scheduled() == ["b", "c", "a", "b"]
    assert bench.run_scheduled() == ["c"]
    assert (bench.run_scheduled(), bench.ends) == ([], 3)


def test_a_single_member_gets_the_whole_turn(bench):
    Worker(bench, "a", 6)
    assert bench.run_scheduled() == ["a"] * 4
    assert bench.run_scheduled() == ["a"] * 2


def test_a_long_slice_ends_the_turn(bench):
    Worker(bench, "a", 2, 10 * ROUND_NS)
    Worker(bench, "b", 1)
    assert bench.run_scheduled() == ["a"]
    assert bench.run_scheduled() == ["b", "a"]


def test_members_share_one_callback(bench):
    for name in "abc":
        Worker(bench, name, 1)
    assert len(bench.soon) == 1


def test_a_member_that_fails_does_not_stop_the_others(bench):
    class Failing:
        def work(self) -> None:
            raise KeyError

    bench.round_robin.join(Failing())
    Worker(bench, "a", 1)
    with pytest.raises(KeyError):
        bench.run_scheduled()
    assert bench.run_scheduled() == ["a"]
