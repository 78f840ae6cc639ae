"""nsqx completion: prints a script for shell completion, which asks nsqx itself for the completions.

eval "$(nsqx completion bash)"
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nsqx.cli.command_line import read_words
from nsqx.cli.commands import COMMANDS
from nsqx.flags import UsageError

PROGRAM = "nsqx completion"
VERBS = ("bash", "zsh", "fish")

_BASH = """\
_nsqx() {
    local line current="${COMP_WORDS[COMP_CWORD]}"
    [ "$current" = "=" ] && current=""
    COMPREPLY=()
    while IFS= read -r line; do
        case "$line" in
            :files) COMPREPLY=($(compgen -f -- "$current")); return ;;
            :dirs) COMPREPLY=($(compgen -d -- "$current")); return ;;
        esac
        COMPREPLY+=("${line%%$'\\t'*}")
    done < <(nsqx __complete bash "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null)
    case "${COMPREPLY[0]}" in *=) compopt -o nospace ;; esac
}

complete -F _nsqx PROGRAMS
"""

_ZSH = """\
#compdef PROGRAMS

_nsqx() {
    local -a lines values flags
    local line name
    lines=("${(@f)$(nsqx __complete zsh "${(@)words[1,CURRENT]}" 2>/dev/null)}")
    case "$lines[1]" in
        :files) compset -P 1 '*='; _files; return ;;
        :dirs) compset -P 1 '*='; _files -/; return ;;
    esac
    for line in $lines; do
        [[ -n $line ]] || continue
        name=${${line%%$'\\t'*}//:/\\\\:}
        if [[ $name == *= ]]; then
            flags+=("$name:${line#*$'\\t'}")
        else
            values+=("$name:${line#*$'\\t'}")
        fi
    done
    _describe -t values value values
    _describe -t flags flag flags -S ''
}

compdef _nsqx PROGRAMS
"""

_FISH = """\
function __nsqx_complete
    set -l current (commandline -ct)
    set -l lines (nsqx __complete fish (commandline -opc) "$current" 2>/dev/null)
    switch "$lines[1]"
        case :files
            __fish_complete_path "$current"
        case :dirs
            __fish_complete_directories "$current"
        case '*'
            printf '%s\\n' $lines
    end
end

for program in PROGRAMS
    complete -c $program -f -a '(__nsqx_complete)'
end
"""


def script(shell: str) -> str:
    """Return the script for a shell."""
    programs = ["nsqx", *(name for name, command in COMMANDS.items() if command.is_program)]
    return {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell].replace("PROGRAMS", " ".join(programs))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the script; return the exit code."""
    title = f"{PROGRAM} {'|'.join(VERBS)}"
    try:
        _, words = read_words((), sys.argv[1:] if argv is None else argv, title, most=1, verbs=VERBS)
    except UsageError as error:
        return error.show()
    sys.stdout.write(script(words[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
