"""Where files go that are set aside: a dated folder in the data directory, made when the first one comes."""

from __future__ import annotations

import os
import shutil

from nsqx.queues.sidecar import sidecar_path


class Quarantine:
    """Takes files of a directory; nothing is ever removed."""

    def __init__(self, directory: str, stamp: str) -> None:
        """``stamp`` is the date in the folder's name."""
        self._directory = directory
        self._stamp = stamp
        self.path = ""

    def put(self, name: str) -> None:
        """Move a file here; raises OSError."""
        os.rename(os.path.join(self._directory, name), self._place_for(name))

    def put_if_there(self, name: str) -> None:
        """Move a file here if there is one."""
        if os.path.exists(os.path.join(self._directory, name)):
            self.put(name)

    def put_data_file(self, path: str) -> None:
        """Move a data file and its checksums here, as far as they are there."""
        self.put_if_there(os.path.basename(path))
        self.put_if_there(os.path.basename(sidecar_path(path)))

    def copy_if_there(self, name: str) -> None:
        """Keep a file here as it is, without taking it from its place."""
        source = os.path.join(self._directory, name)
        if os.path.exists(source):
            shutil.copy2(source, self._place_for(name))

    def _place_for(self, name: str) -> str:
        if not self.path:
            self.path = _make_folder(os.path.join(self._directory, f"doctor-{self._stamp}"))
        place = os.path.join(self.path, name)
        number = 1
        while os.path.exists(place):
            number += 1
            place = os.path.join(self.path, f"{name}.{number}")
        return place


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
