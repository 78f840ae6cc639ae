import asyncio
import logging
import re
import threading

import pytest

from nsqx.tools.io_thread import IOThread
from nsqx.tools.progress import ProgressLine
from nsqx.tools.sources import check_sources, client_options
from nsqx.tools.utility import UtilityFailed, client_log, explain, kept_client_log, log_line


def test_lines_start_with_the_time(capsys) -> None:
    log_line("text")
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d text\n", capsys.readouterr().err)


def test_the_client_log_is_printed_or_kept_inside_its_block(capsys) -> None:
    logger = logging.getLogger("nsqx.client")
    with client_log():
        logger.warning("a:1: Connection refused")
        with kept_client_log() as kept:
            logger.error("kept")
    assert kept == ["kept"]
    assert capsys.readouterr().err.endswith(" WRN dial tcp a:1: connect: connection refused\n")


def test_other_errors_are_not_reworded() -> None:
    assert explain("a:1: E_BAD_TOPIC no") == "a:1: E_BAD_TOPIC no"


def test_exactly_one_kind_of_address_is_required() -> None:
    check_sources(["a"], [])
    check_sources([], ["b"])
    for nsqds, lookupds in (([], []), (["a"], ["b"])):
        with pytest.raises(UtilityFailed, match="--nsqd-tcp-address"):
            check_sources(nsqds, lookupds)


def test_client_options_are_parsed_and_defaults_added() -> None:
    options = client_options("nsq_tail", ["snappy", "msg_timeout,3s", "max_in_flight,5"], max_in_flight=7)
    assert options.pop("user_agent").startswith("nsq_tail/1.3.0 nsqx/")
    assert options == {"snappy": True, "msg_timeout": 3.0, "max_in_flight": 7}


async def test_an_io_thread_runs_one_call_at_a_time() -> None:
    io_thread = IOThread("test")
    made: list[int] = []

    def call(number: int) -> str:
        made.append(number)
        return threading.current_thread().name

    names = await asyncio.gather(*(io_thread.call(call, number) for number in range(5)))
    assert (made, set(names)) == ([0, 1, 2, 3, 4], {"test"})
    with pytest.raises(ZeroDivisionError):
        await io_thread.call(lambda: 1 // 0)
    io_thread.close()


async def test_an_io_thread_works_after_a_cancelled_call() -> None:
    io_thread = IOThread("test")
    begun, may_end = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        may_end.wait(10)

    waiting = asyncio.create_task(io_thread.call(block))
    await asyncio.to_thread(begun.wait, 10)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    may_end.set()
    assert await io_thread.call(lambda: "next") == "next"
    io_thread.close()


def test_progress_shows_count_and_rate() -> None:
    now_s = [0.0]
    progress = ProgressLine("messages", clock=lambda: now_s[0])
    progress.add(500)
    assert progress.line() == "500 messages, 0/s, 0 s"
    now_s[0] = 2.0
    progress.add(1500)
    assert progress.line() == "2,000 messages, 1,000/s, 2 s"
    now_s[0] = 2.5
    assert progress.line() == "2,000 messages, 1,000/s, 2 s"


def test_no_progress_is_printed_to_a_pipe(capsys) -> None:
    with ProgressLine("messages") as progress:
        assert not progress.is_shown
        progress.add(1)
    assert capsys.readouterr() == ("", "")
