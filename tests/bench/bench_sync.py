"""Compares nsqds with --sync-every=1: the rate of acknowledged PUBs, and the latency of a topic that needs no disk.

    python tests/bench/bench_sync.py go=interop/bin/nsqd nsqx=nsqd [--rounds 5] [--seconds 4]

Each argument is a label and the command that starts an nsqd. Every message goes to disk (--mem-queue-size=0), except
those of an ephemeral topic with a ready consumer. The brokers take turns, so that all of them see the same noise.

- pub-2, pub-50: messages per second with PUB one at a time, waiting for OK, on 2 and on 50 connections.
- other p50, other p99: milliseconds from PUB to delivery in the ephemeral topic, 500 messages per second, while 8
  connections publish to the other topic.

The program prints medians and asserts nothing.
"""

import argparse
import asyncio
import shlex
import socket
import statistics
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

BODY = b"x" * 200
PUB = b"PUB committed\n" + struct.pack(">i", len(BODY)) + BODY
OK_FRAME = struct.pack(">ii", 6, 0) + b"OK"
OTHER_PER_SECOND = 500
# A message frame: size, frame type, timestamp, attempts, id; then the body.
BODY_AT = 4 + 4 + 8 + 2 + 16


@dataclass
class Broker:
    """One nsqd to measure, with the figures of its rounds."""

    label: str
    command: list[str]
    figures: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        """Record one figure."""
        self.figures.setdefault(name, []).append(value)


def free_port() -> int:
    """Return a TCP port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to nsqd and send the magic."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"  V2")
    return reader, writer


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Return the next frame with its size."""
    size = await reader.readexactly(4)
    return size + await reader.readexactly(struct.unpack(">i", size)[0])


async def publish_until(port: int, end_s: float) -> int:
    """Publish one message at a time until ``end_s``; return how many were acknowledged."""
    reader, writer = await connect(port)
    count = 0
    while time.monotonic() < end_s:
        writer.write(PUB)
        frame = await read_frame(reader)
        if frame == OK_FRAME:
            count += 1
        else:
            raise RuntimeError(f"nsqd answered {frame!r}")
    writer.close()
    return count


async def publish_rate(port: int, connections: int, seconds: float) -> float:
    """Return the acknowledged messages per second of ``connections`` publishers."""
    start_s = time.monotonic()
    counts = await asyncio.gather(*(publish_until(port, start_s + seconds) for _ in range(connections)))
    return sum(counts) / (time.monotonic() - start_s)


async def consume_other(port: int, latencies: list[float]) -> None:
    """Consume the ephemeral topic and note how old each message is."""
    reader, writer = await connect(port)
    writer.write(b"SUB other#ephemeral c#ephemeral\nRDY 2500\n")
    while True:
        frame = await read_frame(reader)
        if struct.unpack_from(">i", frame, 4)[0] == 2:
            latencies.append(time.monotonic() - struct.unpack_from(">d", frame, BODY_AT)[0])
            writer.write(b"FIN " + frame[18:34] + b"\n")
        elif b"_heartbeat_" in frame:
            writer.write(b"NOP\n")


async def read_answers(reader: asyncio.StreamReader) -> None:
    """Read and ignore answers."""
    while await reader.read(65536):
        pass


async def other_latencies(port: int, seconds: float) -> list[float]:
    """Return the latencies of the ephemeral topic, in seconds, while 8 connections publish to the other topic."""
    latencies: list[float] = []
    consumer = asyncio.create_task(consume_other(port, latencies))
    await asyncio.sleep(0.3)
    reader, writer = await connect(port)
    answers = asyncio.create_task(read_answers(reader))
    end_s = time.monotonic() + seconds
    load = asyncio.gather(*(publish_until(port, end_s) for _ in range(8)))
    while time.monotonic() < end_s:
        body = struct.pack(">d", time.monotonic()) + BODY
        writer.write(b"PUB other#ephemeral\n" + struct.pack(">i", len(body)) + body)
        await asyncio.sleep(1 / OTHER_PER_SECOND)
    await load
    for task in (consumer, answers):
        task.cancel()
    return latencies


async def wait_for(port: int) -> None:
    """Wait until nsqd accepts connections."""
    for _ in range(200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise RuntimeError("nsqd did not start within 10 seconds")


async def measure(broker: Broker, port: int, seconds: float) -> None:
    """Take every figure of one running nsqd once."""
    await wait_for(port)
    broker.add("pub-2", await publish_rate(port, 2, seconds))
    broker.add("pub-50", await publish_rate(port, 50, seconds))
    latencies = sorted(await other_latencies(port, seconds))
    broker.add("other p50", 1000 * latencies[len(latencies) // 2])
    broker.add("other p99", 1000 * latencies[len(latencies) * 99 // 100])


def run(broker: Broker, seconds: float, directory: str | None) -> None:
    """Start nsqd on an empty directory, measure it and stop it."""
    port = free_port()
    with tempfile.TemporaryDirectory(dir=directory) as data_path:
        flags = ["--sync-every=1", "--mem-queue-size=0", f"--data-path={data_path}", f"--tcp-address=127.0.0.1:{port}"]
        flags += ["--http-address=127.0.0.1:0", "--log-level=error"]
        with subprocess.Popen([*broker.command, *flags], stderr=subprocess.DEVNULL) as process:
            try:
                asyncio.run(measure(broker, port, seconds))
            finally:
                process.terminate()


def main() -> None:
    """Measure the brokers in turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("broker", nargs="+", metavar="LABEL=COMMAND")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--directory", type=Path, help="where the data directories are created")
    arguments = parser.parse_args()
    brokers = []
    for text in arguments.broker:
        label, _, command = text.partition("=")
        brokers.append(Broker(label, shlex.split(command)))
    for number in range(arguments.rounds):
        for broker in brokers:
            run(broker, arguments.seconds, arguments.directory and str(arguments.directory))
            print(number + 1, broker.label, {name: round(values[-1], 2) for name, values in broker.figures.items()})
    names = list(brokers[0].figures)
    print(f"{'':12}" + "".join(f"{name:>14}" for name in names))
    for broker in brokers:
        print(f"{broker.label:12}" + "".join(f"{statistics.median(broker.figures[name]):14.2f}" for name in names))


if __name__ == "__main__":
    main()
