"""A small auth server for nsqd, for tests and as an example. Tokens and rights are in one TOML file.

      ttl = 60

      [[token]]
      secret = "change me"
      identity = "billing"

      [[token.authorization]]
      topic = "^invoices$"
      channels = ["^billing$"]
      permissions = ["subscribe", "publish"]

Patterns match anywhere in a name unless they are anchored, as in this example. The right to publish requires a channel
pattern that matches the empty text, such as ".*". The server reads the file again when it has changed.
"""

from __future__ import annotations

import hmac
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import orjson

from nsqx.errors import ConfigError, HTTPError
from nsqx.flags import BOOL, LOG_LEVEL, STRING, Flag, read_options
from nsqx.log import INFO, Log
from nsqx.net.http_server import HTTPServer
from nsqx.net.listen import listen_on
from nsqx.net.responses import Response, json_response
from nsqx.net.router import BodyLimit, Router

if TYPE_CHECKING:
    from nsqx.net.requests import Request

_MAX_QUESTION_SIZE = 64 * 1024
_DEFAULT_TTL_S = 60


@dataclass(slots=True)
class AuthServerOptions:
    """The options of the auth server."""

    tokens: str = ""
    http_address: str = "127.0.0.1:4181"
    log_level: int = INFO
    log_prefix: str = "[auth-server] "


FLAGS: tuple[Flag, ...] = (
    Flag("version", BOOL, False, "print the version and exit", in_config=False),
    Flag("config", STRING, "", "path of the TOML file with tokens and rights", in_config=False),
    Flag("http-address", STRING, AuthServerOptions().http_address, "address on which to answer nsqd: host:port"),
    Flag("log-level", LOG_LEVEL, INFO, "least severe level that is logged"),
    Flag("log-prefix", STRING, AuthServerOptions().log_prefix, "text at the start of every log line"),
)


def options_from_argv(argv: Sequence[str], stderr: TextIO) -> AuthServerOptions:
    """Return the options from the command line; --config is the file with tokens, not with flags."""
    path = ""
    words = []
    given = iter(argv)
    for word in given:
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and name == "config":
            path = value if equals else next(given, "")
        else:
            words.append(word)
    values = read_options(FLAGS, words, "nsqx auth-server", stderr)
    if not path:
        raise ConfigError("--config FILE is required: the TOML file with tokens and rights")
    return AuthServerOptions(tokens=path, **values)


@dataclass(slots=True)
class Rights:
    """The content of the file: the answer for each secret."""

    ttl_s: int = _DEFAULT_TTL_S
    answers: dict[bytes, dict[str, Any]] = field(default_factory=dict)


def load_rights(path: str) -> Rights:
    """Read the file; raises ConfigError."""
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
        ttl_s = int(content.get("ttl", _DEFAULT_TTL_S))
        answers = {
            str(token["secret"]).encode(): {
                "identity": str(token.get("identity", "")),
                "identity_url": str(token.get("identity_url", "")),
                "authorizations": [
                    {
                        "topic": str(entry["topic"]),
                        "channels": [str(pattern) for pattern in entry.get("channels", [".*"])],
                        "permissions": [str(permission) for permission in entry["permissions"]],
                    }
                    for entry in token.get("authorization", [])
                ],
            }
            for token in content.get("token", [])
        }
    except OSError as error:
        raise ConfigError(f"cannot read {path} - {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} is not a valid file of tokens and rights - {error}") from None
    return Rights(ttl_s, answers)


class AuthServer:
    """Answers nsqd's requests for authorizations."""

    def __init__(self, options: AuthServerOptions, log: Log) -> None:
        self._options = options
        self._log = log
        self._rights = load_rights(options.tokens)
        self._read_at_ns = os.stat(options.tokens).st_mtime_ns
        router = Router()
        router.add("GET", "/auth", self._answer_get)
        router.add("POST", "/auth", self._answer_post, body_limit=BodyLimit(_MAX_QUESTION_SIZE, "BODY_TOO_BIG"))
        # Requests contain secrets, so they are not logged.
        self._server = HTTPServer(router, Log(options.log_prefix, max(options.log_level, INFO + 1)))

    async def start(self) -> None:
        """Start the server; raises ConfigError."""
        await self._server.serve(await listen_on(self._options.http_address))
        self._log.info("HTTP: listening on %s", self._server.address)

    async def stop(self) -> None:
        """Stop the server."""
        await self._server.close(1)

    def _answer_get(self, request: Request) -> Response:
        return self._answer(request.query.get("secret", ""))

    def _answer_post(self, request: Request) -> Response:
        try:
            secret = orjson.loads(request.body)["secret"][0]
        except (ValueError, TypeError, KeyError, IndexError):
            raise HTTPError(400, "INVALID_BODY") from None
        return self._answer(str(secret))

    def _answer(self, secret: str) -> Response:
        self._read_if_changed()
        given = secret.encode("utf-8", "surrogateescape")
        found: dict[str, Any] | None = None
        for known, answer in self._rights.answers.items():
            if hmac.compare_digest(known, given):
                found = answer
        if found is None:
            self._log.warn("rejected an unknown secret")
            raise HTTPError(403, "UNKNOWN_SECRET")
        return json_response({"ttl": self._rights.ttl_s, **found})

    def _read_if_changed(self) -> None:
        try:
            changed_at_ns = os.stat(self._options.tokens).st_mtime_ns
            if changed_at_ns != self._read_at_ns:
                self._rights = load_rights(self._options.tokens)
                self._read_at_ns = changed_at_ns
                self._log.info("reloaded %s", self._options.tokens)
        except (OSError, ConfigError) as error:
            self._log.error("cannot reload the rights, keeping the old ones - %s", error)
