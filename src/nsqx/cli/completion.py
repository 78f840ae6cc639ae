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
    local line last=${COMP_WORDS[COMP_CWORD]#[\\"\\']} IFS=$'\\n'
    local current="$last"
    [ "$current" = "=" ] && current=""
    COMPREPLY=()
    while read -r line; do
        case "$line" in
            :files) compopt -o filenames; COMPREPLY=($(compgen -f -- "$current")); return ;;
            :dirs) compopt -o filenames; COMPREPLY=($(compgen -d -- "$current")); return ;;
        esac
        COMPREPLY+=("${line%%$'\\t'*}")
    done < <(nsqx __complete bash "${COMP_WORDS[@]:0:COMP_CWORD}" "$last" 2>/dev/null)
    case "${COMPREPLY[0]}" in *[=/]) compopt -o nospace ;; esac
}

complete -F _nsqx PROGRAMS
"""

_ZSH = """\
#compdef PROGRAMS

_nsqx() {
    local -a lines values open
    local last line name about
    last=${(Q)${words[CURRENT]#[\\"\\']}}
    lines=("${(@f)$(nsqx __complete zsh "${(@Q)words[1,CURRENT-1]}" "$last" 2>/dev/null)}")
    case "$lines[1]" in
        :files) compset -P 1 '*='; _files; return ;;
        :dirs) compset -P 1 '*='; _files -/; return ;;
    esac
    for line in $lines; do
        [[ -n $line ]] || continue
        name=${${line%%$'\\t'*}//:/\\\\:}
        about=""
        [[ $line == *$'\\t'* ]] && about=":${line#*$'\\t'}"
        # A flag that needs a value and a topic that needs a channel are not followed by a space.
        if [[ $name == *[=/] ]]; then
            open+=("$name$about")
        else
            values+=("$name$about")
        fi
    done
    _describe -t values value values
    _describe -t open value open -S ''
}

# As a file of $fpath, this is the body of a function that is called for the first completion.
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _nsqx "$@"
else
    compdef _nsqx PROGRAMS
fi
"""

_FISH = """\
function __nsqx_complete
    set -l current (commandline -ct | string replace -r '^["\\']' '' | string unescape)
    set -l lines (nsqx __complete fish (commandline -opc) "$current" 2>/dev/null)
    # Functions of fish complete a path, but not one after a flag and an equals sign.
    set -l path (string replace -r '^--[^=]+=' '' -- "$current")
    set -l flag (string match -r '^--[^=]+=' -- "$current")
    switch "$lines[1]"
        case :files
            set lines "$flag"(__fish_complete_path "$path")
        case :dirs
            set lines "$flag"(__fish_complete_directories "$path")
    end
    for line in $lines
        printf '%s\\n' "$line"
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
