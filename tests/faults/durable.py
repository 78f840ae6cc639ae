"""The state of a directory after a power cut: a model of a disk that keeps only synced data, fed from a trace.

POSIX guarantees only this: the bytes of a file survive once fsync on the file has returned, and a new, changed or
removed name survives once fsync on the directory has returned. Bytes whose fsync failed are lost: a later fsync of the
same file does not restore them. Real disks often keep more, but programs must not rely on it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tracing import Call

# The start of an OK frame in NSQ's protocol, and of an OK response over HTTP.
_OK_FRAME = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
_OK_STATUS = b"HTTP/1.1 200 OK\r\n"
_DESCRIPTOR = re.compile(r"(-?\d+)<((?:[^<>]|\\x3e|\\x3c)*)>")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_INTEGER = re.compile(r"-?\d+")
_WRITES = {"write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg"}


@dataclass
class File:
    """The durable bytes of a file, and later changes that are not durable."""

    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # position and bytes, or a new length

    def sync(self, *, fails: bool) -> None:
        if not fails:
            self.durable = self.with_pending()
        self.pending.clear()

    def with_pending(self) -> bytes:
        """Return the bytes without a power cut."""
        content = bytearray(self.durable)
        for position, data in self.pending:
            if data is None:
                content = content[:position].ljust(position, b"\x00")
            else:
                content = content.ljust(position, b"\x00")
                content[position : position + len(data)] = data
        return bytes(content)


class Disk:
    """One directory, which is completely durable at first."""

    def __init__(self, directory: Path, files: Mapping[str, bytes], *, names_survive: bool = False) -> None:
        """``directory`` is the path in the trace, ``files`` its content when the trace began.

        With ``names_survive``, names need no sync.
        """
        self._directory = directory
        self._names_survive = names_survive
        self._names = {name: File(content) for name, content in files.items()}
        self._durable_names = dict(self._names)
        self._positions: dict[int, int] = {}

    def after_power_cut(self) -> dict[str, bytes]:
        """Return the files by name."""
        return {name: file.durable for name, file in self._surviving_names().items()}

    def _surviving_names(self) -> dict[str, File]:
        return self._names if self._names_survive else self._durable_names

    def write_to(self, directory: Path, *, with_zeros: bool = False) -> None:
        """Create the directory that the power cut leaves; some file systems leave zeros in place of lost bytes."""
        directory.mkdir()
        for name, file in self._surviving_names().items():
            length = len(file.with_pending()) if with_zeros else len(file.durable)
            (directory / name).write_bytes(file.durable.ljust(length, b"\x00"))

    def apply(self, call: Call) -> None:
        """Apply the effect of a system call."""
        if call.name in ("open", "openat", "creat"):
            self._open(call)
        elif call.name in _WRITES:
            self._write(call)
        elif call.name == "lseek":
            self._positions[_descriptor(call)[0]] = call.result
        elif call.name in ("fsync", "fdatasync"):
            self._sync(call)
        elif call.result < 0:
            return
        elif call.name == "ftruncate":
            file = self._names.get(self._name(_descriptor(call)[1]))
            if file is not None:
                file.pending.append((int(_INTEGER.findall(call.arguments)[-1]), None))
        elif call.name in ("rename", "renameat", "renameat2"):
            old, new = (self._name(path) for path in _texts(call))
            if old in self._names:
                self._names[new] = self._names.pop(old)
        elif call.name in ("unlink", "unlinkat"):
            self._names.pop(self._name(_texts(call)[0]), None)
        elif str(self._directory) in call.arguments:
            raise NotImplementedError(f"{call.name} is not in the model of the disk")

    def _name(self, path: str) -> str:
        """Return the name of a file in the directory, or an unused name for other paths."""
        return path.removeprefix(f"{self._directory}/") if path.startswith(f"{self._directory}/") else "/elsewhere"

    def _open(self, call: Call) -> None:
        self._positions[call.result] = 0
        name = self._name(_texts(call)[0])
        if call.result < 0 or name == "/elsewhere" or not ("O_CREAT" in call.arguments or call.name == "creat"):
            return
        file = self._names.setdefault(name, File())
        if "O_TRUNC" in call.arguments:
            file.pending.append((0, None))

    def _write(self, call: Call) -> None:
        descriptor, path = _descriptor(call)
        file = self._names.get(self._name(path))
        if file is None or call.result <= 0:
            return
        data = written(call)[: call.result]
        if call.name.startswith("pwrite"):
            position = int(_INTEGER.findall(call.arguments)[-1])
        else:
            position = self._positions.get(descriptor, 0)
            self._positions[descriptor] = position + len(data)
        file.pending.append((position, data))

    def _sync(self, call: Call) -> None:
        path = _descriptor(call)[1]
        if path == str(self._directory):
            if call.result == 0:
                self._durable_names = dict(self._names)
            return
        file = self._names.get(self._name(path))
        if file is not None:
            file.sync(fails=call.result != 0)


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


def _descriptor(call: Call) -> tuple[int, str]:
    match = _DESCRIPTOR.match(call.arguments)
    if match is None:
        return -1, ""
    return int(match[1]), plain(match[2])


def _texts(call: Call) -> list[str]:
    return [bytes.fromhex(text.replace("\\x", "")).decode() for text in _TEXT.findall(call.arguments)]


def plain(text: str) -> str:
    """Decode text of a trace, in which every character of a path may be a number."""
    return re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), text)
