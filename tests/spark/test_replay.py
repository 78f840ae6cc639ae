"""``nsqx replay`` publishes the selected messages of an archive, and an interrupted replay can be continued."""

from __future__ import annotations

import shlex
import threading
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsqx.cli import replay as command
from nsqx.client.blocking import Consumer
from nsqx.pipeline.dead_letters import SCHEMA

START = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Write an archive of 600 messages, 10 s apart, in files by date and hour, newest first; return its directory."""
    directory = tmp_path_factory.mktemp("archive")
    rows = [
        {
            "value": b"%d" % number,
            "topic": "orders",
            "id": f"{number:016x}",
            "timestamp": START + timedelta(seconds=10 * number),
            "attempts": 1,
            "node": "127.0.0.1:4150",
        }
        for number in range(600)
    ]
    schema = pa.schema([SCHEMA.field(name) for name in rows[0]])
    for hour in range(9, 12):
        place = directory / "date=2026-11-15" / f"hour={hour:02}"
        place.mkdir(parents=True)
        chosen = [row for row in rows if row["timestamp"].hour == hour]
        pq.write_table(pa.Table.from_pylist(chosen[::-1], schema=schema), place / "a.parquet")
    return directory


def consume(nsqd, topic, count):
    with Consumer(topic, "test", nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=1000) as consumer:
        found = []
        while len(found) < count:
            message = consumer.get(10)
            assert message is not None, f"{len(found)} of {count}"
            found.append(int(message.body))
            message.finish()
        assert consumer.get(0.2) is None
        return found


def replay(nsqd, archive, topic, *flags):
    return command.main([str(archive), "--to", topic, "--nsqd", nsqd.tcp_address, *flags])


def test_a_replay_publishes_the_whole_archive(spark, our_nsqd, archive, topic, capsys):
    assert replay(our_nsqd, archive, topic) == 0
    assert capsys.readouterr().out == f"published 600 of 600 messages to {topic}\n"
    assert sorted(consume(our_nsqd, topic, 600)) == list(range(600))


def test_a_replay_selects_by_time_and_condition(spark, our_nsqd, archive, topic, capsys):
    flags = [
        "--from",
        "2026-11-15T10:00",
        "--until",
        "2026-11-15T10:30:00+00:00",
        "--where",
        "CAST(text AS INT) % 2 = 0",
    ]
    assert replay(our_nsqd, archive, topic, *flags, "--rate", "100000") == 0
    assert sorted(consume(our_nsqd, topic, 90)) == list(range(180, 360, 2))
    capsys.readouterr()
    assert replay(our_nsqd, archive, topic, "--where", "nothing = 1") == 1
    error = capsys.readouterr().err
    assert error.startswith("nsqx replay: --where: A column")
    assert error.count("\n") == 1
    assert replay(our_nsqd, archive, topic, "--from", "yesterdayish") == 1
    assert "is not a time such as" in capsys.readouterr().err
    assert replay(our_nsqd, archive, topic, "--dry-run", "--until", "2026-11-15T10:00") == 0
    assert capsys.readouterr().out == "180 messages\n"


def test_an_interrupted_replay_can_be_continued(spark, our_nsqd, archive, topic, capsys):
    stopping = threading.Event()
    words = [str(archive), "--to", topic, "--nsqd", our_nsqd.tcp_address, "--rate", "2000"]

    def stop_after_some(_, total):
        published = 0

        class Bar:
            def __enter__(self):
                return self.advance

            def __exit__(self, *_):
                pass

            def advance(self, count):
                nonlocal published
                published += count
                if published >= 200:
                    stopping.set()

        return Bar()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "progress_bar", stop_after_some)
        assert command.run(command.read_options(words), words, stopping) == 1
    output = capsys.readouterr().out
    assert "published 200 of 600 messages" in output
    again = shlex.split(output.partition("to continue: nsqx replay ")[2])
    assert again[-2] == "--after"
    assert command.main(again) == 0
    assert "published 400 of 400 messages" in capsys.readouterr().out
    assert sorted(consume(our_nsqd, topic, 600)) == list(range(600))


def test_a_directory_without_an_archive_is_rejected(spark, our_nsqd, topic, tmp_path, capsys):
    assert replay(our_nsqd, tmp_path / "none", topic) == 1
    assert "does not exist" in capsys.readouterr().err
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    assert replay(our_nsqd, tmp_path, topic) == 1
    assert "is not an archive: it has no column value, timestamp, id, only a" in capsys.readouterr().err
