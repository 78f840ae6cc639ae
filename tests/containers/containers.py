"""Containers of the image under test, run by podman on loopback addresses of the host's network."""

import http.client
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from daemons import wait_until

IMAGE = os.environ.get("NSQX_IMAGE", "nsqx")
OTHER_BUILD = os.environ.get("NSQX_OTHER_IMAGE", "nsqx:pure")
# crun refuses machines with both versions of cgroups, so runc is preferred.
PODMAN = ["podman", "--log-level=fatal", *(["--runtime=runc"] if shutil.which("runc") else [])]
# The root file system has no writable place, as in the pods of the chart; podman would mount one on /tmp. podman raises
# limits by default, which a sandbox may not allow. Nothing in these tests needs systemd's timers.
LIMITS = ("--ulimit=nofile=20000:20000", "--ulimit=nproc=4096:4096")
RUN_FLAGS = ("--network=host", "--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", *LIMITS)
WAIT_S = 60.0

_numbers = itertools.count(1)


def require_podman() -> None:
    """Skip the tests if podman or the image is missing."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed: apt-get install podman buildah mmdebstrap runc")
    if subprocess.run([*PODMAN, "image", "exists", IMAGE], check=False).returncode != 0:
        pytest.skip(f"there is no image {IMAGE}: run make image")


def podman(*words: str, fails: bool = False) -> str:
    """Run podman and return its standard output."""
    done = subprocess.run([*PODMAN, *words], capture_output=True, text=True, timeout=180, check=False)
    assert fails == (done.returncode != 0), f"podman {' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


def run_once(*words: str, flags: tuple[str, ...] = (), fails: bool = False) -> str:
    """Run a command in a container that is removed afterwards; return what it printed."""
    return podman("run", "--rm", *RUN_FLAGS, *flags, IMAGE, *words, fails=fails)


class Container:
    """One container of a daemon at an address of its own."""

    def __init__(self, command: list[str], host: str, ports: tuple[int, int], volume: str = "") -> None:
        self.name = f"nsqx-check-{os.getpid()}-{next(_numbers)}"
        self.host = host
        self.tcp_address, self.http_address = (f"{host}:{port}" for port in ports)
        self._command = command
        self._mounts = (f"--volume={volume}:/data",) if volume else ()
        self.start_s = 0.0

    def run(self, image: str = IMAGE) -> None:
        """Start a new container, and wait until it serves; note the seconds."""
        began_s = time.monotonic()
        podman("run", "--detach", f"--name={self.name}", *RUN_FLAGS, *self._mounts, image, *self._command)
        self.wait_until_ready()
        self.start_s = time.monotonic() - began_s

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.get("/ping")[0] == 200, f"{self._command[0]} serves: {self.log[-2000:]}", WAIT_S)

    def stop(self) -> int:
        """Stop the container with SIGTERM; return the exit code."""
        podman("stop", "--time=60", self.name)
        return int(podman("inspect", "--format={{.State.ExitCode}}", self.name))

    def kill(self) -> None:
        """End the container with SIGKILL."""
        podman("kill", "--signal=KILL", self.name)
        podman("wait", self.name)

    def remove(self) -> None:
        """Remove the container; its volume stays."""
        podman("rm", "--force", "--volumes", "--time=1", "--ignore", self.name)

    def execute(self, *words: str, fails: bool = False) -> str:
        """Run a command in the running container."""
        return podman("exec", self.name, *words, fails=fails)

    @property
    def log(self) -> str:
        done = subprocess.run([*PODMAN, "logs", self.name], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def get(self, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
        """Return the status and the body of an HTTP answer, or status 0 if the daemon cannot be reached."""
        host, _, port = self.http_address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()


def nsqd(host: str, *flags: str, volume: str = "") -> Container:
    """Return a container of nsqd, not yet started."""
    addresses = (f"--tcp-address={host}:4150", f"--http-address={host}:4151", f"--broadcast-address={host}")
    return Container(["nsqd", "--data-path=/data", *addresses, *flags], host, (4150, 4151), volume)


def nsqlookupd(host: str) -> Container:
    """Return a container of nsqlookupd, not yet started."""
    command = ["nsqlookupd", f"--tcp-address={host}:4160", f"--http-address={host}:4161"]
    return Container(command, host, (4160, 4161))


@contextmanager
def removed(*containers: Container) -> Iterator[None]:
    """Remove containers at the end."""
    try:
        yield
    finally:
        for container in containers:
            container.remove()


@contextmanager
def new_volume() -> Iterator[str]:
    """A volume that is removed at the end."""
    name = f"nsqx-check-{os.getpid()}-{next(_numbers)}"
    podman("volume", "create", name)
    try:
        yield name
    finally:
        podman("volume", "rm", "--force", name)


def new_host() -> str:
    """A loopback address that no other test uses."""
    return f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}.{next(_numbers) + 10}"
