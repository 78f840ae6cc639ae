"""The output file of one topic: opens, rotates and syncs it, and moves it to the output directory when complete.

All calls block and must come from one thread at a time. Errors of the file system are raised as UtilityFailed; messages
that were not synced before must not be finished.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NoReturn

from nsqx.gotext import format_duration
from nsqx.tools.file_names import FileNames, with_revision
from nsqx.tools.gzip_members import GzipMember
from nsqx.tools.utility import UtilityFailed, strerror
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from nsqx.log import Log

_DIRECTORY_MODE = 0o770
_FILE_MODE = 0o666


@dataclass(frozen=True, slots=True)
class Rules:
    """The directories and the limits for rotation; 0 means no limit."""

    output_dir: str
    work_dir: str
    gzip_level: int = 0
    """0 means no compression."""
    rotate_size: int = 0
    """Bytes before compression."""
    rotate_interval_s: float = 0.0

    @property
    def has_work_dir(self) -> bool:
        """True if files are moved when they are complete."""
        return self.work_dir != self.output_dir

    @property
    def has_revisions(self) -> bool:
        """True if there may be several files with the same name except for the revision."""
        return bool(self.gzip_level or self.rotate_size > 0 or self.rotate_interval_s > 0 or self.has_work_dir)


def prepare(rules: Rules) -> None:
    """Create the directories; raises UtilityFailed if files cannot be written there or cannot be moved."""
    for directory in (rules.work_dir, rules.output_dir):
        try:
            _make_directories(os.path.abspath(directory))
        except OSError as error:
            raise UtilityFailed(f"unable to create dir: mkdir {error.filename}: {strerror(error)}") from error
        if not os.access(directory, os.W_OK | os.X_OK):
            raise UtilityFailed(f"unable to write to {directory}: permission denied")
    if os.stat(rules.work_dir).st_dev != os.stat(rules.output_dir).st_dev:
        raise UtilityFailed("--work-dir and --output-dir must be on the same file system")


def _now() -> datetime:
    return datetime.now().astimezone()


class RotatingFile:
    """Writes to the current file of a topic. ``label`` identifies the file in the log."""

    def __init__(
        self,
        names: FileNames,
        rules: Rules,
        log: Log,
        label: str,
        *,
        now: Callable[[], datetime] = _now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = names
        self._rules = rules
        self._log = log
        self._label = label
        self._now = now
        self._clock = clock
        self._file_number = -1
        self._path = ""
        # The current name with <REV>, and the current revision.
        self._name = ""
        self._revision = 0
        self._size = 0
        self._opened_s = 0.0
        self._member: GzipMember | None = None

    @property
    def is_open(self) -> bool:
        """True if there is a current file."""
        return self._file_number >= 0

    def needs_rotation(self) -> bool:
        """Return True if the next message belongs into a new file, or no file is open."""
        if not self.is_open:
            return True
        name = self._names.at(self._now())
        if name != self._name:
            self._log.info("[%s] new filename %s, rotating...", self._label, name)
            return True
        open_s = self._clock() - self._opened_s
        if 0 < self._rules.rotate_interval_s < open_s:
            shown = format_duration(round(open_s * NS_PER_S))
            self._log.info("[%s] %s since last open, rotating...", self._label, shown)
            return True
        return self._is_too_big()

    def rotate(self) -> None:
        """Close the current file and open the next."""
        self.close()
        name = self._names.at(self._now())
        self._revision = self._revision + 1 if name == self._name else 0
        self._name = name
        self._opened_s = self._clock()
        self._make_directory(self._in_work_dir(name))
        while not self._open():
            self._revision += 1
        self._new_member()

    def write_all(self, records: Sequence[bytes]) -> bool:
        """Append records, and rotate the file if necessary; return True if it was rotated."""
        has_rotated = False
        for index, record in enumerate(records):
            # The clock is read once, because the records arrived together.
            if self._is_too_big() if index else self.needs_rotation():
                self.rotate()
                has_rotated = True
            self.write(record)
        return has_rotated

    def write(self, data: bytes) -> None:
        """Append to the current file."""
        self._write_out(data if self._member is None else self._member.add(data))
        self._size += len(data)

    def sync(self) -> None:
        """Fsync the file; a compressed file is readable up to this point."""
        if self._member is not None:
            self._write_out(self._member.end())
            self._new_member()
        try:
            os.fsync(self._file_number)
        except OSError as error:
            self._fail("failed syncing messages", f"sync {self._path}", error)

    def close(self) -> None:
        """Complete the current file, if there is one, and move it to the output directory."""
        if not self.is_open:
            return
        if self._member is not None:
            self._write_out(self._member.end())
            self._member = None
        file_number, self._file_number = self._file_number, -1
        try:
            os.fsync(file_number)
        except OSError as error:
            self._fail("failed to fsync output file", f"sync {self._path}", error)
        finally:
            os.close(file_number)
        if self._rules.has_work_dir:
            self._move_to_output_dir()

    def _is_too_big(self) -> bool:
        limit = self._rules.rotate_size
        if 0 < limit < self._size:
            self._log.info("[%s] %s currently %d bytes (> %d), rotating...", self._label, self._path, self._size, limit)
            return True
        return False

    def _new_member(self) -> None:
        self._member = GzipMember(self._rules.gzip_level) if self._rules.gzip_level else None

    def _write_out(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file_number, view) :]
        except OSError as error:
            self._fail("writing message to disk", f"write {self._path}", error)

    # Opening

    def _in_work_dir(self, name: str) -> str:
        return os.path.join(self._rules.work_dir, name)

    def _in_output_dir(self, name: str) -> str:
        return os.path.join(self._rules.output_dir, name)

    def _open(self) -> bool:
        """Open the file of the current revision; return False if a file with this name must not be changed."""
        name = with_revision(self._name, self._revision)
        if self._rules.has_work_dir and self._is_taken(self._in_output_dir(name)):
            return False
        path = self._in_work_dir(name)
        may_append = not self._rules.gzip_level and self._rules.rotate_interval_s <= 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if may_append else os.O_EXCL)
        try:
            file_number = os.open(path, flags, _FILE_MODE)
        except FileExistsError:
            self._log.warn("[%s] working file already exists: %s", self._label, path)
            return False
        except OSError as error:
            self._fail(f"unable to open {path}", f"open {path}", error)
        self._log.info("[%s] opening %s", self._label, path)
        self._path = path
        self._size = os.fstat(file_number).st_size
        if self._is_too_big():
            os.close(file_number)
            return False
        self._file_number = file_number
        self._sync_directory(path)
        return True

    def _is_taken(self, path: str) -> bool:
        self._make_directory(path)
        try:
            os.stat(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._fail(f"unable to stat output file {path}", f"stat {path}", error)
        self._log.warn("[%s] output file already exists: %s", self._label, path)
        return True

    def _make_directory(self, path: str) -> None:
        directory = os.path.dirname(path)
        if not directory:
            return
        try:
            _make_directories(directory)
        except OSError as error:
            self._fail("unable to create dir", f"mkdir {error.filename or directory}", error)

    def _sync_directory(self, path: str) -> None:
        """Fsync the directory, so the name of a new file is durable."""
        directory = os.path.dirname(path) or "."
        try:
            number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(number)
            finally:
                os.close(number)
        except OSError as error:
            self._fail("failed to fsync directory", f"sync {directory}", error)

    # Moving

    def _move_to_output_dir(self) -> None:
        """Move the file with link and unlink, which overwrite nothing; if the name exists, use the next revision."""
        revision = self._revision
        while True:
            target = self._in_output_dir(with_revision(self._name, revision))
            self._log.info("[%s] moving finished file %s to %s", self._label, self._path, target)
            try:
                os.link(self._path, target)
            except FileExistsError:
                self._log.warn("[%s] destination file already exists: %s", self._label, target)
                revision += 1
                continue
            except OSError as error:
                self._fail(f"unable to move file from {self._path} to {target}", f"link {self._path} {target}", error)
            try:
                os.unlink(self._path)
            except OSError as error:
                self._fail(f"unable to remove {self._path}", f"remove {self._path}", error)
            self._sync_directory(target)
            return

    def _fail(self, what: str, call: str, error: OSError) -> NoReturn:
        raise UtilityFailed(f"[{self._label}] {what}: {call}: {strerror(error)}") from error


def _make_directories(path: str) -> None:
    """Create a directory and its parents, all with the same mode."""
    if not path or os.path.isdir(path):
        return
    _make_directories(os.path.dirname(path))
    try:
        os.mkdir(path, _DIRECTORY_MODE)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
