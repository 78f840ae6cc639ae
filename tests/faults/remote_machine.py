"""A second machine, simulated by a network namespace. Its link to this machine can be cut.

A machine that has disappeared neither answers nor refuses: packets to it are lost, as with a machine that was switched
off. Needs root and iproute2; tests skip without them.
"""

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import threading
from types import TracebackType
from typing import Self

import pytest

_CLONE_NEWNET = 0x40000000
_HARDWARE_ADDRESS = "02:00:00:00:00:02"


class RemoteMachine:
    """The other machine can connect to daemons that listen on ``address``, the near end of the link."""

    def __init__(self) -> None:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            pytest.skip("needs root and iproute2 to make a network namespace")
        number = os.getpid() % 60_000
        self._name, self._link = f"elsewhere{number}", f"els{number}"
        network = f"10.{200 + number // 16384}.{number // 64 % 256}.{number % 64 * 4}"
        start, _, last = network.rpartition(".")
        self.address, self._remote_address = f"{start}.{int(last) + 1}", f"{start}.{int(last) + 2}"

    def __enter__(self) -> Self:
        try:
            _ip("netns", "add", self._name)
            _ip("link", "add", self._link, "type", "veth", "peer", "name", "far", "netns", self._name)
            _ip("address", "add", f"{self.address}/30", "dev", self._link)
            _ip("link", "set", self._link, "up")
            _ip("-n", self._name, "link", "set", "far", "address", _HARDWARE_ADDRESS)
            _ip("-n", self._name, "address", "add", f"{self._remote_address}/30", "dev", "far")
            _ip("-n", self._name, "link", "set", "far", "up")
            # A fixed neighbour entry: the kernel does not report that the other machine is unreachable.
            _ip("neighbour", "replace", self._remote_address, "lladdr", _HARDWARE_ADDRESS, "dev", self._link)
        except subprocess.CalledProcessError as failure:
            self._remove()
            pytest.skip(f"cannot create a network namespace here: {failure.stderr.decode().strip()}")
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._remove()

    def connect(self, address: str) -> socket.socket:
        """Connect from the other machine to ``host:port`` here."""
        made: list[socket.socket | BaseException] = []
        thread = threading.Thread(target=self._connect, args=(address, made))
        thread.start()
        thread.join()
        (result,) = made
        if isinstance(result, BaseException):
            raise result
        return result

    def vanish(self) -> None:
        """Make the other machine disappear."""
        _ip("-n", self._name, "address", "flush", "dev", "far")

    def _connect(self, address: str, made: list[socket.socket | BaseException]) -> None:
        # A thread has its own namespace, and its sockets stay in it.
        host, _, port = address.rpartition(":")
        try:
            descriptor = os.open(f"/run/netns/{self._name}", os.O_RDONLY)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(descriptor)
            made.append(socket.create_connection((host, int(port)), 10))
        except BaseException as failure:
            made.append(failure)

    def _remove(self) -> None:
        for words in (("link", "delete", self._link), ("netns", "delete", self._name)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(*words)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
