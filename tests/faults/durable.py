"""Plays the traced system calls of a daemon on a ``DiskModel``, and finds the acknowledgements among them."""

import posixpath
import re
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from disk_model import NOTHING, DiskModel, Image, ModelFile, Node, Survival
from tracing import Call

# The start of an OK frame in NSQ's protocol, and of an OK response over HTTP.
_OK_FRAME = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
_OK_STATUS = b"HTTP/1.1 200 OK\r\n"
_DESCRIPTOR = re.compile(r"(-?\d+)<((?:[^<>]|\\x3e|\\x3c)*)>")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
# A path argument, after the directory that it is relative to, if the call has one.
_PATH = re.compile(rf"(?:(?:AT_FDCWD|-?\d+)<((?:[^<>]|\\x3e|\\x3c)*)>, )?{_TEXT.pattern}")
_WRITES = {"write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg"}
_SYNCS = {"fsync", "fdatasync"}


class TracedDisk:
    """The data directory of a traced daemon, all of it durable when the trace begins."""

    def __init__(self, directory: Path, image: Image, calls: Iterable[Call]) -> None:
        """``directory`` is the path in the trace, ``image`` the tree in it when the trace began.

        ``calls`` are those of the trace. ``apply`` must be called with them in their order.
        """
        self._model = DiskModel(directory, image)
        # A sync covers only the calls that returned before it began.
        self._upcoming_syncs = deque(sorted((call for call in calls if call.name in _SYNCS), key=_line_of_begin))
        self._running_syncs: dict[Call, tuple[Node, Callable[[], None]]] = {}
        self._positions: dict[int, int] = {}
        self._appending: set[int] = set()

    def after_power_cut(self, survival: Survival = NOTHING) -> Image:
        """Return a tree that a power cut may leave."""
        return self._model.after_power_cut(survival)

    def write_to(self, directory: Path, survival: Survival = NOTHING) -> None:
        """Create the directory that a power cut may leave."""
        directory.mkdir()
        self.after_power_cut(survival).write_to(directory)

    def apply(self, call: Call) -> None:
        """Apply the effect of a system call."""
        while self._upcoming_syncs and self._upcoming_syncs[0].began <= call.ended:
            self._begin_sync(self._upcoming_syncs.popleft())
        if call.name in _SYNCS:
            self._end_sync(call)
        elif call.result < 0:
            return
        elif call.name in ("open", "openat", "creat"):
            self._open(call)
        elif call.name in _WRITES:
            self._write(call)
        elif call.name == "lseek":
            self._positions[_descriptor(call)[0]] = call.result
        elif call.name == "ftruncate":
            file = self._model.file(_descriptor(call)[1])
            if file is not None:
                file.truncate(_last_integers(call, 1)[0])
        elif call.name == "fallocate":
            self._allocate(call)
        elif call.name in ("rename", "renameat", "renameat2"):
            self._model.rename(*_paths(call))
        elif call.name in ("link", "linkat"):
            self._model.link(*_paths(call))
        elif call.name in ("unlink", "unlinkat", "rmdir"):
            self._model.remove(_paths(call)[0])
        elif call.name in ("mkdir", "mkdirat"):
            self._model.make_directory(_paths(call)[0])
        elif call.name != "sync_file_range" and str(self._model.root) in plain(call.arguments):
            raise NotImplementedError(f"{call.name} is not in the model of the disk")

    def _open(self, call: Call) -> None:
        self._positions[call.result] = 0
        self._appending.discard(call.result)
        if "O_APPEND" in call.arguments:
            self._appending.add(call.result)
        path = _paths(call)[0]
        file = self._model.file(path)
        if file is None and ("O_CREAT" in call.arguments or call.name == "creat"):
            file = self._model.create(path)
        if file is not None and ("O_TRUNC" in call.arguments or call.name == "creat"):
            file.truncate(0)

    def _write(self, call: Call) -> None:
        descriptor, path = _descriptor(call)
        file = self._model.file(path)
        if file is None:
            return
        data = written(call)[: call.result]
        file.write(self._write_position(call, descriptor, file, len(data)), data)

    def _write_position(self, call: Call, descriptor: int, file: ModelFile, size: int) -> int:
        if call.name == "pwritev2":
            if not call.arguments.endswith(", 0"):
                raise NotImplementedError("flags of pwritev2 are not in the model of the disk")
            return _last_integers(call, 2)[0]
        if call.name.startswith("pwrite"):
            return _last_integers(call, 1)[0]
        position = len(file.current) if descriptor in self._appending else self._positions.get(descriptor, 0)
        self._positions[descriptor] = position + size
        return position

    def _allocate(self, call: Call) -> None:
        file = self._model.file(_descriptor(call)[1])
        mode = call.arguments.rsplit(", ", 3)[1]
        if file is None or mode == "FALLOC_FL_KEEP_SIZE":
            return
        if mode != "0":
            raise NotImplementedError(f"fallocate with {mode} is not in the model of the disk")
        file.allocate(sum(_last_integers(call, 2)))

    def _begin_sync(self, call: Call) -> None:
        node = self._model.node(_descriptor(call)[1])
        if node is not None:
            self._running_syncs[call] = node, self._model.begin_sync(node)

    def _end_sync(self, call: Call) -> None:
        if call not in self._running_syncs:
            return
        node, end = self._running_syncs.pop(call)
        if call.result == 0:
            end()
        elif isinstance(node, ModelFile):
            node.fail_sync()


def written(call: Call) -> bytes:
    """Return the bytes that a call writes."""
    return b"".join(bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(call.arguments))


def acknowledgements(calls: Iterable[Call]) -> list[int]:
    """Return the lines of a trace at which each OK is sent; only one client may get answers."""
    lines = []
    for call in calls:
        if call.name in _WRITES and "socket:" in _descriptor(call)[1]:
            data = written(call)
            lines += [call.began] * (data.count(_OK_FRAME) + data.count(_OK_STATUS))
    return sorted(lines)


def path_of(call: Call) -> str:
    """Return the path of the open file that a call uses."""
    return _descriptor(call)[1]


def _line_of_begin(call: Call) -> int:
    return call.began


def _descriptor(call: Call) -> tuple[int, str]:
    match = _DESCRIPTOR.match(call.arguments)
    if match is None:
        return -1, ""
    return int(match[1]), plain(match[2])


def _paths(call: Call) -> list[str]:
    """Return the paths among the arguments, made absolute."""
    return [
        posixpath.join(plain(directory), bytes.fromhex(text.replace("\\x", "")).decode())
        for directory, text in _PATH.findall(call.arguments)
    ]


def _last_integers(call: Call, count: int) -> list[int]:
    """Return the last arguments of a call, which must be integers."""
    return [int(text) for text in call.arguments.rsplit(", ", count)[-count:]]


def plain(text: str) -> str:
    """Decode text of a trace, in which every character of a path may be a number."""
    return re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), text)
