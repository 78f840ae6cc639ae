"""``nsqx doctor`` on any data directory: it ends with a report and an exit code, and a repair keeps all data.

The files of disk queues are kept as they are. Messages of topic logs are copied to new segments.
"""

import contextlib
import io
import json
import tempfile
from pathlib import Path

import directories
from target_files import live_on

from nsqx.cli.doctor import FOUND, NOT_EXAMINED, SOUND, main


def check_doctor(data: bytes) -> None:
    """Examine, repair, and examine again."""
    files = directories.unpack(data)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        directory = Path(name)
        directories.write_directory(directory, files)
        first = _doctor(name)
        assert directories.read_directory(directory) == files, "an examination has changed a file"
        if first == NOT_EXAMINED:
            return
        _doctor(name, "--repair")
        kept = {path.read_bytes() for path in directory.rglob("*") if path.is_file()}
        assert set(files.values()) <= kept, "a repair has removed data"
        _doctor(name)


def check_log_doctor(data: bytes) -> None:
    """Examine and repair topic logs: nsqd finds the same messages in a repaired directory as in the damaged one."""
    files = directories.unpack(data)
    found = []
    for is_repaired in (False, True):
        with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
            directory = Path(name)
            directories.write_directory(directory, files)
            if is_repaired:
                _doctor(name)
                assert directories.read_directory(directory) == files, "an examination has changed a file"
                _doctor(name, "--repair")
            found.append(live_on(directory, "log"))
    assert found[0] == found[1], "a repair has lost or changed messages"


def _doctor(directory: str, *flags: str) -> int:
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main([*flags, "--json", directory])
    assert code in (SOUND, FOUND, NOT_EXAMINED)
    if code == NOT_EXAMINED:
        assert errors.getvalue().count("\n") == 1, errors.getvalue()
    else:
        assert json.loads(output.getvalue())["is_sound"] == (code == SOUND)
    return code
