"""When deferred messages are due, kept over a restart.

The messages themselves go to the disk queue at exit, where Go nsqd finds them too; their due times go to a file that
it does not look at, ``<name>.deferred.dat``: JSON, ``{"due": {"<message id>": <unix nanoseconds>}}``. An id that no
message bears any more does no harm.
"""

from __future__ import annotations

import os

import orjson

from nsqx.queues.files import DUE, read_file, remove_if_there, replace_file, sync_directory


def due_times_path(directory: str, name: str) -> str:
    """Where the due times of the queue ``name`` are."""
    return os.path.join(directory, f"{name}.deferred.dat")


def save_due_times(directory: str, name: str, due_ns: dict[bytes, int]) -> None:
    """Replace what is kept; with nothing to keep, the file goes."""
    path = due_times_path(directory, name)
    if due_ns:
        content = {"due": {message_id.decode("latin-1"): due_ns[message_id] for message_id in due_ns}}
        replace_file(path, orjson.dumps(content), DUE)
    elif os.path.exists(path):
        remove_if_there(DUE, path)
        sync_directory(directory)


def load_due_times(directory: str, name: str) -> dict[bytes, int]:
    """What was saved; nothing if there is no file. Raises ValueError if the file is not what ``save`` wrote."""
    try:
        data = read_file(DUE, due_times_path(directory, name))
    except FileNotFoundError:
        return {}
    content = orjson.loads(data)
    due = content.get("due") if isinstance(content, dict) else None
    if not isinstance(due, dict) or not all(type(due_ns) is int and 0 <= due_ns < 1 << 63 for due_ns in due.values()):
        raise ValueError("not a due times file")
    return {message_id.encode("latin-1"): due_ns for message_id, due_ns in due.items()}
