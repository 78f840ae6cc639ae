"""broker.id: a random id of this nsqd that survives restarts and changes of address. Go nsqd ignores the file.

Message ids are unique only within one topic of one broker. A client that must recognise messages it has seen before
needs the broker id too. The id is created once and stays in the data directory, with the messages.
"""

from __future__ import annotations

import os
import re
import secrets

from nsqx.queues.files import NSQD, read_file, replace_file

FILE_NAME = "broker.id"
_BROKER_ID = re.compile(rb"[0-9a-f]{32}\n?")


def load_broker_id(data_path: str) -> str:
    """Return the id of this data directory, durably created if it is new; raises OSError if it cannot be written."""
    path = os.path.join(data_path, FILE_NAME)
    try:
        found = read_file(NSQD, path)
    except FileNotFoundError:
        found = b""
    if _BROKER_ID.fullmatch(found):
        return found.decode().strip()
    made = secrets.token_hex(16)
    replace_file(path, f"{made}\n".encode())
    return made
