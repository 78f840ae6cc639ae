"""The completion scripts offer commands, flags and topics."""

import shutil
import subprocess

import pytest

from nsqx.cli.commands import COMMANDS
from nsqx.cli.completion import bash_script, flag_tables, main, zsh_script

BASH = shutil.which("bash")


def completions_of(*words: str) -> list[str]:
    """Return the completions that bash offers for the last word."""
    assert BASH
    arguments = " ".join(f"'{word}'" for word in words)
    request = f"COMP_WORDS=({arguments}); COMP_CWORD={len(words) - 1}; _nsqx; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    # compopt fails outside of a completion, so a no-op replaces it.
    script = f"{bash_script(flag_tables())}\ncompopt() {{ :; }}\nnsqx() {{ echo topic_a topic_b; }}\n{request}"
    result = subprocess.run([BASH, "-c", script], capture_output=True, text=True, check=True)
    assert result.stderr == ""
    return result.stdout.split()


@pytest.mark.skipif(BASH is None, reason="bash missing: install it")
def test_bash_completes_commands_flags_and_topics() -> None:
    assert completions_of("nsqx", "nsq_to") == ["nsq_to_file", "nsq_to_http", "nsq_to_nsq"]
    assert completions_of("/usr/bin/nsq_tail", "--max") == ["--max-in-flight="]
    assert completions_of("nsqx", "nsq_to_file", "--skip") == ["--skip-empty-files"]
    assert completions_of("nsqx", "pub", "") == ["topic_a", "topic_b"]
    assert completions_of("nsqx", "peek", "") == completions_of("nsqx", "seek", "") == ["topic_a", "topic_b"]
    assert completions_of("nsqx", "seek", "orders", "billing", "--d") == ["--dry-run"]
    assert completions_of("nsq_tail", "--topic", "=", "topic_b") == ["topic_b"]
    assert completions_of("nsqx", "completion", "z") == ["zsh"]
    assert set(completions_of("nsqx", "log", "")) >= {"ls", "show", "verify", "export"}
    assert completions_of("nsqx", "log", "verify", "/pro") == ["/proc"]
    assert completions_of("nsqx", "doctor", "/pro") == ["/proc"]
    assert completions_of("nsqx", "nothing", "-") == []


def test_every_command_has_a_flag_table() -> None:
    tables = flag_tables()
    assert set(tables) == set(COMMANDS)
    assert [name for name, flags in tables.items() if not flags] == ["completion"]


def test_the_zsh_script_quotes_special_characters() -> None:
    script = zsh_script(flag_tables())
    assert "'*--topic=[nsq topic (may be given multiple times)]:topic:_nsqx_topics'" in script
    assert "'\\''%s'\\'' will be printf replaced" in script
    assert "'1:command:(ls show verify export" in script
    zsh = shutil.which("zsh")
    if zsh is not None:
        subprocess.run([zsh, "-n"], input=script, text=True, check=True)


def test_the_command_prints_a_script_or_its_usage(capsys) -> None:
    assert main(["bash"]) == 0
    assert "complete -F _nsqx nsqx nsqadmin nsqd" in capsys.readouterr().out
    assert main(["fish"]) == 2
    assert main(["--help"]) == 0
    assert "usage: nsqx completion bash|zsh" in capsys.readouterr().err
