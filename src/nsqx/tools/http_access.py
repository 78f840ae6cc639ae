"""The flags for HTTP requests to nsqd and nsqlookupd: tokens and TLS. nsqadmin has the same flags."""

from __future__ import annotations

from typing import Any

from nsqx.cluster.credentials import NSQD, NSQLOOKUPD, TOKEN_VARIABLES, Credentials, HTTPClientTLS, read_tokens
from nsqx.errors import ConfigError
from nsqx.flags import BOOL, STRING, Flag

_TOKEN_FLAGS = {NSQD: "nsqd-http-token-file", NSQLOOKUPD: "lookupd-http-token-file"}
_TLS_FIELDS = ("tls_root_ca_file", "tls_insecure_skip_verify", "tls_cert", "tls_key")

HTTP_ACCESS_FLAGS: tuple[Flag, ...] = (
    *(
        Flag(name, STRING, "", f"file with the bearer token for {kind}'s HTTP API; default ${TOKEN_VARIABLES[kind]}")
        for kind, name in _TOKEN_FLAGS.items()
    ),
    Flag("http-client-tls-root-ca-file", STRING, "", "CA file to verify the certificates of nsqd and nsqlookupd"),
    Flag("http-client-tls-cert", STRING, "", "client certificate for nsqd and nsqlookupd"),
    Flag("http-client-tls-key", STRING, "", "private key of the client certificate"),
    Flag("http-client-tls-insecure-skip-verify", BOOL, False, "accept any certificate of nsqd and nsqlookupd"),
)


def take_credentials(values: dict[str, Any]) -> Credentials:
    """Remove the values of these flags from ``values`` and return the credentials; raises ConfigError."""
    files = {kind: values.pop(name.replace("-", "_")) for kind, name in _TOKEN_FLAGS.items()}
    tls = HTTPClientTLS(**{name: values.pop(f"http_client_{name}") for name in _TLS_FIELDS})
    if bool(tls.tls_cert) != bool(tls.tls_key):
        raise ConfigError("--http-client-tls-cert and --http-client-tls-key must be given together")
    flags = {kind: f"--{name}" for kind, name in _TOKEN_FLAGS.items()}
    return Credentials(read_tokens(files, flags), tls.context())
