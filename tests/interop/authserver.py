"""An auth server whose responses depend only on the secret. It records the requests of nsqd."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_ALL = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}


def _answer(*authorizations: dict[str, Any], ttl: Any = 3600) -> bytes:
    answer = {"ttl": ttl, "identity": "someone", "identity_url": "http://id", "authorizations": list(authorizations)}
    return json.dumps(answer).encode()


_ANSWERS: dict[str, tuple[int, bytes]] = {
    "all": (200, _answer(_ALL)),
    "publish-only": (200, _answer({**_ALL, "permissions": ["publish"]})),
    "subscribe-only": (200, _answer({**_ALL, "permissions": ["subscribe"]})),
    "other-topic": (200, _answer({**_ALL, "topic": "^other$"})),
    "channel-plus": (200, _answer({**_ALL, "channels": [".+"]})),
    "unanchored": (200, _answer({**_ALL, "topic": "i"})),
    "two-entries": (200, _answer({**_ALL, "topic": "^other$"}, _ALL)),
    "no-authorizations": (200, _answer()),
    "refused": (403, b'{"message":"NOT_AUTHORIZED"}'),
    "broken": (200, b"{"),
    "ttl-zero": (200, _answer(_ALL, ttl=0)),
    "bad-regex": (200, _answer({**_ALL, "topic": "("})),
    "bad-permission": (200, _answer({**_ALL, "permissions": ["subscribe", "dance"]})),
    "wrong-type": (200, _answer(_ALL, ttl="long")),
    "once": (200, _answer(_ALL, ttl=1)),
}


class AuthServer:
    """Serves until closed. ``requests`` holds the path, Accept header and query of each request."""

    def __init__(self) -> None:
        self.requests: list[tuple[Any, ...]] = []
        self._asked_once = False
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, secret: str) -> tuple[int, bytes]:
        with self._lock:
            if secret == "once":
                if self._asked_once:
                    return _ANSWERS["refused"]
                self._asked_once = True
        return _ANSWERS.get(secret, _ANSWERS["refused"])

    def remember(self, *request: Any) -> None:
        with self._lock:
            self.requests.append(request)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = parse_qs(url.query, keep_blank_values=True)
                owner.remember(url.path, self.headers["Accept"], sorted(query.items()))
                status, body = owner.answer(query["secret"][0])
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        return Handler
