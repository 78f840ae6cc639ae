"""nsqx bench: measures a broker under load, or compares two brokers under the same load.

nsqx bench list
nsqx bench run WORKLOAD... --nsqd-tcp-address HOST:PORT
nsqx bench compare [WORKLOAD...] --peer PATH
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from nsqx.bench.brokers import Launcher, NSQDLauncher, Target, allow_many_files, is_nsqd, other_nsqd, own_nsqd
from nsqx.bench.chart import draw
from nsqx.bench.comparison import Comparison, Run, compare, machine, markdown, table
from nsqx.bench.failure import BenchFailed
from nsqx.bench.figures import Figure, format_value
from nsqx.bench.go_client import WORKLOADS as GO_WORKLOADS
from nsqx.bench.go_client import check_programs, measure_by_go
from nsqx.bench.loads import Limits
from nsqx.bench.workloads import WORKLOADS, Workload, find_workloads
from nsqx.cli.command_line import read_words
from nsqx.errors import ConfigError
from nsqx.flags import DURATION, INT, STRING, Flag, UsageError
from nsqx.net.address import parse_address
from nsqx.units import NS_PER_S

PROGRAM = "nsqx bench"
VERBS = ("list", "run", "compare")

FLAGS: tuple[Flag, ...] = (
    Flag("nsqd-tcp-address", STRING, "127.0.0.1:4150", "run: TCP address of the broker"),
    Flag("nsqd-http-address", STRING, "", "run: HTTP address of the broker, for the workload http-pub"),
    Flag("pid", INT, 0, "run: process id of the broker, to measure its CPU time and memory"),
    Flag("peer", STRING, "", "compare: `path` of the other nsqd"),
    Flag("rounds", INT, 5, "compare: number of runs of each workload on each broker"),
    Flag("client", STRING, "nsqx", "compare: nsqx, or go for Go's bench_writer and bench_reader beside the peer"),
    Flag("data-path", STRING, "", "compare: `directory` for the brokers' data; default a temporary directory"),
    Flag("chart", STRING, "", "compare: write an SVG chart of the ratios to this `file`"),
    Flag("markdown", STRING, "", "compare: write the table as Markdown to this `file`"),
    Flag("json", STRING, "", "write all figures as JSON to this `file`"),
    Flag("count", INT, 0, "maximum number of messages (connections for idle); 0 for the workload's default"),
    Flag("runfor", DURATION, 10_000_000_000, "maximum duration of each phase"),
    Flag("size", INT, 0, "bytes per message; 0 for the workload's default"),
    Flag("processes", INT, 2, "number of publishing processes, and of consuming processes"),
)


Action = Callable[[dict[str, Any], Sequence[Workload], Limits], int]
FindLauncher = Callable[[str, str | None], Launcher]


def main(argv: Sequence[str] | None = None, find_launcher: FindLauncher = other_nsqd) -> int:
    """Run a benchmark; return the exit code.

    ``find_launcher`` returns the launcher of the program that ``--peer`` names, with its data below a directory.
    """
    try:
        title = f"{PROGRAM} {'|'.join(VERBS)} [WORKLOAD...]"
        values, words = read_words(FLAGS, sys.argv[1:] if argv is None else argv, title, verbs=VERBS)
        limits = _limits(values)
        actions: dict[str, Action] = {"list": _list, "run": _run, "compare": partial(_compare, find_launcher)}
        action = actions[words[0]]
        workloads = _workloads(words[1:])
    except UsageError as error:
        return error.show()
    except ConfigError as error:
        print(f"nsqx bench: {error}", file=sys.stderr)
        return 2
    # SIGTERM raises KeyboardInterrupt, so a comparison always stops the brokers that it has started.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return action(values, workloads, limits)
    except ConfigError as error:
        print(f"nsqx bench: {error}", file=sys.stderr)
        return 2
    except BenchFailed as error:
        print(f"nsqx bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _limits(values: dict[str, Any]) -> Limits:
    for name in ("count", "size", "pid"):
        if values[name] < 0:
            raise ConfigError(f"--{name} must not be negative")
    for name in ("rounds", "processes"):
        if values[name] < 1:
            raise ConfigError(f"--{name} must be at least 1")
    if values["runfor"] <= 0:
        raise ConfigError("--runfor must be positive")
    if values["client"] not in ("nsqx", "go"):
        raise ConfigError(f"invalid --client {values['client']!r}: use nsqx or go")
    return Limits(values["count"], values["runfor"] / NS_PER_S, values["size"], values["processes"])


def _workloads(names: Sequence[str]) -> list[Workload]:
    try:
        return find_workloads(names)
    except BenchFailed as error:
        raise ConfigError(str(error)) from None


def _list(_values: dict[str, Any], _chosen: Sequence[Workload], _limits: Limits) -> int:
    for workload in WORKLOADS:
        names = ", ".join(workload.aliases if len(workload.aliases) > 1 else (workload.id,))
        flags = f"  [nsqd {' '.join(workload.flags)}]" if workload.flags else ""
        peer_flags = f"  [peer {' '.join(workload.peer_flags)}]" if workload.peer_flags is not None else ""
        print(f"{names:<24}{workload.about}{flags}{peer_flags}")
    return 0


def _run(values: dict[str, Any], workloads: Sequence[Workload], limits: Limits) -> int:
    for name in ("nsqd_tcp_address", "nsqd_http_address"):
        if values[name]:
            parse_address(values[name])
    target = Target(values["nsqd_tcp_address"], values["nsqd_http_address"], values["pid"])
    allow_many_files()
    found: list[Figure] = []
    for workload in workloads:
        for figure in workload.run(target, limits):
            found.append(figure)
            cpu = "" if figure.cpu_us is None else f"   {figure.cpu_us:.2f} us CPU each"
            print(f"{figure.name:<26}{format_value(figure.value, figure.unit):>14} {figure.unit}{cpu}", flush=True)
    if values["json"]:
        rows = [{"name": each.name, "value": each.value, "unit": each.unit, "cpu_us": each.cpu_us} for each in found]
        _write(values["json"], orjson.dumps({"machine": machine(), "figures": rows}, option=orjson.OPT_INDENT_2))
    return 0


def _compare(find_launcher: FindLauncher, values: dict[str, Any], workloads: Sequence[Workload], limits: Limits) -> int:
    peer = values["peer"]
    if not peer:
        raise ConfigError("--peer PATH is required: the path of the other nsqd")
    if not Path(peer).is_file() or not os.access(peer, os.X_OK):
        raise ConfigError(f"--peer {peer} is not an executable file")
    data_root = values["data_path"] or None
    if data_root is not None and not Path(data_root).is_dir():
        raise ConfigError(f"--data-path {data_root} is not a directory")
    theirs = find_launcher(peer, data_root)
    if theirs.is_nsqd and not is_nsqd(peer):
        raise ConfigError(f"--peer {peer} is not an nsqd: use the path of an nsqd, Go's or one with the same flags")
    client = values["client"]
    runs: list[tuple[Workload, Run]] = []
    if client == "go":
        if not isinstance(theirs, NSQDLauncher):
            raise ConfigError("--client go requires an nsqd as --peer")
        directory = Path(peer).resolve().parent
        check_programs(directory)
        runs = [(each, measure_by_go(directory, each.id)) for each in workloads if each.id in GO_WORKLOADS]
    else:
        runs = [(each, each.run) for each in workloads if each.is_general or theirs.is_nsqd]
    if not runs:
        raise ConfigError(f"none of these workloads can run on {theirs.name} with this client")
    comparison = compare(own_nsqd(data_root), theirs, runs, limits, values["rounds"], client, _print_progress)
    print(table(comparison))
    _save(comparison, values)
    return 1 if comparison.failures else 0


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _save(comparison: Comparison, values: dict[str, Any]) -> None:
    if values["json"]:
        _write(values["json"], orjson.dumps(comparison.as_json(), option=orjson.OPT_INDENT_2))
    if values["markdown"]:
        _write(values["markdown"], markdown(comparison).encode())
    if values["chart"]:
        _write(values["chart"], draw(comparison).encode())


def _write(path: str, content: bytes) -> None:
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise BenchFailed(f"cannot write {path}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
