"""Runs the snippets of a page: ``python tests/docs/run_page.py docs/getting-started.md``.

The page runs in its own namespaces for network, processes and host name. All standard ports are free there, and no
process is left behind. Prints a text for each block that fails; the exit code is then 1, otherwise 0.
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


def why_no_namespace() -> str:
    """Return why this machine cannot make a network namespace, or an empty text if it can."""
    if shutil.which("unshare") is None:
        return "unshare (util-linux) is not installed"
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"this machine permits no network namespace: {done.stderr.strip()}" if done.returncode else ""


def command(page: Path) -> list[str]:
    """Return the command that runs a page in its own namespaces."""
    return [*UNSHARE, sys.executable, str(Path(__file__).resolve()), _INSIDE, str(page)]


def main(words: list[str]) -> int:
    """Run a page and return the exit code."""
    if len(words) == 2 and words[0] == _INSIDE:
        return _run(Path(words[1]))
    if len(words) != 1 or not Path(words[0]).is_file():
        print("usage: run_page.py PAGE.md", file=sys.stderr)
        return 2
    reason = why_no_namespace()
    if reason:
        print(reason, file=sys.stderr)
        return 2
    return subprocess.run(command(Path(words[0]).resolve()), check=False).returncode


def _run(path: Path) -> int:
    # The commands of a page must receive Ctrl-C even if this program was started in the background.
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
