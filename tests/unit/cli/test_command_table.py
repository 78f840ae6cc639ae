"""The table of commands agrees with the installed programs, and every entry can be run."""

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from nsqx.cli import commands
from nsqx.cli.commands import COMMANDS
from nsqx.cli.main import main

SCRIPTS = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"]


def test_the_installed_programs_are_nsqx_and_the_programs_of_the_table():
    programs = {name: f"nsqx.cli.commands:{name}" for name, command in COMMANDS.items() if command.is_program}
    assert {"nsqx": "nsqx.cli.main:main", **programs} == SCRIPTS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_its_help(name, capsys):
    assert main([name, "--help"]) == 0
    assert name in "".join(capsys.readouterr())


@pytest.mark.parametrize("entry_point", SCRIPTS.values())
def test_every_entry_point_runs_with_the_arguments_of_the_process(entry_point, capsys, monkeypatch):
    module, _, name = entry_point.partition(":")
    monkeypatch.setattr("sys.argv", ["program", "--help"])
    assert getattr(import_module(module), name)() == 0
    assert "sage" in "".join(capsys.readouterr())


@pytest.mark.parametrize("name", ["up", "auth-server", "unknown"])
def test_other_names_have_no_entry_point(name):
    with pytest.raises(AttributeError, match=name):
        getattr(commands, name)
