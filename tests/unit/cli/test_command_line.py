"""The command line of the nsqx commands: flags and words in any order, mistakes that are named, and help texts."""

import pytest

from nsqx.cli.command_line import read_words
from nsqx.cli.commands import COMMANDS
from nsqx.cli.did_you_mean import did_you_mean
from nsqx.cli.examples import EXAMPLES
from nsqx.cli.main import main
from nsqx.flags import BOOL, DURATION, FLOAT, INT, STRING, STRINGS, Flag, UsageError

FLAGS = (
    Flag("n", INT, 0, "a number"),
    Flag("l", BOOL, False, "a switch"),
    Flag("address", STRINGS, [], "a list"),
    Flag("interval", DURATION, 0, "a time"),
    Flag("rate", FLOAT, 0.0, "a rate"),
    Flag("to", STRING, "", "the `position`"),
)
TITLE = "nsqx seek TOPIC [CHANNEL]"


def mistake(*argv: str, least: int = 0, most: int | None = None, verbs: tuple[str, ...] = ()) -> str:
    """Return the first line of the usage error, without the command."""
    with pytest.raises(UsageError) as caught:
        read_words(FLAGS, argv, TITLE, least=least, most=most, verbs=verbs)
    assert caught.value.exit_code == 2
    first, usage, where = str(caught.value).splitlines()
    assert (usage, where) == (f"usage: {TITLE} [FLAGS]", "nsqx seek --help lists the flags")
    return first.removeprefix("nsqx seek: ")


def test_flags_may_stand_between_words() -> None:
    argv = ["one", "--n=2", "two", "--address", "x", "-l", "three", "--address=y", "--to", "-1h"]
    values, words = read_words(FLAGS, argv, TITLE)
    assert words == ["one", "two", "three"]
    assert values == {"n": 2, "l": True, "address": ["x", "y"], "interval": 0, "rate": 0.0, "to": "-1h"}


def test_all_arguments_after_two_dashes_are_words() -> None:
    values, words = read_words(FLAGS, ["one", "-n", "2", "--", "-n", "--", "-"], TITLE)
    assert (values["n"], words) == (2, ["one", "-n", "--", "-"])
    assert read_words(FLAGS, ["-", "x"], TITLE)[1] == ["-", "x"]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--intervall=1s"], "unknown flag --intervall; did you mean --interval?"),
        (["--nothing-like-it"], "unknown flag --nothing-like-it"),
        (["-x"], "unknown flag -x"),
        (["-i"], "unknown flag -i"),
        (["--n=x"], 'invalid -n "x": use a whole number'),
        (["--n=99999999999999999999"], 'invalid -n "99999999999999999999": value out of range'),
        (["--rate=x"], 'invalid --rate "x": use a number'),
        (["--interval", "soon"], 'invalid --interval "soon": use a duration such as 30s, 5m or 1h30m'),
        (["-l=maybe"], 'invalid -l "maybe": use true or false'),
        (["--to"], "--to needs a value: --to=POSITION"),
        (["--to", "--n=1"], "--to needs a value: --to=POSITION"),
    ],
)
def test_a_wrong_flag_is_named(argv: list[str], text: str) -> None:
    assert mistake(*argv) == text


def test_a_wrong_number_of_words_is_named() -> None:
    assert mistake(least=1) == "TOPIC is missing"
    assert mistake("t", least=2) == "CHANNEL is missing"
    assert mistake("t", "c", "x", most=2) == 'unexpected argument "x"'


def test_a_wrong_verb_is_named() -> None:
    verbs = ("ls", "show", "purge")
    assert mistake(verbs=verbs) == "a command is missing: use ls, show or purge"
    assert mistake("shwo", verbs=verbs) == 'unknown command "shwo"; did you mean show? (use ls, show or purge)'
    assert read_words(FLAGS, ["show"], TITLE, verbs=verbs)[1] == ["show"]


def test_help_has_examples_and_flags() -> None:
    with pytest.raises(UsageError) as caught:
        read_words(FLAGS, ["t", "--help"], TITLE)
    assert caught.value.exit_code == 0
    lines = str(caught.value).splitlines()
    assert lines[0] == "nsqx seek: move a channel to an offset or a time"
    assert lines[2] == f"usage: {TITLE} [FLAGS]"
    assert any(line.startswith("  nsqx seek orders billing --to=-1h --dry-run  # ") for line in lines)
    assert "  --to=POSITION               the position" in lines
    assert "  -l                          a switch" in lines


@pytest.mark.parametrize(
    ("word", "known", "text"),
    [
        ("ordres", ("audit", "orders"), "; did you mean orders?"),
        ("ORDERS", ("audit", "orders"), "; did you mean orders?"),
        ("ord", ("audit", "orders.created"), "; did you mean orders.created?"),
        ("x", ("audit", "orders"), ""),
        ("", ("audit",), ""),
    ],
)
def test_the_most_similar_name_is_suggested(word: str, known: tuple[str, ...], text: str) -> None:
    assert did_you_mean(word, known) == text


def test_every_example_is_of_a_command_and_has_valid_flags() -> None:
    own = {name for name, command in COMMANDS.items() if not command.is_program and not command.daemon}
    assert own <= set(EXAMPLES)
    for name in own:
        known = {f"--{flag.name}" for flag in COMMANDS[name].flags}
        for line in EXAMPLES[name]:
            assert f"nsqx {name}" in line or f"--{name}=" in line
            if line.startswith(f"nsqx {name}"):
                used = {word.partition("=")[0] for word in line.split() if word.startswith("--")}
                assert used <= known, line


def test_the_list_of_commands_is_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    groups = [command.group for command in COMMANDS.values() if command.group]
    assert len(groups) == len(set(groups))
    assert next(iter(COMMANDS.values())).group
    for heading in groups:
        assert f"\n{heading}\n  " in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_help_of_a_command_is_that_of_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "seek"]) == 0
    by_help = capsys.readouterr()
    assert main(["seek", "--help"]) == 0
    assert (by_help.out, by_help.err) == (capsys.readouterr().out, "")


def test_an_unknown_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stat"]) == main(["help", "stat"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (
        "",
        'nsqx: unknown command "stat"; did you mean stats?\nnsqx help lists the commands\n' * 2,
    )
