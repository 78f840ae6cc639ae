import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.flags import UsageError
from nsqx.tools.to_nsq import Splitter, Throttle, read_options
from nsqx.tools.utility import UtilityFailed


@given(st.lists(st.binary(max_size=20)))
def test_any_split_of_a_stream_gives_the_same_items(pieces: list[bytes]) -> None:
    splitter = Splitter(b"\n")
    items = [item for piece in pieces for item in splitter.feed(piece)] + splitter.end()
    assert items == [item for item in b"".join(pieces).split(b"\n") if item]


def test_without_a_delimiter_the_whole_stream_is_one_item() -> None:
    splitter = Splitter(b"")
    assert splitter.feed(b"a\n") + splitter.feed(b"b\n") == []
    assert splitter.end() == [b"a\nb\n"]
    assert splitter.end() == []


def test_a_throttle_limits_the_rate() -> None:
    throttle = Throttle(10, 100.0)
    now_s = 100.0
    for _ in range(20):
        now_s += throttle.take(now_s)
    assert now_s == pytest.approx(101.9)


def test_a_throttle_allows_a_burst_of_one_second_after_a_pause() -> None:
    throttle = Throttle(10, 0.0)
    waits = [throttle.take(1000.0) for _ in range(13)]
    assert waits == pytest.approx([0.0] * 11 + [0.1, 0.2])


def test_options_are_read_from_flags() -> None:
    argv = ["-topic", "t", "--nsqd-tcp-address=a:1", "--nsqd-tcp-address", "b:2", "--delimiter=,", "--rate=0x10"]
    options = read_options([*argv, "--producer-opt=snappy", "--producer-opt=dial_timeout,3s"])
    assert (options.topic, options.nsqd_tcp_addresses, options.delimiter) == ("t", ["a:1", "b:2"], b",")
    assert (options.rate, options.producer_options) == (16, ["snappy", "dial_timeout,3s"])


@pytest.mark.parametrize("topic", ["a b", "x" * 65, "a#b"])
def test_an_invalid_topic_is_rejected(topic: str) -> None:
    with pytest.raises(UtilityFailed, match="--topic is invalid"):
        read_options([f"--topic={topic}", "--nsqd-tcp-address=a:1"])


def test_an_unknown_client_option_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match='invalid value "snapy" for flag -producer-opt: invalid option snapy'):
        read_options(["--topic=t", "--nsqd-tcp-address=a:1", "--producer-opt=snapy"])
