"""Runs the snippets of a page: ``python tests/docs/run_page.py docs/getting-started.md``.

The page gets a network, a process table and a host name of its own, so that every standard port is free, whatever else
runs on the machine, and nothing is left behind. Exit code 1 and a text for each block that is not true, 0 otherwise.
"""

import fcntl
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from markdown_pages import BadMark, read_page
from page_runner import PageRunner

UNSHARE = ["unshare", "--map-root-user", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
SKIPPED = "skipped "
_INSIDE = "--inside"


def why_not_apart() -> str:
    """Why this machine gives no network of one's own; empty if it does."""
    if shutil.which("unshare") is None:
        return "unshare (util-linux) is not installed"
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"this machine permits no network namespace: {done.stderr.strip()}" if done.returncode else ""


def command(page: Path) -> list[str]:
    """What runs a page apart from the rest of the machine."""
    return [*UNSHARE, sys.executable, str(Path(__file__).resolve()), _INSIDE, str(page)]


def main(words: list[str]) -> int:
    """Run a page; the exit code."""
    if len(words) == 2 and words[0] == _INSIDE:
        return _run(Path(words[1]))
    if len(words) != 1 or not Path(words[0]).is_file():
        print("usage: run_page.py PAGE.md", file=sys.stderr)
        return 2
    reason = why_not_apart()
    if reason:
        print(reason, file=sys.stderr)
        return 2
    return subprocess.run(command(Path(words[0]).resolve()), check=False).returncode


def _run(path: Path) -> int:
    # Ctrl-C must reach what a page starts, also where this program was started in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    socket.sethostname("localhost")
    _bring_loopback_up()
    try:
        page = read_page(path)
    except BadMark as error:
        print(error)
        return 1
    with tempfile.TemporaryDirectory(prefix="nsqx-page-") as temporary:
        directory = Path(temporary, "page")
        directory.mkdir()
        runner = PageRunner(page, directory)
        try:
            failures = 0
            for failure in runner.run():
                print(failure, flush=True)
                failures += 1
        finally:
            runner.close()
    for each in runner.skipped:
        print(f"{SKIPPED}{each}")
    return 1 if failures else 0


def _bring_loopback_up() -> None:
    set_flags, get_flags, is_up = 0x8914, 0x8913, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = fcntl.ioctl(any_socket, get_flags, struct.pack("16sH22x", b"lo", 0))
        (flags,) = struct.unpack_from("H", asked, 16)
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sH22x", b"lo", flags | is_up))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
