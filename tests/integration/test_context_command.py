"""nsqx context, and the commands that use contexts; completion in a real bash."""

import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_nsqx_commands import nsqx

from daemons import NSQX, Daemon, start_nsqd
from terminal import run_on_terminal


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokens")
    (directory / "all").write_text("secret-token\n")
    return directory


@pytest.fixture(scope="module")
def nsqd(tokens: Path) -> Iterator[Daemon]:
    """An nsqd that needs a token for everything."""
    names = ("read", "admin", "publish", "consume")
    flags = [f"--http-{name}-token-file={tokens / 'all'}" for name in names]
    with start_nsqd("nsqx", *flags) as daemon:
        yield daemon


@pytest.fixture
def run(tmp_path: Path):
    """Run nsqx with a configuration directory of its own."""
    return lambda *words, **environment: nsqx(*words, **{"XDG_CONFIG_HOME": str(tmp_path), **environment})


def test_contexts_are_added_used_listed_shown_and_removed(run, tmp_path: Path, tokens: Path) -> None:
    token = f"--nsqd-http-token-file={tokens / 'all'}"
    code, output, errors = run("context", "add", "prod", "--lookupd-http-address=a:4161", token)
    assert (code, output, errors) == (0, "context prod added, the current one\n", "")
    path = tmp_path / "nsqx" / "contexts.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "secret-token" in path.read_text()
    code, output, _ = run("context", "add", "dev", "--nsqd-tcp-address=b:1", "--nsqd-tcp-address=c:2")
    assert (code, output) == (0, "context dev added; nsqx context use dev chooses it\n")
    code, output, _ = run("context", "ls")
    assert [line.split() for line in output.splitlines()[1:]] == [["prod", "yes", "a:4161"], ["dev", "-", "b:1", "c:2"]]
    assert run("context", "use", "dev")[:2] == (0, "context dev is the current one\n")
    code, output, _ = run("context", "ls", "--json")
    assert [json.loads(line)["current"] for line in output.splitlines()] == [False, True]
    code, output, _ = run("context", "show", "prod")
    assert "nsqd_http_token: (set)" in output.splitlines()
    assert "secret" not in output
    assert json.loads(run("context", "show", "--json")[1])["nsqd_tcp_addresses"] == ["b:1", "c:2"]
    assert run("context", "rm", "dev")[:2] == (0, "context dev removed; there is no current context now\n")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 2, "a command is missing: use add, use, ls, show or rm"),
        (["ad"], 2, 'unknown command "ad"; did you mean add?'),
        (["add"], 2, "NAME is missing"),
        (["add", "a b", "--nsqd-tcp-address=x:1"], 1, "invalid context name 'a b': use 1 to 64 of"),
        (["add", "new"], 1, "an address is required"),
        (["add", "old", "--nsqd-tcp-address=x:1"], 1, "context old exists: --replace replaces it"),
        (
            ["add", "new", "--nsqd-tcp-address=x:1", "--tls-cert=c"],
            1,
            "--tls-cert and --tls-key must be given together",
        ),
        (["add", "n", "--nsqd-tcp-address=x:1", "--auth-secret-file=/no"], 1, "--auth-secret-file /no: No such file"),
        (["add", "n", "--nsqd-tcp-address=x\n"], 1, "it has control characters"),
        (["use", "odl"], 1, 'no context is named "odl"; did you mean old?'),
        (["rm", "none"], 1, 'no context is named "none"; the contexts are old'),
        (["ls", "old"], 1, "nsqx context show old shows one"),
    ],
)
def test_mistakes_are_named(run, words: list[str], code: int, text: str) -> None:
    assert run("context", "add", "old", "--nsqd-tcp-address=x:1")[0] == 0
    ended = run("context", *words)
    assert (ended[0], ended[1]) == (code, "")
    assert text in ended[2]


def test_every_command_uses_the_context(run, nsqd: Daemon, tokens: Path) -> None:
    token = f"--nsqd-http-token-file={tokens / 'all'}"
    assert run("context", "add", "one", f"--nsqd-http-address={nsqd.http_address}", token)[0] == 0
    assert run("context", "add", "other", "--nsqd-http-address=127.0.0.1:1")[0] == 0
    assert run("create", "ctx", "c")[0] == 0
    # pub and sub find the TCP port through the HTTP address of the context.
    code, _, errors = run("pub", "ctx", "hello")
    assert (code, "published 1 message" in errors) == (0, True)
    code, output, _ = run("peek", "ctx", "c")
    assert (code, "hello" in output) == (0, True)
    assert run("sub", "ctx", "c", "--count=1")[:2] == (0, "hello\n")
    for command in ("topics", "stats", "channels", "nodes", "clients", "dlq ls", "config show ctx", "drain --status"):
        code, _, errors = run(*command.split())
        assert (code, errors) == (0, ""), command
    assert run("top", "--count=1")[0] == 0
    assert run("move", "ctx/c", "ctx2", "--dry-run")[0] == 0
    # Others are chosen by the flag or the variable; addresses in flags get no token of the current context.
    assert "127.0.0.1:1: connection refused" in run("topics", "--context=other")[2]
    assert "127.0.0.1:1: connection refused" in run("topics", NSQX_CONTEXT="other")[2]
    code, _, errors = run("topics", f"--nsqd-http-address={nsqd.http_address}")
    assert (code, "401" in errors) == (1, True)
    assert run("topics", f"--nsqd-http-address={nsqd.http_address}", "--context=one")[0] == 0
    code, _, errors = run("topics", "--context=on")
    assert (code, 'no context is named "on"; did you mean one?' in errors) == (1, True)


def test_an_error_on_a_terminal_has_no_time(tmp_path: Path) -> None:
    command = ["env", f"XDG_CONFIG_HOME={tmp_path}", *NSQX, "topics", "--context=none"]
    code, text = run_on_terminal(command, 80)
    assert code == 1
    assert text == 'nsqx topics: no context is named "none"; nsqx context add adds one\n'


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash missing: install it")
def test_bash_completes_topics_and_channels_of_the_cluster(run, tmp_path: Path, nsqd: Daemon, tokens: Path) -> None:
    token = f"--nsqd-http-token-file={tokens / 'all'}"
    assert run("context", "add", "one", f"--nsqd-http-address={nsqd.http_address}", token)[0] == 0
    assert run("create", "complete.me", "billing")[0] == 0
    script = tmp_path / "completion.bash"
    script.write_text(run("completion", "bash")[1])

    def completed(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        lines = [
            f"source {script}",
            "compopt() { :; }",
            f'nsqx() {{ {sys.executable} -m nsqx.cli.main "$@"; }}',
            f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _nsqx",
            "printf '%s\\n' \"${COMPREPLY[@]}\"",
        ]
        command = ["env", f"XDG_CONFIG_HOME={tmp_path}", "bash", "-c", "\n".join(lines)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert completed("nsqx", "pause", "comp") == ["complete.me"]
    assert completed("nsqx", "pause", "complete.me", "") == ["billing"]
    assert completed("nsqx", "move", "complete.me/b") == ["complete.me/billing"]
    assert completed("nsqx", "pub", "--context", "=", "o") == ["one"]


def test_completion_of_an_unreachable_cluster_ends_soon(run) -> None:
    code, output, errors = run("__complete", "bash", "nsqx", "pub", "", NSQX_NSQD="127.0.0.1:1")
    assert (code, output, errors) == (0, "", "")


def test_pub_and_sub_work_with_tcp_addresses_of_a_context(run, nsqd: Daemon) -> None:
    make_token = {"NSQX_NSQD_HTTP_TOKEN": "secret-token"}
    assert run("context", "add", "tcp", f"--nsqd-tcp-address={nsqd.tcp_address}")[0] == 0
    assert run("pub", "tcp_topic", "hello", **make_token)[0] == 0
    assert run("sub", "tcp_topic", "c", "--count=1", **make_token)[:2] == (0, "hello\n")
