"""The command line of nsqx bench: one line says what is wrong."""

import pytest

from nsqx.bench.workloads import WORKLOADS
from nsqx.cli.bench import main

USAGE = ["usage: nsqx bench list|run|compare [WORKLOAD...] [FLAGS]", "nsqx bench --help lists the flags"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["measure"], 'nsqx bench: unknown command "measure" (use list, run or compare)'),
        (["run", "--size=-1", "mem"], "nsqx bench: --size must not be negative"),
        (["run", "--count=-1", "mem"], "nsqx bench: --count must not be negative"),
        (["run", "--processes=0", "mem"], "nsqx bench: --processes must be at least 1"),
        (["run", "--runfor=0s", "mem"], "nsqx bench: --runfor must be positive"),
        (["run", "--nonsense"], "nsqx bench: unknown flag --nonsense"),
        (["run", "--count=many"], 'nsqx bench: invalid --count "many": use a whole number'),
        (["compare", "mem"], "nsqx bench: --peer PATH is required: the path of the other nsqd"),
        (["compare", "--peer=/nonexistent"], "nsqx bench: --peer /nonexistent is not an executable file"),
        (["compare", "--peer=/bin/sh", "--client=c"], "nsqx bench: invalid --client 'c': use nsqx or go"),
        (["compare", "--peer=/bin/sh", "--rounds=0"], "nsqx bench: --rounds must be at least 1"),
        (
            ["compare", "--peer=/bin/sh", "--data-path=/nonexistent"],
            "nsqx bench: --data-path /nonexistent is not a directory",
        ),
        ([], "nsqx bench: a command is missing: use list, run or compare"),
    ],
)
def test_bad_input_is_one_line(capsys, words, line):
    assert main(words) == 2
    error, *usage = capsys.readouterr().err.splitlines()
    assert error == line
    assert usage in ([], USAGE)


def test_an_unknown_workload_is_told_which_there_are(capsys):
    assert main(["run", "mpub-mum"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("nsqx bench: unknown workload 'mpub-mum': use mpub-mem, sub-mem, ")
    assert error.count("\n") == 1


def test_every_workload_is_listed(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(WORKLOADS)
    (line,) = [each for each in lines if each.startswith("pub-2-fsync ")]
    assert line.endswith("  [nsqd --store=log --durability=fsync]  [peer --mem-queue-size=0 --sync-every=1]")


def test_help(capsys):
    assert main(["--help"]) == 0
    assert "--nsqd-tcp-address" in capsys.readouterr().out


def program_with(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_peer_that_is_not_an_nsqd_is_rejected(capsys, tmp_path):
    program = program_with(tmp_path / "redis-server", 'echo "Redis server v=7.0.15"')
    assert main(["compare", f"--peer={program}"]) == 2
    line = f"--peer {program} is not an nsqd: use the path of an nsqd, Go's or one with the same flags"
    assert capsys.readouterr().err == f"nsqx bench: {line}\n"


def test_a_peer_that_does_not_start_fails(capsys, tmp_path):
    program = program_with(tmp_path / "nsqd", 'echo "nsqd v0"; echo it cannot be >&2; exit 3')
    assert main(["compare", "idle", "--rounds=1", "--count=1", f"--peer={program}"]) == 1
    assert "idle on Go nsqd: Go nsqd did not start: it cannot be" in capsys.readouterr().err
