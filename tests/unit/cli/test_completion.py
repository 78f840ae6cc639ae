"""The completions of command lines, and the scripts that ask for them."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from nsqx.cli import complete
from nsqx.cli.commands import COMMANDS
from nsqx.cli.completion import VERBS, main, script

BASH = shutil.which("bash")
NAMES = {"": ["orders", "orders.audit", "users"], "orders": ["audit", "billing"]}


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Answer with NAMES instead of asking a cluster."""

    async def ask(_cluster: object, topic: str) -> list[str]:
        await asyncio.sleep(0)
        return NAMES.get(topic, [])

    monkeypatch.setattr(complete, "_ask", ask)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def completions(*words: str) -> list[str]:
    return [each.text for each in complete.completions(words)]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["nsqx", "nsq_to"], ["nsq_to_file", "nsq_to_http", "nsq_to_nsq"]),
        (["nsqx", "hel"], ["help"]),
        (["nsqx", "help", "se"], ["seek"]),
        (["/usr/bin/nsq_tail", "--max"], ["--max-in-flight="]),
        (["nsqx", "nsq_to_file", "--skip"], ["--skip-empty-files"]),
        (["nsqx", "pub", "o"], ["orders", "orders.audit"]),
        (["nsqx", "peek", "orders", ""], ["audit", "billing"]),
        (["nsqx", "pause", "--node=x:1", "orders", "b"], ["billing"]),
        (["nsqx", "pause", "--node", "x:1", "orders", "b"], ["billing"]),
        (["nsqx", "config", "show", "orders", "b"], ["billing"]),
        (["nsqx", "config", "s"], ["show", "set"]),
        (["nsqx", "move", "orders/"], ["orders/audit", "orders/billing"]),
        (["nsqx", "move", "orders/billing", "u"], ["users"]),
        (["nsqx", "seek", "orders", "billing", "--d"], ["--dry-run"]),
        (["nsqx", "dlq", "show", "orders", "--channel=b"], ["--channel=billing"]),
        (["nsqx", "dlq", "show", "orders", "--channel", "=", "b"], ["--channel=billing"]),
        (["nsq_tail", "--topic", "=", "us"], ["--topic=users"]),
        (["nsqx", "top", "--sort=d"], ["--sort=depth"]),
        (["nsqx", "completion", "z"], ["zsh"]),
        (["nsqx", "log", "v"], ["verify"]),
        (["nsqx", "log", "verify", "/pro"], [":dirs"]),
        (["nsqx", "doctor", ""], [":dirs"]),
        (["nsqd", "--config="], [":files"]),
        (["nsqx", "pipeline", "run", ""], [":files"]),
        (["nsqx", "nothing", "-"], []),
        (["nsqx", "undrain", ""], []),
        (["nsqx"], []),
    ],
)
def test_completions(words: list[str], found: list[str]) -> None:
    assert completions(*words) == found


def test_contexts_are_completed(tmp_path: Path) -> None:
    (tmp_path / "nsqx").mkdir()
    (tmp_path / "nsqx" / "contexts.toml").write_text('[context.prod]\nnsqd_tcp_addresses = ["a:1"]\n')
    assert completions("nsqx", "topics", "--context=p") == ["--context=prod"]
    assert completions("nsqx", "context", "use", "") == ["prod"]


def test_bash_gets_only_what_follows_the_equals_sign(capsys: pytest.CaptureFixture[str]) -> None:
    assert complete.main(["bash", "nsqx", "top", "--sort", "=", "d"]) == 0
    assert complete.main(["zsh", "nsqx", "top", "--sort=d"]) == 0
    assert complete.main(["bash", "nsqd", "--config", "="]) == 0
    assert capsys.readouterr().out == "depth\n--sort=depth\n:files\n"


def test_failures_print_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(_cluster: object, _topic: str) -> list[str]:
        raise TimeoutError

    monkeypatch.setattr(complete, "_ask", ask)
    assert complete.main(["bash", "nsqx", "pub", ""]) == 0
    assert complete.main(["bash", "nsqx", "pause", "--no-such-flag", ""]) == 0
    assert complete.main(["bash", "nsqx", "topics", "--context=none", "x", ""]) == 0
    assert complete.main(["bash"]) == 0
    assert capsys.readouterr() == ("", "")


def test_every_command_that_takes_arguments_has_completions() -> None:
    assert set(complete._ARGUMENTS) <= set(COMMANDS)
    with_verbs = {name for name, command in COMMANDS.items() if command.verbs}
    assert {name for name, kinds in complete._ARGUMENTS.items() if kinds[0] == "verb"} == with_verbs


def in_bash(answer: str, *words: str) -> list[str]:
    """Return the completions that the script offers for the last word if nsqx prints ``answer``."""
    assert BASH
    arguments = " ".join(f"'{word}'" for word in words)
    request = f"COMP_WORDS=({arguments}); COMP_CWORD={len(words) - 1}; _nsqx; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    # compopt fails outside of a completion, so a no-op replaces it.
    lines = f"{script('bash')}\ncompopt() {{ :; }}\nnsqx() {{ printf '{answer}'; }}\n{request}"
    result = subprocess.run([BASH, "-c", lines], capture_output=True, text=True, check=True)
    assert result.stderr == ""
    return result.stdout.split()


@pytest.mark.skipif(BASH is None, reason="bash missing: install it")
def test_the_script_of_bash_offers_what_nsqx_prints() -> None:
    assert in_bash("orders\\ta topic\\nusers\\n", "nsqx", "pub", "") == ["orders", "users"]
    assert in_bash(":dirs\\n", "nsqx", "doctor", "/pro") == ["/proc"]
    assert in_bash(":files\\n", "nsqd", "--config", "=") != []
    assert in_bash("", "nsqx", "pub", "") == []


@pytest.mark.parametrize("shell", VERBS)
def test_the_scripts_are_valid_and_name_every_program(shell: str) -> None:
    text = script(shell)
    assert "nsqx nsqd nsqlookupd nsqadmin" in text
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=text, text=True, check=True)


def test_the_command_prints_a_script_or_names_the_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in VERBS:
        assert main([shell]) == 0
        assert capsys.readouterr().out == script(shell)
    assert main(["tcsh"]) == 2
    assert 'unknown command "tcsh"' in capsys.readouterr().err
    assert main([]) == 2
    assert main(["--help"]) == 0
