"""Both daemons reject an invalid command line or configuration file with the same exit status and message."""

import re
import subprocess
from pathlib import Path

import pytest

from daemons import program_command
from nsqx.version import own_version_line

END_TIMEOUT_S = 30

# Prefix, time and level of a log line. The Go daemon logs some errors without prefix or level.
_LOG_HEAD = re.compile(r"^(\[nsqd\] )?\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(\.\d{6})? (FATAL: )?")

FLAG_MISTAKES = [
    ["-x"],
    ["--x=3"],
    ["-version", "-x"],
    ["---x"],
    ["-=3"],
    ["--="],
    ["-mem-queue-size"],
    ["-mem-queue-size", "abc"],
    ["-mem-queue-size="],
    ["-mem-queue-size", "1__0"],
    ["-mem-queue-size", "08"],
    ["-mem-queue-size", "99999999999999999999"],
    ["-mem-queue-size", "-version"],
    ["-broadcast-tcp-port", "0x1p"],
    ["-sync-timeout", "5"],
    ["-sync-timeout", "5x"],
    ["-sync-timeout", 'a"b\\\t\u00e9\u200b'],
    ["-deflate=maybe"],
    ["-deflate="],
    ["-worker-id=5"],
    ["-tls-required=Maybe"],
    ["-tls-min-version", "ssl3.0"],
    ["-tls-min-version", "TLS1.9"],
    ["-log-level", "x"],
    ["-log-level", "warning"],
]

START_FAILURES = [
    ["-e2e-processing-latency-percentile", "abc"],
    ["-e2e-processing-latency-percentile", "0.5,x,1"],
    ["-e2e-processing-latency-percentile", "0.5,2"],
    ["-e2e-processing-latency-percentile", "0.00000001,-0.5"],
    ["-e2e-processing-latency-percentile", "0"],
    ["-e2e-processing-latency-percentile", "inf"],
    ["-node-id", "1024"],
    ["-node-id", "-1"],
    ["-node-id=0x400"],
    ["-max-deflate-level", "0"],
    ["-max-deflate-level", "10"],
    ["-tls-required"],
    ["-tls-required=tcp-https"],
    ["-tls-client-auth-policy", "require"],
    ["-config", "/nonexistent/nsqd.toml"],
    # Only the first error is reported.
    ["-max-deflate-level", "0", "-node-id", "1024", "-tls-required"],
    ["-node-id", "1024", "-tls-required", "-e2e-processing-latency-percentile=2"],
]

# Our message is the message of the Go daemon, followed by the reason.
CONFIG_MISTAKES = [
    'log_level = "loud"',
    "log_level = 3",
    'tls_required = "maybe"',
    "tls_required = 2",
    'tls_min_version = "ssl3.0"',
    "tls_min_version = 5",
    "id = 5000",
    "e2e_processing_latency_percentiles = [0.5, 1.5]",
    "max_deflate_level = 0",
    "tls_required = true",
]

# The message of the Go daemon contains names of its Go struct fields; ours contains the key.
CONFIG_TYPE_MISTAKES = [
    'mem_queue_size = "0x12"',
    "mem_queue_size = 1.5",
    "mem_queue_size = true",
    "mem_queue_size = [1]",
    'sync_timeout = "5"',
    "sync_timeout = 1.5",
    "sync_timeout = true",
    'deflate = "x"',
    "deflate = 1.0",
    "broken",
    "mem_queue_size = 1\nmem_queue_size = 2",
]


@pytest.fixture
def run(tmp_path: Path):
    """A function that runs an nsqd until it exits."""

    def run(implementation: str, argv: list[str]) -> subprocess.CompletedProcess[str]:
        safe = [f"-data-path={tmp_path}", "-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"]
        command = program_command(implementation, "nsqd") + safe + argv
        return subprocess.run(command, capture_output=True, text=True, timeout=END_TIMEOUT_S)

    return run


def first_line(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the first line on stderr without prefix, time and level."""
    lines = ended.stderr.splitlines()
    assert lines, "nothing on stderr"
    return _LOG_HEAD.sub("", lines[0])


def config_file(tmp_path: Path, content: str) -> str:
    path = tmp_path / "nsqd.toml"
    path.write_text(content + "\n")
    return str(path)


@pytest.mark.parametrize("argv", FLAG_MISTAKES, ids=" ".join)
def test_invalid_flags_fail_with_the_same_message(run, candidate, argv):
    go, ours = run("go", argv), run(candidate, argv)
    assert (ours.returncode, first_line(ours)) == (go.returncode, first_line(go))
    assert go.returncode == 2
    assert ours.stderr.splitlines()[1] == "Usage of nsqd:"
    assert ours.stdout == ""


@pytest.mark.parametrize("argv", START_FAILURES, ids=" ".join)
def test_invalid_values_fail_at_start_with_the_same_message(run, candidate, argv):
    go, ours = run("go", argv), run(candidate, argv)
    assert (ours.returncode, first_line(ours)) == (go.returncode, first_line(go))
    assert go.returncode == 1
    assert len(ours.stderr.splitlines()) == 1


@pytest.mark.parametrize("content", CONFIG_MISTAKES)
def test_invalid_config_values_fail_with_the_message_of_go(run, candidate, tmp_path, content):
    argv = ["-config", config_file(tmp_path, content)]
    go, ours = run("go", argv), run(candidate, argv)
    assert ours.returncode == go.returncode == 1
    assert first_line(ours).startswith(first_line(go))
    assert len(ours.stderr.splitlines()) == 1


@pytest.mark.parametrize("content", CONFIG_TYPE_MISTAKES)
def test_config_values_of_a_wrong_type_fail_at_start(run, candidate, tmp_path, content):
    argv = ["-config", config_file(tmp_path, content)]
    go, ours = run("go", argv), run(candidate, argv)
    assert ours.returncode == go.returncode == 1
    assert len(ours.stderr.splitlines()) == 1
    assert first_line(ours)


@pytest.mark.parametrize("argv", [["-h"], ["--help"], ["-help=1"], ["-h=x"], ["-deflate", "-h", "-x"]], ids=" ".join)
def test_help_is_printed_in_the_same_cases(run, candidate, argv):
    go, ours = run("go", argv), run(candidate, argv)
    assert (ours.returncode, first_line(ours), ours.stdout) == (go.returncode, first_line(go), go.stdout)


@pytest.mark.parametrize(
    "argv",
    [["-version"], ["--version=T"], ["-version", "word", "-x"], ["-version", "-config", "/nonexistent"]],
    ids=" ".join,
)
def test_the_first_line_of_the_version_is_printed_in_the_same_cases(run, candidate, argv):
    go, ours = run("go", argv), run(candidate, argv)
    assert (ours.returncode, ours.stderr) == (go.returncode, go.stderr)
    built_with = re.compile(r"\(built w/[a-z]+[0-9.]+\)\n")
    assert built_with.sub("", go.stdout) == "nsqd v1.3.0 "
    assert built_with.sub("", ours.stdout) == f"nsqd v1.3.0 {own_version_line('nsqd')}\n"


def test_every_flag_of_the_go_daemon_exists_with_its_type_and_default(run, candidate):
    go, ours = (flag_table(run(implementation, ["-h"]).stderr) for implementation in ("go", candidate))
    assert len(go) > 50
    del go["tls-min-version"]  # TLS 1.2 by default here: docs/decisions/0004-differences-from-go-nsq.md
    assert {name: ours.get(name) for name in go} == go


_FLAG = re.compile(r"^  -(\S+)(?: (\S+))?\n    \t(.*)$", re.MULTILINE)
_DEFAULT = re.compile(r" \(default ((?:(?! \(default ).)*)\)$")


def flag_table(usage: str) -> dict[str, tuple[str, str]]:
    """Return the placeholder and the default of every flag in a usage text."""
    table = {}
    for name, placeholder, text in _FLAG.findall(usage):
        default = _DEFAULT.search(text)
        # This text is part of the description of a flag, not its default.
        shown = default.group(1) if default and default.group(1) != "0, i.e., unlimited" else ""
        table[name] = (placeholder, shown)
    return table
