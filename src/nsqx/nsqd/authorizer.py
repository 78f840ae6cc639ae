"""Who may publish and subscribe. Without an auth server, everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nsqx.errors import ProtocolError

if TYPE_CHECKING:
    from nsqx.nsqd.client import Client


class Authorizer(Protocol):
    """Decides for the session; ``is_enabled`` is what IDENTIFY answers as auth_required."""

    is_enabled: bool

    def authenticate(self, client: Client, secret: bytes) -> bytes:
        """The answer to AUTH; raises ProtocolError to refuse."""

    def check(self, client: Client, command: str, topic_name: str, channel_name: str) -> None:
        """Raise ProtocolError unless ``client`` may do ``command`` there."""


class OpenAuthorizer:
    """Lets everybody do everything and knows no secrets."""

    is_enabled = False

    def authenticate(self, client: Client, secret: bytes) -> bytes:  # noqa: ARG002
        """There is nothing to authenticate against."""
        raise ProtocolError("E_AUTH_DISABLED", "AUTH disabled")

    def check(self, client: Client, command: str, topic_name: str, channel_name: str) -> None:
        """Everybody may."""
