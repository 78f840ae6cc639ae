"""The client's credentials for the HTTP APIs of nsqlookupd and nsqd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqx.cluster.credentials import NSQD, NSQLOOKUPD, Credentials, HTTPClientTLS, read_tokens

if TYPE_CHECKING:
    from nsqx.client.options import Options


def http_credentials(options: Options) -> Credentials:
    """Return the tokens and certificates for the HTTP APIs of the daemons; raises ConfigError.

    Without a token for nsqlookupd the auth secret is used, as in go-nsq, unless ``lookupd_authorization`` is off.
    """
    tokens = read_tokens(
        {NSQD: options.nsqd_http_token_file, NSQLOOKUPD: options.lookupd_http_token_file},
        {NSQD: "option nsqd_http_token_file", NSQLOOKUPD: "option lookupd_http_token_file"},
    )
    if options.lookupd_authorization:
        tokens[NSQLOOKUPD] = tokens[NSQLOOKUPD] or options.auth_secret
    files = HTTPClientTLS(options.tls_root_ca_file, options.tls_insecure_skip_verify, options.tls_cert, options.tls_key)
    return Credentials(tokens, options.tls_context or files.context())
