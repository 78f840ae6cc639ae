"""broker.id: what this nsqd is called over restarts, whatever its address. Go nsqd has no such file and ignores it.

Clients that must recognise a message they have seen before tell brokers apart by it: ids of messages are unique within
one topic of one broker only. It is made once, at random, and lies with the messages that it stands for.
"""

from __future__ import annotations

import os
import re
import secrets

from nsqx.queues.files import NSQD, read_file, replace_file

FILE_NAME = "broker.id"
_BROKER_ID = re.compile(rb"[0-9a-f]{32}\n?")


def load_broker_id(data_path: str) -> str:
    """The id of the broker whose data this is, made durable if it is new; raises OSError if it cannot be written."""
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
