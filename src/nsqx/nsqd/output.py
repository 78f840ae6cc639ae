"""The output of one client: frames in the order of its commands, some held until a commit is done.

``seal`` starts a part whose first frame answers a command that waits for a commit. Parts are released in order, each
after its own commit. If a commit fails, the error of its command replaces that part and everything after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqx.wire.frames import ERROR, encode_frame

if TYPE_CHECKING:
    from nsqx.nsqd.group_commit import Commit


class OutputBuffer:
    """Frames that are not yet handed to the socket. New ones are appended to ``frames``."""

    __slots__ = ("_command", "_commit", "_sealed", "frames", "has_failed", "is_held")

    def __init__(self) -> None:
        self.frames = bytearray()
        self.is_held = False  # ``frames`` wait for a commit
        self.has_failed = False  # the connection must be closed after the released output
        self._commit: Commit | None = None
        self._command = ""
        self._sealed: list[tuple[bytearray, Commit | None, str]] = []  # the parts before ``frames``

    def seal(self, commit: Commit, command: str) -> bool:
        """Hold frames appended from here on until ``commit`` is done; False if they wait for it already.

        ``command`` is named in the error if the commit fails.
        """
        if self._commit is commit:
            return False
        if self.frames or self.is_held:
            self._sealed.append((self.frames, self._commit, self._command))
            self.frames = bytearray()
        self._commit = commit
        self._command = command
        self.is_held = True
        return True

    def release(self) -> bytearray:
        """Remove and return the frames that wait for no commit."""
        if self.is_held:
            return self._release_done()
        released, self.frames = self.frames, bytearray()
        return released

    def _release_done(self) -> bytearray:
        commit = self._commit
        if not self._sealed and commit is not None and commit.is_done and commit.failure is None:  # usually
            released, self.frames = self.frames, bytearray()
            self._commit = None
            self.is_held = False
            return released
        released = bytearray()
        self._sealed.append((self.frames, self._commit, self._command))
        while self._sealed:
            part, commit, command = self._sealed[0]
            if commit is not None and not commit.is_done:
                self.frames, self._commit, self._command = self._sealed.pop()
                return released
            if commit is not None and commit.failure is not None:
                released += _failure_frame(command, commit.failure)
                self.has_failed = True
                self._sealed.clear()
            else:
                released += part
                del self._sealed[0]
        self.frames = bytearray()
        self._commit = None
        self.is_held = False
        return released


def _failure_frame(command: str, failure: Exception) -> bytes:
    return encode_frame(ERROR, f"E_{command}_FAILED {command} failed {failure}".encode())
