"""Who may publish and subscribe: what a session asks, and the answer of a broker without an auth server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from nsqx.errors import ProtocolError

if TYPE_CHECKING:
    from nsqx.nsqd.client import Client

Refused = Callable[[ProtocolError | None], object]
Authenticated = Callable[[bytes | ProtocolError], object]


class Authorizer(Protocol):
    """Decides for sessions. Whatever takes time calls back, later and in the event loop."""

    is_enabled: bool

    def authenticate(self, client: Client, secret: bytes, done: Authenticated) -> None:
        """Find out who ``client`` is; ``done`` gets the answer to AUTH, or why there is none."""

    def is_current(self, client: Client) -> bool:
        """True if ``check`` can decide by what is known; otherwise ``refresh`` must be called first."""

    def refresh(self, client: Client, done: Refused) -> None:
        """Find out anew what ``client`` may do; ``done`` gets None, or why that could not be found out."""

    def check(self, client: Client, command: str, topic_name: str, channel_name: str) -> None:
        """Raise ProtocolError unless ``client`` may do ``command`` there."""

    def watch(self, client: Client, topic_name: str, channel_name: str, revoked: Refused) -> None:
        """``client`` has subscribed: call ``revoked`` should it lose the right to."""

    def forget(self, client: Client) -> None:
        """``client`` is gone."""

    async def close(self) -> None:
        """Nobody asks any more."""


class OpenAuthorizer:
    """Lets everybody do everything and knows no secrets."""

    is_enabled = False

    def authenticate(self, client: Client, secret: bytes, done: Authenticated) -> None:  # noqa: ARG002
        """There is nothing to authenticate against."""
        done(ProtocolError("E_AUTH_DISABLED", "AUTH disabled"))

    def is_current(self, client: Client) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def refresh(self, client: Client, done: Refused) -> None:  # noqa: ARG002
        """Nothing changes."""
        done(None)

    def check(self, client: Client, command: str, topic_name: str, channel_name: str) -> None:
        """Everybody may."""

    def watch(self, client: Client, topic_name: str, channel_name: str, revoked: Refused) -> None:
        """Nobody loses a right."""

    def forget(self, client: Client) -> None:
        """Nobody was known."""

    async def close(self) -> None:
        """There is nothing to end."""
