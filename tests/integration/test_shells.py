"""Completion in real shells: words are typed on a terminal, TAB completes them, and the command that runs is noted."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from daemons import start_nsqd
from terminal import run_on_terminal

# Each prompt has a number, so that a line is typed only after the command before it has ended.
BASH = """\
n=0
PROMPT_COMMAND='n=$((n + 1))'
PS1='<$n> '
eval "$(nsqx completion bash)"
"""
ZSH = """\
n=0
precmd() { n=$((n + 1)) }
setopt promptsubst
PS1='<$n> '
autoload -U compinit
compinit -u -D
eval "$(nsqx completion zsh)"
"""
ZSH_FPATH = """\
nsqx completion zsh > "$ZDOTDIR/functions/_nsqx"
fpath=("$ZDOTDIR/functions" $fpath)
""" + ZSH.replace('eval "$(nsqx completion zsh)"\n', "")
FISH = """\
set -g n 0
function number --on-event fish_prompt
    set -g n (math $n + 1)
end
function fish_prompt
    echo "<$n> "
end
nsqx completion fish | source
"""
SHELLS = {
    "bash": (".bashrc", BASH, ["bash", "--rcfile", "{home}/.bashrc", "-i"]),
    "zsh": (".zshrc", ZSH, ["zsh", "-d", "-i"]),
    "zsh, from fpath": (".zshrc", ZSH_FPATH, ["zsh", "-d", "-i"]),
    "fish": ("init.fish", FISH, ["fish", "--no-config", "-i", "-C", "source {home}/init.fish"]),
}
# Notes its arguments, except for the calls that completion itself makes.
PROGRAM = """\
#!/bin/sh
case $1 in
    __complete | completion) exec {python} -m nsqx.cli.main "$@" ;;
esac
printf '%s\\n' "${{0##*/}} $*" >> {home}/ran
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_words(shell: str, tmp_path: Path) -> None:
    file, setup, command = SHELLS[shell]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed (Debian: {command[0]})")
    for directory in ("bin", "functions", "data"):
        (tmp_path / directory).mkdir()
    (tmp_path / file).write_text(setup)
    (tmp_path / "my settings.toml").write_text("")
    for name in ("nsqx", "nsqd"):
        program = tmp_path / "bin" / name
        program.write_text(PROGRAM.format(python=sys.executable, home=tmp_path))
        program.chmod(0o755)
    typed = {
        "nsqx pau\t": "nsqx pause",
        "nsqx pub us\t": "nsqx pub users#ephemeral",
        'nsqx pub "us\t': "nsqx pub users#ephemeral",
        "nsqx move us\tb\torders\t": "nsqx move users#ephemeral/billing orders",
        "nsqx peek orders \t": "nsqx peek orders audit",
        "nsqx top --so\td\t": "nsqx top --sort=depth",
        f"nsqd --config={tmp_path}/my\t": f"nsqd --config={tmp_path}/my settings.toml",
        f"nsqx log verify {tmp_path}/da\t": f"nsqx log verify {tmp_path}/data",
    }
    answers = {f"<{number}> ": f"{words}\n" for number, words in enumerate((*typed, "exit"), 1)}
    with start_nsqd("nsqx") as nsqd:
        for topic, channel in (("users#ephemeral", "billing"), ("orders", "audit")):
            nsqd.post("/topic/create", topic=topic)
            nsqd.post("/channel/create", topic=topic, channel=channel)
        settings = {
            "HOME": str(tmp_path),
            "ZDOTDIR": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path),
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "NSQX_CONTEXT": "test",
        }
        (tmp_path / "nsqx").mkdir()
        context = f'[context.test]\nnsqd_http_addresses = ["{nsqd.http_address}"]\n'
        (tmp_path / "nsqx" / "contexts.toml").write_text(context)
        # fish needs a controlling terminal.
        words = ["setsid", "--ctty", "env", *(f"{name}={value}" for name, value in settings.items()), *command]
        _, shown = run_on_terminal([word.format(home=tmp_path) for word in words], 200, answers=answers)
    # Shells differ in the slash after a directory.
    ran = [line.rstrip("/") for line in (tmp_path / "ran").read_text().splitlines()]
    assert ran == list(typed.values()), shown
