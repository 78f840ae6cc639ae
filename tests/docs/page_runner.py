"""Runs the blocks of a page: commands in one directory, daemons in the background, scripts from files.

Owns the directory and the processes of the page. The standard ports must be free, so run_page.py runs the page in a
network namespace.
"""

import ast
import configparser
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from markdown_pages import ROOT, Block, Mark, Page

COMMAND_TIMEOUT_S = 120.0
# For a script that starts Spark on a busy machine.
SLOW_TIMEOUT_S = 400.0
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0

# The output of a daemon that has started, and of `nsqx up` when all daemons have.
_READY = (
    r"(?s)\[(?:nsqadmin|auth-server)\].*HTTP: listening on|TCP: listening on.*HTTP: listening on"
    r"|HTTP: listening on.*TCP: listening on|Ctrl-C stops everything"
)
_SERVES = re.compile(
    r"\s*(?:\S+/)?(?:nsqd|nsqlookupd|nsqadmin|nsqx up|nsqx auth-server)(?=\s|$)(?!.*--(?:version|help)|.*&\s*$)"
)
_SHELL = ("sh", "bash")
_NOT_RUN = ("", "text")
# Folders of the repository that commands of a page may name.
_OF_THE_CLONE = ("deploy", "docs", "examples", "interop", "tests")
_SKIPPED_IN_SQL = re.compile(r"--[^\n]*")


class Failed(Exception):
    """A block did not behave as the page says."""


class Missing(Exception):
    """A program, module or file that a block needs is missing."""


class Terminal:
    """A command in the background, and its output."""

    def __init__(self, command: list[str], directory: Path, environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, seen: Callable[[str], bool], what: str) -> None:
        """Return when ``seen`` is true for the output; raise Failed after a timeout or if the command ends first."""
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while not seen(self.output):
            ended = self.process.poll() is not None
            if seen(self.output):
                return
            if ended or time.monotonic() > deadline_s:
                why = f"ended with {self.process.returncode}" if ended else f"not within {READY_TIMEOUT_S:.0f} s"
                raise Failed(f"waiting for {what}: {why}\n{self.output}")
            time.sleep(0.02)

    def interrupt(self) -> None:
        """Send Ctrl-C; raise Failed if the command does not end, or ends with an error."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise Failed(f"did not end on Ctrl-C\n{self.output}") from None
        if code not in (0, -signal.SIGINT, 128 + signal.SIGINT):
            raise Failed(f"ended with {code}\n{self.output}")


class PageRunner:
    """Runs the blocks of one page in order, in ``directory``."""

    def __init__(self, page: Page, directory: Path) -> None:
        self._page = page
        self._directory = directory
        self._state = directory.with_name(directory.name + ".state")
        self._logs = directory.with_name(directory.name + ".logs")
        self._logs.mkdir()
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": _absolute(os.environ.get("PYTHONPATH", "")),
            "PYTHONUNBUFFERED": "1",
            "LC_ALL": "C.UTF-8",
            "XDG_STATE_HOME": str(directory.with_name(directory.name + ".xdg-state")),
        }
        self._terminals: list[Terminal] = []
        self._together: list[str] = []
        self._last_together = max((block.line for block in page.blocks if block.mark.together), default=0)
        # The output of the last block; None if the block was not run.
        self._printed: str | Terminal | None = None
        self.skipped: list[str] = []
        """The blocks that could not run on this machine, each with the reason."""
        for name in _OF_THE_CLONE:
            (directory / name).symlink_to(ROOT / name)
        (directory / ".venv").symlink_to(sys.prefix)

    def run(self) -> Iterator[str]:
        """Run every block; yield a text for each block that fails."""
        for block in self._page.blocks:
            where = f"{self._page.name}:{block.line}"
            try:
                self._run_block(block)
            except Missing as missing:
                self.skipped.append(f"{where}: {missing}")
            except Failed as failure:
                yield f"{where}: {failure}\n--- the block ---\n{block.text}"
        yield from self._stop_all("at the end of the page")

    def close(self) -> None:
        """Kill the commands that still run."""
        for terminal in self._terminals:
            if terminal.process.poll() is None:
                os.killpg(terminal.process.pid, signal.SIGKILL)
                terminal.process.wait()

    def _run_block(self, block: Block) -> None:
        if block.mark.stop:
            failures = list(self._stop_all("stopped"))
            if failures:
                raise Failed("\n".join(failures))
            return
        if block.mark.output:
            self._compare_output(block.text)
            return
        if block.title:
            target = self._directory / block.title
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        self._printed = None
        _check_syntax(block)
        if block.mark.skip_reason or block.title or block.language in _NOT_RUN:
            return
        _require(block.mark)
        if block.example:
            _compare_example(block)
        elif block.language in _SHELL or block.language == "console":
            self._run_shell(block)
        elif block.language == "python" or block.language == "sql":
            self._run_python(block)

    def _run_shell(self, block: Block) -> None:
        if block.language == "console":
            commands, expected = _console(block.text)
            self._run_commands(commands, block.mark)
            self._compare_output(expected)
        elif block.mark.background or (_starts_daemons(block.text) and not block.mark.fails):
            for command in _joined_lines(block.text):
                self._start(["bash", "-c", self._with_state(command)], block.mark)
        else:
            self._run_commands(block.text, block.mark)

    def _run_commands(self, commands: str, mark: Mark) -> None:
        script = self._with_state(commands) + f"\n{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > '{self._state}'\n"
        self._printed = self._finish(["bash", "-c", script], mark)

    def _with_state(self, commands: str) -> str:
        """Prefix the commands with the variables and the directory that earlier blocks have set."""
        return f"set -eo pipefail\nif [ -f '{self._state}' ]; then . '{self._state}'; fi\n{commands}"

    def _run_python(self, block: Block) -> None:
        text = block.text
        if block.language == "sql":
            if not block.mark.together:
                raise Failed("an sql block must be marked `together` with Python blocks that define `spark`, or `skip`")
            text = _sql_as_python(text)
        if block.mark.together:
            self._together.append(text)
            if block.line != self._last_together:
                return
            text = "\n".join(self._together)
        script = self._logs / f"line_{block.line}.py"
        script.write_text(text, encoding="utf-8")
        command = [sys.executable, str(script)]
        if block.mark.background:
            self._start(command, block.mark)
        else:
            self._printed = self._finish(command, block.mark)

    def _start(self, command: list[str], mark: Mark) -> None:
        log = self._logs / f"terminal_{len(self._terminals)}"
        terminal = Terminal(command, self._directory, self._environment, log)
        self._terminals.append(terminal)
        self._printed = terminal
        wanted = re.escape(mark.until) if mark.until else _READY
        terminal.wait_for(lambda output: re.search(wanted, output) is not None, repr(mark.until or "its ports"))

    def _finish(self, command: list[str], mark: Mark) -> str:
        """Return the output of the command; raise Failed if its exit code is not as the page says."""
        limit_s = SLOW_TIMEOUT_S if mark.together or "java" in mark.needs else COMMAND_TIMEOUT_S
        try:
            done = subprocess.run(
                command,
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"not done after {limit_s:.0f} s\n{(error.stdout or b'').decode(errors='replace')}") from None
        output = done.stdout.decode(errors="replace")
        if (done.returncode != 0) != mark.fails:
            raise Failed(f"exit code {done.returncode}\n{output}")
        return output

    def _compare_output(self, expected: str) -> None:
        if isinstance(self._printed, Terminal):
            self._printed.wait_for(lambda output: matches(expected, output), f"this output:\n{expected}")
        elif self._printed is not None and not matches(expected, self._printed):
            raise Failed(f"the output is different:\n{self._printed}")

    def _stop_all(self, when: str) -> Iterator[str]:
        while self._terminals:
            try:
                self._terminals.pop().interrupt()
            except Failed as failure:
                yield f"{self._page.name}: {when}: a command in the background {failure}"


def matches(expected: str, printed: str) -> bool:
    """Compare output with a pattern: ``…`` stands for anything within a line, or for any lines if alone on a line."""
    parts = []
    for line in expected.strip("\n").split("\n"):
        if line.strip() == "…":
            parts.append(r"(?:[^\n]*\n)*?")
        else:
            parts.append("[^\n]*?".join(map(re.escape, line.rstrip().split("…"))) + r"[ \t]*\n")
    return re.fullmatch("".join(parts), printed.strip("\n") + "\n") is not None


def _absolute(paths: str) -> str:
    """Make the entries of a search path absolute."""
    return os.pathsep.join(os.path.abspath(each) for each in paths.split(os.pathsep) if each)


def _check_syntax(block: Block) -> None:
    """Raise Failed if the text of the block is not valid in its language."""
    try:
        if block.language in _SHELL or block.language == "console":
            text = _console(block.text)[0] if block.language == "console" else block.text
            done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Failed(done.stderr)
        elif block.language == "python":
            compile(block.text, "snippet", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "ini":
            configparser.ConfigParser(strict=False, interpolation=None).read_string(block.text)
        elif block.language == "yaml":
            _check_yaml(block.text)
        elif block.language == "go":
            _check_go(block.text)
        elif block.language not in (*_NOT_RUN, "sql"):
            raise Failed(f"the language {block.language!r} cannot be checked: use text")
    except (SyntaxError, ValueError, configparser.Error) as error:
        raise Failed(f"not {block.language}: {error}") from None


def _check_yaml(text: str) -> None:
    if importlib.util.find_spec("yaml") is None:
        raise Missing("PyYAML, which checks yaml, is not installed")
    import yaml

    try:
        yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Failed(f"not yaml: {error}") from None


def _check_go(text: str) -> None:
    if shutil.which("gofmt") is None:
        raise Missing("gofmt, which checks Go code, is not installed")
    done = subprocess.run(["gofmt", "-d"], input=text, capture_output=True, text=True, check=False)
    if done.returncode or done.stdout:
        raise Failed(f"not formatted by gofmt: {done.stderr}{done.stdout}")


def _require(mark: Mark) -> None:
    for name in mark.needs:
        there = (ROOT / name).exists() if "/" in name else shutil.which(name) or importlib.util.find_spec(name)
        if not there:
            raise Missing(f"needs {name}, which is not installed")


def _compare_example(block: Block) -> None:
    if (ROOT / block.example).read_text(encoding="utf-8") != block.text:
        raise Failed(f"differs from {block.example}")


def _console(text: str) -> tuple[str, str]:
    """Split a console block into its commands, without ``$``, and their output."""
    lines = text.splitlines()
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    printed = [line for line in lines if not line.startswith("$ ")]
    return "\n".join(commands), "\n".join(printed)


def _joined_lines(text: str) -> list[str]:
    """Return the commands of a script; lines that end with a backslash are joined with the next."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _starts_daemons(text: str) -> bool:
    """Return True if every command starts a daemon."""
    commands = _joined_lines(text)
    return bool(commands) and all(_SERVES.match(command) for command in commands)


def _sql_as_python(text: str) -> str:
    statements = [each.strip() for each in _SKIPPED_IN_SQL.sub("", text).split(";")]
    return "".join(f"spark.sql({each!r}).show()\n" for each in statements if each)
