"""An S3 server for tests, from moto. It processes one request at a time, which makes conditional writes atomic.

    python s3_server.py

The program creates the bucket ``bucket``, prints its address, and ends when its standard input is closed.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
import urllib.request
from collections.abc import Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
from werkzeug.wsgi import get_input_stream


class OneAtATime:
    """Runs one request at a time, each after its body is read, so a suspended client does not block the others."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._turn = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = get_input_stream(environ).read()
        environ["wsgi.input"] = io.BytesIO(body)
        environ.pop("wsgi.input_terminated", None)
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        environ["CONTENT_LENGTH"] = str(len(body))
        with self._turn:
            return list(self._application(environ, start_response))


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    address = f"127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # moto finds the service in the scope of the credentials. A request without credentials is for S3.
    urllib.request.urlopen(urllib.request.Request(f"http://{address}/bucket", method="PUT")).close()
    print(address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
