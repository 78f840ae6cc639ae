"""Readers of topic logs: positions, several nsqds, the end of the log, and what they report."""

import asyncio
import json
import socket
from datetime import UTC, datetime, timedelta

import pytest

from daemons import Fleet, free_port, require_go, wait_until
from eventually import until
from nsqx import ConfigError, ConnectFailed, Consumer, InvalidBody, Producer, Reader, ReadFailed

LIMIT_S = 40.0
BODIES = [b"%d" % number for number in range(2500)]


@pytest.fixture
def daemon(fleet: Fleet):
    return fleet.nsqd("nsqx", "--store=log")


async def publish(daemon, topic, bodies):
    async with Producer(daemon.tcp_address) as producer:
        for start in range(0, len(bodies), 500):
            await producer.publish_many(topic, bodies[start : start + 500])


async def read_all(topic, daemon, **arguments):
    reader = Reader(topic, nsqd_http_addresses=daemon.http_address, stop_at_end=True, **arguments)
    async with asyncio.timeout(LIMIT_S), reader:
        return [message async for message in reader]


async def test_every_message_is_read_in_order_and_none_is_consumed(daemon, topic):
    daemon.post("/topic/create", topic=topic)
    daemon.post("/channel/create", topic=topic, channel="ch")
    await publish(daemon, topic, BODIES)
    messages = await read_all(topic, daemon)
    assert [message.body for message in messages] == BODIES
    assert [message.offset for message in messages] == sorted({message.offset for message in messages})
    assert {message.nsqd_address for message in messages} == {daemon.http_address}
    assert all(message.value == message.body and message.error is None for message in messages)
    assert daemon.channel_stats(topic, "ch")["depth"] == len(BODIES)
    # A consumer sees the same ids, timestamps and offsets.
    async with Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address) as consumer:
        for read in messages[:20]:
            message = await anext(consumer)
            assert (message.id, message.timestamp) == (read.id, read.timestamp)
            assert (message.offset, message.log) == (read.offset, read.log)
            message.finish()


@pytest.mark.parametrize("implementation", ["nsqx", "go"])
async def test_a_message_of_a_topic_without_a_log_has_no_offset(fleet, topic, implementation):
    if implementation == "go":
        require_go()
    flags = ("--store=classic",) if implementation == "nsqx" else ()
    daemon = fleet.nsqd(implementation, *flags)
    async with Producer(daemon.tcp_address) as producer:
        await producer.publish(topic, b"1")
    async with Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address) as consumer:
        message = await anext(consumer)
        assert (message.offset, message.log) == (None, "")
        message.finish()


async def test_a_reader_starts_at_an_offset_or_a_time_or_the_end(daemon, topic):
    await publish(daemon, topic, BODIES[:10])
    messages = await read_all(topic, daemon)
    middle = messages[5]
    assert [each.body for each in await read_all(topic, daemon, start=middle.offset)] == BODIES[5:10]
    assert await read_all(topic, daemon, start="end") == []
    hour = timedelta(hours=1)
    for start in (hour, "-1h", datetime.now(UTC) - hour, (datetime.now(UTC) - hour).isoformat()):
        assert len(await read_all(topic, daemon, start=start)) == 10
    assert await read_all(topic, daemon, start=datetime.now(UTC) + hour) == []


async def test_positions_continue_where_the_program_stopped(daemon, topic):
    await publish(daemon, topic, BODIES[:10])
    found = []
    async with asyncio.timeout(LIMIT_S), Reader(topic, nsqd_http_addresses=daemon.http_address) as reader:
        assert list(reader.positions) == [daemon.http_address]
        async for message in reader:
            found.append(message.body)
            if len(found) == 4:
                break
    kept = json.loads(json.dumps(reader.positions))
    found += [message.body for message in await read_all(topic, daemon, start=kept)]
    assert found == BODIES[:10]


async def test_a_reader_follows_the_end_of_the_log(daemon, topic):
    async with asyncio.timeout(LIMIT_S), Reader(topic, nsqd_http_addresses=daemon.http_address) as reader:
        assert reader.is_connected  # nsqd answers that there is no such topic yet
        assert await reader.read(10, timeout="10ms") == []
        await publish(daemon, topic, [b"1"])
        assert [message.body for message in await reader.read(10, timeout="30s")] == [b"1"]
        await publish(daemon, topic, [b"2", b"3"])
        found = []
        async for message in reader:
            found.append(message.body)
            if len(found) == 2:
                break
        assert found == [b"2", b"3"]
        assert await reader.read(10, timeout=0) == []


async def test_several_nsqds_are_read_by_nsqlookupd(fleet: Fleet, topic):
    lookupd = fleet.nsqlookupd("nsqx")
    daemons = [fleet.nsqd("nsqx", "--store=log", f"--lookupd-tcp-address={lookupd.tcp_address}") for _ in range(2)]
    for number, daemon in enumerate(daemons):
        await publish(daemon, topic, [b"%d-%d" % (number, index) for index in range(5)])
    wait_until(lambda: len(lookupd.request("GET", f"/lookup?topic={topic}").json()["producers"]) == 2, "both are known")
    reader = Reader(topic, lookupd_http_addresses=lookupd.http_address, stop_at_end=True)
    async with asyncio.timeout(LIMIT_S), reader:
        assert len(reader.health.connected_addresses) == 2
        messages = [message async for message in reader]
    for number in range(2):
        bodies = [message.body for message in messages if message.body.startswith(b"%d-" % number)]
        assert bodies == [b"%d-%d" % (number, index) for index in range(5)]
    assert len(reader.positions) == 2


async def test_large_messages_come_in_several_requests_and_too_large_ones_are_refused(daemon, topic):
    bodies = [bytes([number]) * 100_000 for number in range(20)]
    await publish(daemon, topic, bodies)
    assert [message.body for message in await read_all(topic, daemon, batch_bytes=250_000)] == bodies
    with pytest.raises(ReadFailed, match="the message at offset 0 of .* has 100000 bytes: batch_bytes is 50000"):
        await read_all(topic, daemon, batch_bytes=50_000)


async def test_deferred_messages_are_read_when_they_are_due(daemon, topic):
    async with Producer(daemon.tcp_address) as producer:
        await producer.publish_deferred(topic, b"later", "1s")
        await producer.publish(topic, b"now")
    async with asyncio.timeout(LIMIT_S), Reader(topic, nsqd_http_addresses=daemon.http_address) as reader:
        found = [await anext(reader), await anext(reader)]
    assert [message.body for message in found] == [b"now", b"later"]
    assert found[0].offset < found[1].offset


async def test_values_are_decoded_and_invalid_ones_have_their_reason(daemon, topic):
    await publish(daemon, topic, [b'{"id":1}', b"no JSON"])
    valid, invalid = await read_all(topic, daemon, codec=dict)
    assert valid.value == {"id": 1}
    assert invalid.value is None
    assert isinstance(invalid.error, InvalidBody)
    assert invalid.body == b"no JSON"


async def test_removed_messages_are_an_error_or_skipped(daemon, topic):
    await publish(daemon, topic, BODIES[:10])
    messages = await read_all(topic, daemon)
    daemon.post("/log/trim", topic=topic, before=str(messages[5].offset))
    with pytest.raises(
        ReadFailed, match="from the offset 0 on were removed, and the oldest one is at 5: use skip_missing=True"
    ) as caught:
        await read_all(topic, daemon, start=messages[0].offset)
    assert caught.value.code == "OFFSET_GONE"
    found = await read_all(topic, daemon, start=messages[0].offset, skip_missing=True)
    assert [message.body for message in found] == BODIES[5:10]
    assert [message.body for message in await read_all(topic, daemon)] == BODIES[5:10]


async def test_a_topic_that_was_created_again_is_not_continued(daemon, topic):
    await publish(daemon, topic, BODIES[:10])
    async with asyncio.timeout(LIMIT_S), Reader(topic, nsqd_http_addresses=daemon.http_address) as reader:
        await anext(reader)
    daemon.post("/topic/delete", topic=topic)
    await publish(daemon, topic, BODIES[:10])
    with pytest.raises(ReadFailed, match="was deleted and created again") as caught:
        await read_all(topic, daemon, start=reader.positions)
    assert caught.value.code == "LOG_CHANGED"


async def test_what_cannot_be_read_is_an_error(fleet: Fleet, daemon, topic):
    await publish(daemon, topic, [b"x"])
    with pytest.raises(ReadFailed, match="the offset 1000000 is beyond the end, ") as caught:
        await read_all(topic, daemon, start=1_000_000)
    assert caught.value.code == "OFFSET_BEYOND_END"
    classic = fleet.nsqd("nsqx", "--store=classic")
    classic.post("/topic/create", topic=topic)
    with pytest.raises(ReadFailed, match=f"topic {topic} has the classic store: a reader needs a log") as caught:
        await read_all(topic, classic)
    assert caught.value.code == "NOT_A_LOG"
    with pytest.raises(ReadFailed, match="invalid time '-xyz': use "):
        await read_all(topic, daemon, start="-xyz")
    assert await read_all("no_such_topic", daemon) == []


async def test_a_reader_starts_before_its_nsqd_and_survives_a_restart(fleet: Fleet, topic, tmp_path):
    address, tcp_address = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    flags = ["--store=log", f"--http-address={address}", f"--tcp-address={tcp_address}", f"--data-path={tmp_path}"]
    async with asyncio.timeout(2 * LIMIT_S), Reader(topic, nsqd_http_addresses=address) as reader:
        assert not reader.is_connected
        assert list(reader.health.failures) == [address]
        assert "refused" in str(reader.last_error)
        daemon = fleet.nsqd("nsqx", *flags)
        await publish(daemon, topic, [b"1"])
        assert (await anext(reader)).body == b"1"
        assert reader.is_connected
        daemon.stop()
        await until(lambda: not reader.is_connected, "the connection is lost")
        daemon = fleet.nsqd("nsqx", *flags)
        await publish(daemon, topic, [b"2"])
        assert (await anext(reader)).body == b"2"


async def test_calls_end_within_their_deadlines(topic):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        for arguments in ({"nsqd_http_addresses": address}, {"lookupd_http_addresses": address}):
            async with asyncio.timeout(LIMIT_S):
                reader = Reader(topic, start_timeout="100ms", **arguments)
                await reader.start()
                assert await reader.read(1, timeout="50ms") == []
                await reader.close()
                strict = Reader(topic, start_timeout="100ms", require_connection=True, **arguments)
                with pytest.raises(ConnectFailed, match="no nsqd has answered after 0.1 s"):
                    await strict.start()


async def test_the_tcp_port_is_no_http_port(daemon, topic):
    async with Reader(topic, nsqd_http_addresses=daemon.tcp_address) as reader:
        assert str(reader.last_error) == f"{daemon.tcp_address}: the answer is not HTTP"
        assert reader.health.failures == {daemon.tcp_address: str(reader.last_error)}


async def test_closing_ends_an_iteration(daemon, topic):
    reader = Reader(topic, nsqd_http_addresses=daemon.http_address)
    await reader.start()
    waiting = asyncio.ensure_future(anext(reader, None))
    await asyncio.sleep(0)
    async with asyncio.timeout(LIMIT_S):
        await reader.close()
        assert await waiting is None


@pytest.mark.parametrize("start", ["yesterday", -1, True, 1.5, None, "6f1c2a9e40d34b7c:", timedelta(hours=-1)])
def test_an_invalid_start_is_rejected(start):
    with pytest.raises(ConfigError, match="option start: "):
        Reader("t", nsqd_http_addresses="127.0.0.1:4151", start=start)


def test_other_invalid_arguments_are_rejected():
    with pytest.raises(ConfigError, match="a reader needs nsqd_http_addresses or lookupd_http_addresses"):
        Reader("t")
    with pytest.raises(ConfigError, match="option batch_bytes: must be an integer from 1024 to 16777216, not 1"):
        Reader("t", nsqd_http_addresses="a:1", batch_bytes=1)
