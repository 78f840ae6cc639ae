"""Commands with tables on terminals of several widths: names are not shortened, and lines fit into the width."""

import json

import pytest

from daemons import NSQX, Daemon, Fleet, program_command, start_nsqd
from terminal import run_on_terminal
from utilities import make_channels, publish

WIDTHS = (60, 80, 120)
NAMES = {
    "short": ("orders", ("billing", "audit")),
    "usual": ("shop.orders.created", ("billing-service", "warehouse-service")),
    "longest": ("t" * 54 + "#ephemeral", ("c" * 54 + "#ephemeral", "d" * 64)),
}


@pytest.fixture(scope="module", params=NAMES)
def names(request):
    return NAMES[request.param]


@pytest.fixture(scope="module")
def daemon(names):
    topic, channels = names
    with start_nsqd("nsqx") as daemon:
        make_channels(daemon, topic, *channels)
        publish(daemon, topic, [b"m"] * 1_234)
        yield daemon


def shown(daemon: Daemon, columns: int, *words: str, end_when: str = "") -> list[str]:
    command = [*NSQX, *words, f"--nsqd-http-address={daemon.http_address}"]
    code, text = run_on_terminal(command, columns, end_when=end_when)
    assert code == 0, text
    return text.splitlines()


def check(lines: list[str], names: tuple[str, tuple[str, ...]], columns: int) -> None:
    topic, channels = names
    words = " ".join(lines).split()
    assert topic in words
    for channel in channels:
        assert channel in words
    assert "depth" in words
    assert not any("…" in line for line in lines), lines
    # A line may be too long if it contains a name that does not fit into the width.
    assert all(len(line) <= columns or len(max(line.split(), key=len)) > columns - 20 for line in lines), lines


@pytest.mark.parametrize("columns", WIDTHS)
def test_stats_fit_into_the_width(daemon, names, columns):
    lines = shown(daemon, columns, "stats")
    check(lines, names, columns)
    assert any("1234" in line for line in lines)


def test_stats_with_rates_fit_into_the_width(daemon, names):
    check(shown(daemon, 80, "stats", "--interval=50ms", end_when="out/s"), names, 80)


@pytest.mark.parametrize("columns", WIDTHS)
def test_topics_fit_into_the_width(daemon, names, columns):
    check(shown(daemon, columns, "topics"), names, columns)


def test_nsq_stat_prints_the_depth(daemon, names):
    topic, channels = names
    where = f"--nsqd-http-address={daemon.http_address}"
    flags = [f"--topic={topic}", f"--channel={channels[0]}", "--count=1", "--interval=10ms", where]
    code, text = run_on_terminal([*program_command("nsqx", "nsq_stat"), *flags], 60)
    assert code == 0, text
    assert "1234" in text.split()


def test_the_list_of_workloads_does_not_depend_on_the_width():
    command = [*NSQX, "bench", "list"]
    code, text = run_on_terminal(command, 60)
    assert (code, text) == (0, run_on_terminal(command, 200)[1])


def test_the_names_of_hidden_columns_are_printed(fleet: Fleet):
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "shop.orders.created", "billing-service")
    text = "\n".join(shown(daemon, 80, "stats"))
    assert "not shown for lack of width: memory, disk, deferred" in text
    assert all("memory_depth" in json.loads(line) for line in shown(daemon, 80, "stats", "--json"))
