import shutil
import subprocess

import pytest

from nsqx.cli.completion import bash_script, flag_tables, main, zsh_script
from nsqx.cli.main import COMMANDS

BASH = shutil.which("bash")


def completed(*words: str) -> list[str]:
    """What bash offers for the last word."""
    assert BASH
    arguments = " ".join(f"'{word}'" for word in words)
    asked = f"COMP_WORDS=({arguments}); COMP_CWORD={len(words) - 1}; _nsqx; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    # Outside of a completion there is nothing for compopt to change.
    script = f"{bash_script(flag_tables())}\ncompopt() {{ :; }}\nnsqx() {{ echo topic_a topic_b; }}\n{asked}"
    done = subprocess.run([BASH, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(BASH is None, reason="bash missing: install it")
def test_bash_completes_commands_flags_and_topics() -> None:
    assert completed("nsqx", "nsq_to") == ["nsq_to_file", "nsq_to_http", "nsq_to_nsq"]
    assert completed("/usr/bin/nsq_tail", "--max") == ["--max-in-flight="]
    assert completed("nsqx", "nsq_to_file", "--skip") == ["--skip-empty-files"]
    assert completed("nsqx", "pub", "") == ["topic_a", "topic_b"]
    assert completed("nsq_tail", "--topic", "=", "topic_b") == ["topic_b"]
    assert completed("nsqx", "completion", "z") == ["zsh"]
    assert completed("nsqx", "nothing", "-") == []


def test_every_command_has_a_table() -> None:
    tables = flag_tables()
    assert set(tables) == set(COMMANDS)
    assert [name for name, flags in tables.items() if not flags] == ["completion"]


def test_zsh_script_quotes_what_has_a_meaning() -> None:
    script = zsh_script(flag_tables())
    assert "'*--topic=[nsq topic (may be given multiple times)]:topic:_nsqx_topics'" in script
    assert "'\\''%s'\\'' will be printf replaced" in script
    zsh = shutil.which("zsh")
    if zsh is not None:
        subprocess.run([zsh, "-n"], input=script, text=True, check=True)


def test_the_command(capsys) -> None:
    assert main(["bash"]) == 0
    assert "complete -F _nsqx nsqx nsqd" in capsys.readouterr().out
    assert main(["fish"]) == 2
    assert main(["--help"]) == 0
    assert "usage: nsqx completion bash|zsh" in capsys.readouterr().err
