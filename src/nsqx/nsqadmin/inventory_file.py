"""The inventory on disk: nsqadmin knows after a restart which nsqds are missing.

The file is small JSON and is replaced as a whole. If it cannot be written, nsqadmin logs one warning and keeps the
inventory in memory only.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.nsqadmin.atomic_file import replace_file, set_aside
from nsqx.nsqadmin.inventory import MAX_NODES, Holding, Inventory, KnownNode

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.nsqadmin.options import NsqadminOptions

IN_MEMORY = "-"
_FORMAT = 1
# For a node with more topics, only the topics with most messages are stored.
_MAX_TOPICS = 2000


def state_path(options: NsqadminOptions) -> str:
    """Return the path of the inventory: ``--state-file``, else one file per cluster; empty if no directory is known."""
    if options.state_file:
        return options.state_file
    upstreams = sorted(options.nsqlookupd_http_addresses or options.nsqd_http_addresses)
    cluster = hashlib.sha256("\n".join(upstreams).encode()).hexdigest()[:12]
    directory = _state_directory()
    return os.path.join(directory, f"nodes-{cluster}.json") if directory else ""


def beside(path: str, name: str) -> str:
    """Return the path of another file of the same cluster; empty if nothing is stored on disk."""
    if path in ("", IN_MEMORY):
        return ""
    stem, extension = os.path.splitext(path)
    directory, file = os.path.split(stem)
    return os.path.join(directory, file.replace("nodes", name) if "nodes" in file else f"{file}.{name}") + extension


def _state_directory() -> str:
    """Return a directory that is writable without privileges; empty if the environment names none."""
    by_systemd = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if by_systemd:
        return by_systemd
    parent = os.environ.get("XDG_STATE_HOME", "") or os.path.expanduser("~/.local/state")
    return os.path.join(parent, "nsqx", "nsqadmin") if os.path.isabs(parent) else ""


class InventoryFile:
    """Loads the inventory at the start and saves it on request."""

    def __init__(self, path: str, log: Log) -> None:
        """With the path ``-``, or an empty one, nothing is stored."""
        self._path = "" if path == IN_MEMORY else path
        self._has_no_directory = not path
        self._log = log
        self._has_failed = False
        self._writing = asyncio.Lock()

    def load(self, inventory: Inventory) -> None:
        """Fill the inventory from the file; rename an invalid file and log a warning."""
        if not self._path:
            if self._has_no_directory:
                self._log.warn("no directory for the list of nodes, it is lost with a restart: set --state-file")
            return
        try:
            with open(self._path, "rb") as file:
                nodes = decode(file.read())
        except (FileNotFoundError, NotADirectoryError):  # saving creates the directory, or logs the failure
            return
        except OSError as error:
            self._log.warn("cannot read --state-file %s: %s", self._path, error.strerror)
            return
        except ValueError as error:
            self._log.warn("invalid --state-file %s (%s): renamed to %s", self._path, error, set_aside(self._path))
            return
        inventory.known.update((node.address, node) for node in nodes)

    async def save(self, inventory: Inventory) -> None:
        """Write the inventory in a thread."""
        if not self._path:
            return
        # Copy the list: the poller continues while the thread writes. Holdings are replaced, never modified.
        nodes = list(inventory.known.values())
        async with self._writing:
            try:
                await asyncio.to_thread(_write, self._path, nodes)
            except OSError as error:
                if not self._has_failed:
                    reason = error.strerror or str(error)
                    self._log.warn(
                        "cannot write --state-file %s: %s; the list of nodes is kept in memory", self._path, reason
                    )
                self._has_failed = True
            else:
                self._has_failed = False


def decode(data: bytes) -> list[KnownNode]:
    """Return the nodes in a file; raises ValueError."""
    document = orjson.loads(data)
    try:
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']}")
        return [_node(each) for each in document["nodes"][:MAX_NODES]]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"unexpected content: {error!r}") from None


def _node(document: dict[str, Any]) -> KnownNode:
    holdings = {
        str(topic): Holding(int(held["waiting"]), {str(name): int(count) for name, count in held["channels"].items()})
        for topic, held in document["topics"].items()
    }
    first_seen_s, last_seen_s = float(document["first_seen_s"]), float(document["last_seen_s"])
    return KnownNode(str(document["address"]), first_seen_s, last_seen_s, str(document["hostname"]), holdings)


def _document(node: KnownNode) -> dict[str, Any]:
    held = node.holdings.items()
    if len(held) > _MAX_TOPICS:
        held = dict(sorted(held, key=lambda pair: -pair[1].total)[:_MAX_TOPICS]).items()
    return {
        "address": node.address,
        "hostname": node.hostname,
        "first_seen_s": node.first_seen_s,
        "last_seen_s": node.last_seen_s,
        "topics": {topic: {"waiting": each.waiting, "channels": each.channels} for topic, each in held},
    }


def _write(path: str, nodes: list[KnownNode]) -> None:
    if not nodes and not os.path.exists(path):
        return
    replace_file(path, (orjson.dumps({"format": _FORMAT, "nodes": [_document(node) for node in nodes]}),))
