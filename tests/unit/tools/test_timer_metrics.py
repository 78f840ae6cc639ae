from nsqx.tools.timer_metrics import RequestTimes, TimerMetrics


def test_statistics_are_printed_with_the_first_request_after_each_round() -> None:
    lines: list[str] = []
    metrics = TimerMetrics(100, "[x]:", lines.append)
    counts = []
    for number in range(1, 302):
        metrics.add(number / 1000)
        counts.append(len(lines))
    assert [number for number in range(2, 302) if counts[number - 1] > counts[number - 2]] == [101, 201, 301]
    # The last hundred values are 202 to 301 ms. The 99th percentile is the last of them.
    assert lines[-1] == "[x]: finished 100 - 99th: 301.00ms - 95th: 298.00ms - avg: 251.50ms"


def test_a_small_number_of_values_prints_a_warning() -> None:
    lines: list[str] = []
    TimerMetrics(5, "", lines.append)
    TimerMetrics(100, "", lines.append)
    TimerMetrics(0, "", lines.append).add(1.0)
    assert lines == ["Warning: use more than 100 status values for accurate percentiles (configured with 5)"]


def test_lines_per_address_are_printed_only_for_several_addresses(capsys) -> None:
    for addresses in (["a"], ["a", "b"]):
        times = RequestTimes(1, addresses, clock=lambda: 0.0)
        for _ in range(2):
            times.add("a", 0.0)
            times.add_whole(0.0)
    prefixes = [line.split()[2] for line in capsys.readouterr().err.splitlines() if "finished" in line]
    assert prefixes == ["[aggregate]:", "[a]:", "[aggregate]:"]
