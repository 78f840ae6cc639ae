"""Runs a command on a pseudo-terminal of a given width."""

import errno
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TIMEOUT_S = 40


def run_on_terminal(
    command: list[str],
    columns: int,
    *,
    end_when: str = "",
    answers: dict[str, str] | None = None,
    keeps_colours: bool = False,
) -> tuple[int, str]:
    """Run a command; return its exit code and the text on the terminal, without colours unless they are kept.

    If ``end_when`` is given, the command gets SIGINT after it has printed that text. ``answers`` are typed after the
    texts that they answer.
    """
    answers = dict(answers or {})
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm-256color"}
    )
    os.close(theirs)
    watchdog = threading.Timer(_TIMEOUT_S, process.kill)
    watchdog.start()
    shown = b""
    try:
        while data := _read(ours):
            shown += data
            if end_when and end_when.encode() in shown:
                process.send_signal(signal.SIGINT)
                end_when = ""
            for question in [text for text in answers if text.encode() in shown]:
                os.write(ours, answers.pop(question).encode())
        code = process.wait()
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        os.close(ours)
    text = shown.decode().replace("\r\n", "\n")
    return code, text if keeps_colours else _CONTROL.sub("", text)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError as error:  # the other end was closed
        if error.errno != errno.EIO:
            raise
        return b""
