from nsqx.tools.timer_metrics import RequestTimes, TimerMetrics


def test_a_line_comes_with_the_first_request_of_each_further_round() -> None:
    said: list[str] = []
    metrics = TimerMetrics(100, "[x]:", said.append)
    counts = []
    for number in range(1, 302):
        metrics.add(number / 1000)
        counts.append(len(said))
    assert [number for number in range(2, 302) if counts[number - 1] > counts[number - 2]] == [101, 201, 301]
    # The last hundred: 202 to 301 ms, in whose order the 99th percentile is the last.
    assert said[-1] == "[x]: finished 100 - 99th: 301.00ms - 95th: 298.00ms - avg: 251.50ms"


def test_few_values_are_warned_of() -> None:
    said: list[str] = []
    TimerMetrics(5, "", said.append)
    TimerMetrics(100, "", said.append)
    TimerMetrics(0, "", said.append).add(1.0)
    assert said == ["Warning: use more than 100 status values for accurate percentiles (configured with 5)"]


def test_one_address_needs_no_lines_of_its_own(capsys) -> None:
    for addresses in (["a"], ["a", "b"]):
        times = RequestTimes(1, addresses, clock=lambda: 0.0)
        for _ in range(2):
            times.add("a", 0.0)
            times.add_whole(0.0)
    prefixes = [line.split()[2] for line in capsys.readouterr().err.splitlines() if "finished" in line]
    assert prefixes == ["[aggregate]:", "[a]:", "[aggregate]:"]
