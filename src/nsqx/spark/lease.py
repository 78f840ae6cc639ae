"""The lease on remote storage: one process owns a directory, and a process that lost it cannot change its record.

Owns the folder ``owner`` of a directory. Each file there is a version of one record, numbered without gaps:

    owner/000000000041.json    {"epoch": 3, "owner": "process 12 on host", "token": "...", "is_released": false,
                                "record": {...}}

The file with the highest number is the record. A process writes a version by creating the file with the next number.
That fails if the file exists, so every version follows the one that its writer has read. Each owner has an epoch, one
higher than that of the owner before it. docs/decisions/0010-fencing-segments-on-remote-storage.md explains why this is
safe. Knows nothing of segments.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from nsqx.errors import ConfigError, NSQError

_log = logging.getLogger("nsqx.spark")

_FOLDER = "owner"
_VERSION_NAME = re.compile(r"(\d{12})\.json")
# An owner writes a version at least every RENEW_S. After LEASE_S without one it is considered dead.
LEASE_S = 40.0
RENEW_S = 10.0
_POLL_S = 1.0
# Old versions are deleted when there are more than this.
_KEPT_VERSIONS = 32


class LeaseLost(NSQError):
    """Another process has taken over the directory."""


class DirectoryInUse(ConfigError):
    """Another process holds the directory; ``holder`` describes that process."""

    def __init__(self, location: str, holder: str) -> None:
        self.holder = holder or "another process"
        super().__init__(
            f"nsq: segmentDir {location} is in use by {self.holder}: stop that query, or give this query its own"
            " segmentDir and channel"
        )


class VersionStore(Protocol):
    """The storage operations of a lease. Every call must see the effects of all calls that returned before it."""

    location: str

    def names(self, folder: str = "") -> list[str]:
        """Return the names of all files in a folder."""

    def read(self, name: str) -> bytes:
        """Return the content of a file; raises FileNotFoundError."""

    def create_once(self, name: str, content: bytes) -> bool:
        """Create a file; return False if it exists."""

    def delete(self, name: str) -> None:
        """Remove a file; no-op if it does not exist."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the record, and the owner that wrote it."""

    epoch: int
    owner: str
    token: str
    is_released: bool
    record: dict[str, Any]


def owner_text() -> str:
    """Return a description of this process for the error messages of other processes."""
    return f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"


def take_lease(
    store: VersionStore,
    wait_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Lease:
    """Take the lease of a directory; if its owner does not renew, wait until the owner's lease has expired.

    Raises DirectoryInUse if the owner renews its lease and does not release it within ``wait_s``. Only the clock of
    this process is used: a lease has expired when this process has seen no new version for LEASE_S.
    """
    began_s = seen_s = clock()
    first_number = last_number = -1
    while True:
        number, version = _newest(store)
        if version is None or version.is_released:
            lease = _claim(store, number, version, clock)
            if lease is not None:
                return lease
            continue
        if number != last_number:
            first_number = number if last_number < 0 else first_number
            last_number, seen_s = number, clock()
            if number == first_number:
                _log.info(
                    "segmentDir %s is held by %s: waiting until it is released, or not renewed for %.0f s",
                    store.location,
                    version.owner,
                    LEASE_S,
                )
        elif clock() - seen_s >= LEASE_S:
            _log.warning("%s has not renewed its lease on segmentDir %s: taking over", version.owner, store.location)
            lease = _claim(store, number, version, clock)
            if lease is not None:
                return lease
            continue
        if number != first_number and clock() - began_s >= wait_s:
            raise DirectoryInUse(store.location, version.owner)
        sleep(_POLL_S)


def _claim(store: VersionStore, number: int, former: Version | None, clock: Callable[[], float]) -> Lease | None:
    """Write the version after ``number`` with a new epoch; return None if another process wrote it first."""
    epoch = former.epoch + 1 if former else 1
    version = Version(epoch, owner_text(), uuid.uuid4().hex, False, former.record if former else {})
    lease = Lease(store, number, version, clock)
    try:
        lease.save(version.record)
    except LeaseLost:
        return None
    return lease


def _newest(store: VersionStore) -> tuple[int, Version | None]:
    """Return the number and the content of the record; 0 and None if there is none."""
    while True:
        number = max(_numbers(store), default=0)
        if not number:
            return 0, None
        # The owner may have written a newer version and deleted this one in the meantime.
        with contextlib.suppress(FileNotFoundError):
            return number, _parse(store, number)


def _numbers(store: VersionStore) -> list[int]:
    return [int(match[1]) for match in map(_VERSION_NAME.fullmatch, store.names(_FOLDER)) if match]


def _parse(store: VersionStore, number: int) -> Version:
    name = _name(number)
    try:
        return Version(**json.loads(store.read(name)))
    except (ValueError, TypeError):
        raise ConfigError(
            f"nsq: {name} in segmentDir {store.location} cannot be read: it is damaged or was written by a newer nsqx"
        ) from None


def _name(number: int) -> str:
    return f"{_FOLDER}/{number:012d}.json"


class Lease:
    """The ownership of a directory, and its record. Thread-safe."""

    def __init__(self, store: VersionStore, number: int, version: Version, clock: Callable[[], float]) -> None:
        self._store = store
        self._number = number
        self._version = version
        self._clock = clock
        self._saved_s = clock()
        self._guard = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self.is_lost = False

    @property
    def epoch(self) -> int:
        """The number of this owner; later owners have higher epochs."""
        return self._version.epoch

    def load(self) -> dict[str, Any]:
        """Return the record as it was last saved; empty in a new directory."""
        return self._version.record

    def save(self, record: dict[str, Any]) -> None:
        """Replace the record; raises LeaseLost and changes nothing if another process has taken over."""
        with self._guard:
            self._save(replace(self._version, record=record))

    advance = save

    def _save(self, version: Version) -> None:
        if self.is_lost:
            raise self._lost()
        content = json.dumps({name: getattr(version, name) for name in Version.__slots__}).encode()
        while not self._store.create_once(_name(self._number + 1), content):
            if not self._is_mine(self._number + 1):
                raise self._lost()
            self._number += 1
        self._number += 1
        # Deleting old versions frees their numbers, so a successful creation does not prove that this is the newest.
        listed = self._check()
        self._version, self._saved_s = version, self._clock()
        if len(listed) > _KEPT_VERSIONS:
            for old in listed:
                if old < self._number:
                    self._store.delete(_name(old))

    def _is_mine(self, number: int) -> bool:
        """Return True if this owner wrote that version with a request whose response was lost."""
        try:
            return _parse(self._store, number).token == self._version.token
        except FileNotFoundError:
            return False

    def verify(self) -> None:
        """Raise LeaseLost if another process has taken over."""
        with self._guard:
            if self.is_lost:
                raise self._lost()
            self._check()

    def _check(self) -> list[int]:
        numbers = _numbers(self._store)
        if max(numbers, default=0) != self._number:
            raise self._lost()
        return numbers

    def _lost(self) -> LeaseLost:
        self.is_lost = True
        return LeaseLost(
            f"nsq: another process has taken over segmentDir {self._store.location}, because this one did not renew its"
            f" lease for {LEASE_S:.0f} s. No data is lost: the other process continues where this one stopped"
        )

    # Renewing

    def keep_renewing(self) -> None:
        """Renew in a thread until the lease is released or lost."""
        self._thread = threading.Thread(target=self._renew_often, name="nsq segment lease", daemon=True)
        self._thread.start()

    def _renew_often(self) -> None:
        while not self._ending.wait(RENEW_S / 4):
            try:
                self.renew()
            except LeaseLost as error:
                _log.error("%s", error)
                return
            except OSError as error:
                _log.warning("cannot renew the lease on segmentDir %s: %s", self._store.location, error)

    def renew(self) -> None:
        """Write a new version if the last one is older than RENEW_S; raises LeaseLost."""
        with self._guard:
            if self._clock() - self._saved_s >= RENEW_S:
                self._save(self._version)

    def release(self) -> None:
        """Give up the lease, so another process can take it at once; no-op if the lease is lost."""
        if self._ending.is_set():
            return
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        with self._guard, contextlib.suppress(LeaseLost, OSError):
            self._save(replace(self._version, is_released=True))
