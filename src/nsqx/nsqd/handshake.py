"""The TLS handshake of a client: its layer, the upgrades that follow, and the result shown in /stats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqx.net.tls_server import iana_cipher_name

if TYPE_CHECKING:
    from nsqx.net.tls import TLSLayer
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.effects import Upgrade


@dataclass(slots=True)
class Handshake:
    """A running TLS handshake, and the upgrade that it is a part of."""

    layer: TLSLayer
    upgrade: Upgrade

    def note(self, client: Client) -> None:
        """Store the negotiated TLS parameters in ``client``, under the names Go nsqd uses."""
        client.tls = True
        client.tls_version = self.layer.version.replace("TLSv", "TLS")
        if client.tls_version == "TLS1":
            client.tls_version = "TLS1.0"
        client.tls_cipher_suite = iana_cipher_name(self.layer.cipher)
        client.tls_negotiated_protocol_is_mutual = True
        client.tls_common_name = self.layer.peer_common_name
