"""The clients of a channel that may be ready, in round-robin order.

With topology-aware consumption the clients of the same zone come first, then those of the same region.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqx.nsqd.client import Client

# How near a client is. Without topology-aware consumption every client is ELSEWHERE.
SAME_ZONE = 0
SAME_REGION = 1
ELSEWHERE = 2
_ELSEWHERE = ELSEWHERE


class ReadyClients:
    """Clients that were ready when they were added. ``next`` removes those that are no longer ready."""

    __slots__ = ("_elsewhere", "_has_near", "_near", "_next")

    def __init__(self) -> None:
        self._elsewhere: list[Client] = []
        self._next = 0  # the index of the next client in ``_elsewhere``
        self._near: list[list[Client]] = [[], []]  # by locality; the first of each list is next
        self._has_near = False

    def has_any(self) -> bool:
        """True if a client may be ready."""
        return self._has_near or len(self._elsewhere) > 0

    def add(self, client: Client) -> bool:
        """Add a client that can take another message; False if it cannot, or was added before."""
        if client.is_in_ready_list or not client.is_ready():
            return False
        client.is_in_ready_list = True
        if client.locality == _ELSEWHERE:
            self._elsewhere.append(client)
        else:
            self._near[client.locality].append(client)
            self._has_near = True
        return True

    def remove(self, client: Client) -> None:
        """Remove a client; no-op if it is not in the list."""
        if client.is_in_ready_list:
            client.is_in_ready_list = False
            clients = self._elsewhere if client.locality == _ELSEWHERE else self._near[client.locality]
            clients.remove(client)

    def next(self) -> Client | None:
        """Return the next ready client in turn, or None."""
        if not self._has_near and self._elsewhere:
            if self._next >= len(self._elsewhere):
                self._next = 0
            client = self._elsewhere[self._next]
            if client.is_ready():
                self._next += 1
                return client
        return self._find()

    def room(self, client: Client) -> int:
        """Return how many messages ``client``, the result of ``next``, can take until ``next`` must be called again.

        Until then it must have room in its output.
        """
        if self._has_near or len(self._elsewhere) > 1:
            return 1
        return client.ready_count - client.in_flight_count

    def _find(self) -> Client | None:
        """Return the next ready client, and remove those that are not."""
        if self._has_near:
            for near in self._near:
                while near:
                    client = near[0]
                    if client.is_ready():
                        near.append(near.pop(0))
                        return client
                    del near[0]
                    client.is_in_ready_list = False
            self._has_near = False
        clients = self._elsewhere
        while clients:
            if self._next >= len(clients):
                self._next = 0
            client = clients[self._next]
            if client.is_ready():
                self._next += 1
                return client
            del clients[self._next]
            client.is_in_ready_list = False
        return None
