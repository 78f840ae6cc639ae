"""Requests of the Spark source to nsqd: blocking, over connections that are kept in the process.

Used by executors, which read ranges of logs, and beside the driver. Owns connections, the repetition over HTTPS and the
distinction of refusals from failures that may pass.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from nsqx.cluster.credentials import HTTPClientTLS
from nsqx.errors import ConfigError, NSQError

_IDLE_PER_ADDRESS = 4


class NodeAway(NSQError):
    """An nsqd did not answer, or not as it should. It may later."""


class NodeRefused(NSQError):
    """An nsqd refused a request."""

    def __init__(self, url: str, status: int, code: str, fields: Mapping[str, Any]) -> None:
        super().__init__(f"{url}: {status} {code}")
        self.status = status
        self.code = code
        self.fields = fields


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """How to connect to nsqds: their token, certificates, and the deadline of a request."""

    token: str = field(default="", repr=False)
    tls: HTTPClientTLS = field(default_factory=HTTPClientTLS)
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class NsqdAnswer:
    """The answer to a request; names of headers are lower case."""

    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the JSON document."""
        return json.loads(self.body)


class NodePool:
    """Idle connections by scheme and address. Thread-safe."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, NodeAccess], list[http.client.HTTPConnection]] = {}
        self._secure: dict[str, str] = {}  # the HTTPS address by that for plain HTTP
        self._lock = threading.Lock()

    def ask(
        self,
        access: NodeAccess,
        address: str,
        method: str,
        path: str,
        query: Mapping[str, object] | list[tuple[str, object]],
        *,
        extra_s: float = 0.0,
    ) -> NsqdAnswer:
        """Send a request to ``address`` (host:port or a URL); raises NodeAway, NodeRefused or ConfigError.

        ``extra_s`` is how long nsqd may wait before it answers.
        """
        base = self._secure.get(address, address if "://" in address else f"http://{address}")
        target = f"{path}?{urlencode(query)}"
        status, headers, body = self._send(access, base, method, target, extra_s)
        if status == 403 and base.startswith("http://"):
            port = _json(body).get("https_port")
            if isinstance(port, int):
                host = urlsplit(base).hostname or ""
                base = self._secure[address] = f"https://{f'[{host}]' if ':' in host else host}:{port}"
                status, headers, body = self._send(access, base, method, target, extra_s)
        if status == 200:
            return NsqdAnswer(headers, body)
        fields = _json(body)
        code = str(fields.get("message", ""))
        if status == 401:
            raise ConfigError(
                f"nsq: {base} refused {path}: 401 {code}: set nsq.nsqd_http_token_file to a file with a token of the"
                " group admin, or one that is in the groups read and consume"
            )
        if status >= 500 or status == 429:
            raise NodeAway(f"{base}: {status} {code} {headers.get('x-nsq-reason', '')}".rstrip())
        raise NodeRefused(base, status, code, fields)

    def _send(
        self, access: NodeAccess, base: str, method: str, target: str, extra_s: float
    ) -> tuple[int, dict[str, str], bytes]:
        connection, is_new = self._take(access, base)
        while True:
            try:
                if connection.sock is not None:
                    connection.sock.settimeout(access.timeout_s + extra_s)
                else:
                    connection.timeout = access.timeout_s + extra_s
                headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
                connection.request(method, target, headers=headers)
                answer = connection.getresponse()
                body = answer.read()
                found = {name.lower(): value for name, value in answer.getheaders()}
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if is_new:
                    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    raise NodeAway(f"{base}: {reason}") from None
                connection, is_new = _connect(access, base), True  # nsqd may have closed an idle connection
                continue
            except BaseException:
                connection.close()
                raise
            if answer.will_close:
                connection.close()
            else:
                self._give(access, base, connection)
            return answer.status, found, body

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            connections = [connection for idle in self._idle.values() for connection in idle]
            self._idle.clear()
        for connection in connections:
            connection.close()

    def _take(self, access: NodeAccess, base: str) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            idle = self._idle.get((base, access))
            if idle:
                return idle.pop(), False
        return _connect(access, base), True

    def _give(self, access: NodeAccess, base: str, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault((base, access), [])
            if len(idle) < _IDLE_PER_ADDRESS:
                idle.append(connection)
                return
        connection.close()


def _connect(access: NodeAccess, base: str) -> http.client.HTTPConnection:
    parts = urlsplit(base)
    if not parts.hostname or not parts.port:
        raise ConfigError(f"nsq: invalid address of an nsqd {base!r}: use host:port")
    if parts.scheme == "https":
        context = access.tls.context() or ssl.create_default_context()
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=access.timeout_s, context=context)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=access.timeout_s)


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# Spark reuses its Python workers, so connections are kept for later tasks.
POOL = NodePool()
