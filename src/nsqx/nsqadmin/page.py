"""The page: one HTML document for every page route, and the files that it loads.

The files come from the directory ``static`` beside this module, which Vite builds. In development they come from
``--dev-static-dir`` and are read again for every request. The links of the document are relative; a ``<base>`` element
holds the path under which the document is served.
"""

from __future__ import annotations

import mimetypes
import os
import posixpath
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.responses import Response

from nsqx.net.responses import HTML
from nsqx.nsqadmin.request_context import RequestContext, plain_response

if TYPE_CHECKING:
    from nsqx.nsqadmin.options import NsqadminOptions

BUILT = os.path.join(os.path.dirname(__file__), "static")
# Vite adds a hash of the content to the names of the files in this directory.
_HASHED = "assets"
_MAX_FILE_SIZE = 16 * 1024 * 1024

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": HTML,
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".svg": "image/svg+xml",
    ".ttf": "font/ttf",
    ".txt": "text/plain; charset=utf-8",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
}

_NOT_BUILT = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>nsqadmin</title></head>
<body>
<h1>nsqadmin</h1>
<p>The page is not built. Run <code>make ui</code> in the source tree (requires npm), then restart nsqadmin.</p>
<p>The API is available: <a href="api/topics">api/topics</a>, <a href="api/nodes">api/nodes</a>,
<a href="api/overview">api/overview</a>.</p>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    content_type: str


class Page:
    """Serves the page."""

    def __init__(self, options: NsqadminOptions) -> None:
        self._directory = options.dev_static_dir or BUILT
        self._is_kept = not options.dev_static_dir
        self._files: dict[str, _File | None] = {}
        base = quote(posixpath.join(options.base_path, ""))
        self._base_element = f'<base href="{escape(base)}">'

    @property
    def is_built(self) -> bool:
        """False if only the instructions for building the page can be served."""
        return self._file("index.html") is not None

    async def index(self, _context: RequestContext) -> Response:
        """Serve the document, which is the same for every page route."""
        return self._document(200)

    def not_found(self) -> Response:
        """Return the document with status 404; the page then shows that the address does not exist."""
        return self._document(404)

    def _document(self, status: int) -> Response:
        file = self._file("index.html")
        document = _NOT_BUILT if file is None else file.content.decode("utf-8", "replace")
        document = document.replace("<head>", f"<head>{self._base_element}", 1)
        return Response(document, status, headers={"Cache-Control": "no-cache"}, media_type=HTML)

    async def asset(self, context: RequestContext) -> Response:
        """Serve a file at the top of the directory."""
        return self._asset(context.params["asset"], is_hashed=False)

    async def hashed_asset(self, context: RequestContext) -> Response:
        """Serve a file whose content never changes."""
        return self._asset(f"{_HASHED}/{context.params['asset']}", is_hashed=True)

    def _asset(self, name: str, *, is_hashed: bool) -> Response:
        file = self._file(name)
        if file is None:
            return plain_response("NOT_FOUND", 404)
        lasting = is_hashed and self._is_kept
        control = "public, max-age=31536000, immutable" if lasting else "no-cache"
        return Response(file.content, headers={"Cache-Control": control}, media_type=file.content_type)

    def _file(self, name: str) -> _File | None:
        if not self._is_kept:
            return _read(self._directory, name)
        if name not in self._files:
            file = _read(self._directory, name)
            if file is None:  # do not cache: clients can invent any number of missing names
                return None
            self._files[name] = file
        return self._files[name]


def _read(directory: str, name: str) -> _File | None:
    """Return a file below ``directory``; None if it does not exist or lies outside."""
    if "\0" in name:
        return None
    root = os.path.realpath(directory)
    path = os.path.realpath(os.path.join(root, name))
    if not path.startswith(root + os.sep):
        return None
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_FILE_SIZE + 1)
    except OSError:
        return None
    if len(content) > _MAX_FILE_SIZE:
        return None
    extension = os.path.splitext(name)[1].lower()
    content_type = _TYPES.get(extension) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return _File(content, content_type)
