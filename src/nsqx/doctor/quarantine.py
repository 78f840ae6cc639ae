"""The quarantine of a repair: a dated folder in the data directory for files that are set aside."""

from __future__ import annotations

import os
import shutil

from nsqx.queues.sidecar import sidecar_path


class Quarantine:
    """Takes files of a directory; never deletes one. The folder is created for the first file."""

    def __init__(self, directory: str, stamp: str) -> None:
        """Use ``stamp``, a date, in the name of the folder."""
        self._directory = directory
        self._stamp = stamp
        self.path = ""

    def put(self, name: str) -> None:
        """Move a file into the quarantine; raises OSError."""
        os.rename(os.path.join(self._directory, name), self._path_for(name))

    def put_if_there(self, name: str) -> None:
        """Move a file into the quarantine if it exists."""
        if os.path.exists(os.path.join(self._directory, name)):
            self.put(name)

    def put_data_file(self, path: str) -> None:
        """Move a data file and its sidecar into the quarantine if they exist."""
        self.put_if_there(os.path.basename(path))
        self.put_if_there(os.path.basename(sidecar_path(path)))

    def copy_if_there(self, name: str) -> None:
        """Copy a file into the quarantine if it exists."""
        source = os.path.join(self._directory, name)
        if os.path.exists(source):
            shutil.copy2(source, self._path_for(name))

    def copy_file(self, path: str, name: str) -> None:
        """Copy a file from any place into the quarantine, as ``name``."""
        shutil.copy2(path, self._path_for(name))

    def write(self, name: str, data: bytes) -> None:
        """Write a file into the quarantine."""
        with open(self._path_for(name), "wb") as file:
            file.write(data)

    def _path_for(self, name: str) -> str:
        if not self.path:
            self.path = _make_folder(os.path.join(self._directory, f"doctor-{self._stamp}"))
        target = os.path.join(self.path, name)
        number = 1
        while os.path.exists(target):
            number += 1
            target = os.path.join(self.path, f"{name}.{number}")
        return target


def _make_folder(path: str) -> str:
    number = 1
    wanted = path
    while True:
        try:
            os.mkdir(wanted, 0o700)
            return wanted
        except FileExistsError:
            number += 1
            wanted = f"{path}-{number}"
