"""Authorization: the interface that sessions use, and its implementation for a broker without auth servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from nsqx.errors import ProtocolError

if TYPE_CHECKING:
    from nsqx.nsqd.client import Client

RefusalCallback = Callable[[ProtocolError | None], object]
AuthCallback = Callable[[bytes | ProtocolError], object]
RevokedCallback = Callable[[ProtocolError], object]


class Authorizer(Protocol):
    """Decides what a client may do. Slow decisions are delivered later, by a callback in the event loop."""

    is_enabled: bool

    def authenticate(self, client: Client, secret: bytes, done: AuthCallback) -> None:
        """Authenticate ``client``; ``done`` receives the answer to AUTH, or the error."""

    def is_current(self, client: Client) -> bool:
        """True if ``check`` can decide now; otherwise ``refresh`` must be called first."""

    def refresh(self, client: Client, done: RefusalCallback) -> None:
        """Renew the rights of ``client``; ``done`` receives None, or the error."""

    def check(self, client: Client, command: str, topic_name: str, channel_name: str) -> None:
        """Raise ProtocolError unless ``client`` may run ``command`` on this topic and channel."""

    def watch(self, client: Client, topic_name: str, channel_name: str, revoked: RevokedCallback) -> None:
        """Watch a client that has subscribed: call ``revoked`` if it loses the right to."""

    def forget(self, client: Client) -> None:
        """Forget a client that has disconnected."""

    async def close(self) -> None:
        """Release all resources at exit."""


class OpenAuthorizer:
    """Allows everything and accepts no AUTH."""

    is_enabled = False

    def authenticate(self, client: Client, secret: bytes, done: AuthCallback) -> None:  # noqa: ARG002
        """Refuse AUTH: there is no auth server."""
        done(ProtocolError("E_AUTH_DISABLED", "AUTH disabled"))

    def is_current(self, client: Client) -> bool:  # noqa: ARG002
        """Return True: rights never expire."""
        return True

    def refresh(self, client: Client, done: RefusalCallback) -> None:  # noqa: ARG002
        """Succeed: rights never change."""
        done(None)

    def check(self, client: Client, command: str, topic_name: str, channel_name: str) -> None:
        """No-op: everything is allowed."""

    def watch(self, client: Client, topic_name: str, channel_name: str, revoked: RevokedCallback) -> None:
        """No-op: rights are never revoked."""

    def forget(self, client: Client) -> None:
        """No-op."""

    async def close(self) -> None:
        """No-op."""
