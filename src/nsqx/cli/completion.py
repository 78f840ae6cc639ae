"""nsqx completion: prints a script for shell completion of commands and flags, generated from the tables of flags.

eval "$(nsqx completion bash)"
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from nsqx.cli.commands import COMMANDS

if TYPE_CHECKING:
    from nsqx.flags import Flag

_WITH_TOPIC = ("pub", "sub", "stats", "peek", "seek")
_WITH_DATA_PATH = ("doctor", "log")
VERBS = ("bash", "zsh")


def flag_tables() -> dict[str, Sequence[Flag]]:
    """Return the flags of every command."""
    return {name: command.flags for name, command in COMMANDS.items()}


def bash_script(tables: Mapping[str, Sequence[Flag]]) -> str:
    """Return the script for bash."""
    cases = "\n".join(
        f"        {name}) echo '{' '.join(_bash_flag(flag) for flag in flags)}' ;;" for name, flags in tables.items()
    )
    verbs = "\n".join(
        f"                        {name}) choices='{' '.join(verbs)}' ;;" for name, verbs in _verbs(tables).items()
    )
    programs = _programs(tables)
    return _BASH.format(
        cases=cases,
        commands=" ".join([*tables, "help", "version"]),
        with_topic="|".join(_WITH_TOPIC),
        verbs=verbs,
        with_data_path="|".join(_WITH_DATA_PATH),
        programs=" ".join(["nsqx", *programs]),
    )


def _verbs(names: Iterable[str]) -> dict[str, Sequence[str]]:
    """Return the verbs of the commands that have some."""
    found = {name: COMMANDS[name].verbs for name in names}
    return {name: verbs for name, verbs in found.items() if verbs}


def _programs(names: Iterable[str]) -> list[str]:
    """Return the commands that are also installed under their own names."""
    return [name for name in names if COMMANDS[name].is_program]


def _bash_flag(flag: Flag) -> str:
    return f"--{flag.name}" if flag.kind.is_switch else f"--{flag.name}="


# bash splits a word --flag=value into the name, the = and the value.
_BASH = """\
_nsqx_flags() {{
    case "$1" in
{cases}
    esac
}}

_nsqx() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[0]##*/}}" first=1 choices=""
    COMPREPLY=()
    if [ "$command" = nsqx ]; then
        if [ "$COMP_CWORD" -eq 1 ]; then
            COMPREPLY=($(compgen -W "{commands}" -- "$current"))
            return
        fi
        command="${{COMP_WORDS[1]}}"
        first=2
    fi
    [ "$current" = "=" ] && current=""
    [ "$before" = "=" ] && before="${{COMP_WORDS[COMP_CWORD-2]}}"
    case "$before" in
        -topic|--topic) choices="$(nsqx topics 2>/dev/null)" ;;
        -*-dir|-*-path|-*-file|-config|--config|-*-cert|-*-key) COMPREPLY=($(compgen -f -- "$current")); return ;;
    esac
    if [ -z "$choices" ]; then
        case "$current" in
            -*) choices="$(_nsqx_flags "$command")" ;;
            *)
                if [ "$COMP_CWORD" -eq "$first" ]; then
                    case "$command" in
                        {with_topic}) choices="$(nsqx topics 2>/dev/null)" ;;
{verbs}
                    esac
                fi
                if [ -z "$choices" ]; then
                    case "$command" in
                        {with_data_path}) COMPREPLY=($(compgen -d -- "$current")); return ;;
                    esac
                fi ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$choices" -- "$current"))
    case "${{COMPREPLY[0]}}" in *=) compopt -o nospace ;; esac
}}

complete -F _nsqx {programs}
"""


def zsh_script(tables: Mapping[str, Sequence[Flag]]) -> str:
    """Return the script for zsh, with the help text of every flag."""
    cases = "\n".join(
        f"        {name}) _arguments {' '.join([*map(_zsh_flag, flags), *_zsh_words(name)])} ;;"
        for name, flags in tables.items()
    )
    described = " ".join(_quoted(f"{name}:{_zsh_text(COMMANDS[name].about)}") for name in tables)
    programs = _programs(tables)
    return _ZSH.format(cases=cases, described=described, programs=" ".join(["nsqx", *programs]))


def _zsh_flag(flag: Flag) -> str:
    help_text = _zsh_text(flag.help.replace("`", ""))
    if flag.kind.is_switch:
        return _quoted(f"--{flag.name}[{help_text}]")
    value = ":topic:_nsqx_topics" if flag.name == "topic" else f":{flag.kind.placeholder}:_files"
    return _quoted(f"*--{flag.name}=[{help_text}]{value}")


def _zsh_words(command: str) -> list[str]:
    if command in _WITH_TOPIC:
        return ["'1:topic:_nsqx_topics'"]
    verbs = COMMANDS[command].verbs
    words = [f"'1:command:({' '.join(verbs)})'"] if verbs else []
    return [*words, "'*:data path:_directories'"] if command in _WITH_DATA_PATH else words


def _zsh_text(text: str) -> str:
    """Escape brackets and colons, which are special in a description."""
    for character in "\\[]:":
        text = text.replace(character, f"\\{character}")
    return text.replace("\n", " ")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


_ZSH = """\
#compdef {programs}

_nsqx_topics() {{
    local -a topics
    topics=(${{(f)"$(nsqx topics 2>/dev/null)"}})
    compadd -a topics
}}

_nsqx_flags() {{
    case "$1" in
{cases}
    esac
}}

_nsqx() {{
    local -a commands
    if [[ $service != nsqx ]]; then
        _nsqx_flags $service
    elif (( CURRENT == 2 )); then
        commands=({described})
        _describe command commands
    else
        shift words
        (( CURRENT-- ))
        _nsqx_flags $words[1]
    fi
}}

compdef _nsqx {programs}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the script; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if len(words) != 1 or words[0] not in VERBS:
        wants_help = words in (["-h"], ["-help"], ["--help"])
        print(f"usage: nsqx completion {'|'.join(VERBS)}", file=sys.stderr)
        print('in the current shell: eval "$(nsqx completion bash)"', file=sys.stderr)
        return 0 if wants_help else 2
    script = bash_script if words[0] == "bash" else zsh_script
    sys.stdout.write(script(flag_tables()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
