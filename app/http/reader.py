"""Reader: the page on which a person reads and tries the API. Swagger UI from a wheel: nothing comes from the internet.

Its addresses are relative, so that it works behind a proxy that puts a path before ours. With a Content-Security-Policy
nothing but these files runs in it, and it talks to nobody but this gateway.
"""

import gzip
import hashlib
import html
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

CHUNK_BYTES = 64 << 10  # of an answer at a time: who does not read holds so much
SMALLEST_TO_COMPRESS = 1000
FILES = {"swagger-ui-bundle.js": b"text/javascript; charset=utf-8", "swagger-ui.css": b"text/css; charset=utf-8"}

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFE = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{here}swagger-ui.css">
</head>
<body>
<div id="reader" data-document="{document}"></div>
<noscript>This page needs JavaScript. The API's description is at <a href="{document}">{document}</a>.</noscript>
<script src="{here}swagger-ui-bundle.js"></script>
<script src="{here}reader.js"></script>
</body>
</html>
"""
# validatorUrl: it would send the description's address to a server of Swagger's.
_START = b"""SwaggerUIBundle({
  url: document.getElementById("reader").dataset.document,
  domNode: document.getElementById("reader"),
  deepLinking: true,
  validatorUrl: null,
});
"""


class Kept:
    """A file in memory, sent piece by piece, compressed to who takes that; 304 to who has it."""

    def __init__(self, content: bytes, media_type: bytes) -> None:
        self._etag = b'"%b"' % hashlib.sha256(content).hexdigest()[:32].encode()
        self._plain = content
        self._compressed = gzip.compress(content, mtime=0) if len(content) >= SMALLEST_TO_COMPRESS else None
        self._headers = [
            (b"content-type", media_type),
            (b"cache-control", b"no-cache"),  # asked for each time, and mostly answered with 304
            (b"etag", self._etag),
            (b"vary", b"Accept-Encoding"),
            *_SAFE,
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = dict(scope["headers"])
        if self._etag in asked.get(b"if-none-match", b""):
            await send({"type": "http.response.start", "status": 304, "headers": [*self._headers]})
            await send({"type": "http.response.body", "body": b""})
            return
        content, headers = self._plain, self._headers
        if self._compressed is not None and b"gzip" in asked.get(b"accept-encoding", b""):
            content, headers = self._compressed, [*headers, (b"content-encoding", b"gzip")]
        headers = [*headers, (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for start in range(0, len(content), CHUNK_BYTES):
            end = start + CHUNK_BYTES
            await send({"type": "http.response.body", "body": content[start:end], "more_body": end < len(content)})


def reader_pages(path: str, document: str, title: str) -> Mapping[str, Callable[[], ASGIApp]]:
    """What makes the page at this path, for the document at that one, and its files below it."""
    made: dict[str, Callable[[], ASGIApp]] = {
        f"{path}/{name}": partial(_file, name, media_type) for name, media_type in FILES.items()
    }
    made[f"{path}/reader.js"] = partial(Kept, _START, FILES["swagger-ui-bundle.js"])
    return {path: partial(_Page, path, document, title), **made}


def _file(name: str, media_type: bytes) -> ASGIApp:
    """One of those that fastapi-offline carries; none of its code runs."""
    spec = find_spec("fastapi_offline")
    assert spec is not None
    assert spec.origin is not None
    return Kept((Path(spec.origin).with_name("static") / name).read_bytes(), media_type)


class _Page:
    """The page; a browser that asks with a slash at the end is one level deeper."""

    def __init__(self, path: str, document: str, title: str) -> None:
        up = "../" * (path.count("/") - 1)
        self._flat = _kept_page(title, path.rpartition("/")[2] + "/", up + document.removeprefix("/"))
        self._deep = _kept_page(title, "", "../" + up + document.removeprefix("/"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or b""
        await (self._deep if raw.endswith(b"/") else self._flat)(scope, receive, send)


def _kept_page(title: str, here: str, document: str) -> Kept:
    text = _PAGE.format(title=html.escape(title), here=here, document=html.escape(document))
    return Kept(text.encode(), b"text/html; charset=utf-8")
