"""Pages that anyone may request often: the front answers them without FastAPI, which would cost many times as much.

/api/docs is Swagger UI from a wheel: nothing is loaded from the internet. Its URLs are relative, so that it works
behind a proxy that adds a prefix; its Content-Security-Policy allows only these files, and requests to this gateway.
"""

import gzip
import hashlib
import html
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from fastapi import FastAPI
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.health import ALIVE, Health, readiness

DOCS = "/api/docs"
CHUNK_BYTES = 64 << 10  # sent at a time: a client that does not read holds no more than this
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
# validatorUrl: by default Swagger UI sends the document's URL to a server of its makers.
_START = b"""SwaggerUIBundle({
  url: document.getElementById("reader").dataset.document,
  domNode: document.getElementById("reader"),
  deepLinking: true,
  validatorUrl: null,
});
"""


class _File:
    """A file in memory, sent in chunks, compressed where the client accepts gzip; 304 where it has it already."""

    def __init__(self, content: bytes, media_type: bytes) -> None:
        self._etag = b'"%b"' % hashlib.sha256(content).hexdigest()[:32].encode()
        self._plain = content
        self._compressed = gzip.compress(content, mtime=0) if len(content) >= SMALLEST_TO_COMPRESS else None
        self._headers = [
            (b"content-type", media_type),
            (b"cache-control", b"no-cache"),  # revalidated each time, mostly with a 304
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


def pages(api: FastAPI, health: Health) -> Mapping[str, ASGIApp]:
    """What answers a GET or HEAD, by path. Each is made at its first request: the OpenAPI document takes 0.2 s."""
    document = api.openapi_url
    assert document is not None

    async def ready(scope: Scope, receive: Receive, send: Send) -> None:
        await (await readiness(health))(scope, receive, send)

    made: dict[str, Callable[[], ASGIApp]] = {
        document: lambda: JSONResponse(api.openapi()),
        DOCS: partial(_docs_page, document, api.title),
        f"{DOCS}/reader.js": partial(_File, _START, FILES["swagger-ui-bundle.js"]),
        **{f"{DOCS}/{name}": partial(_swagger_file, name, media_type) for name, media_type in FILES.items()},
    }
    return {"/livez": ALIVE, "/readyz": ready, **{path: _once(make) for path, make in made.items()}}


def _once(make: Callable[[], ASGIApp]) -> ASGIApp:
    made = list[ASGIApp]()

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        if not made:
            made.append(make())
        await made[0](scope, receive, send)

    return page


def _swagger_file(name: str, media_type: bytes) -> ASGIApp:
    """Read from the package fastapi-offline, of which no code runs."""
    spec = find_spec("fastapi_offline")
    assert spec is not None
    assert spec.origin is not None
    return _File((Path(spec.origin).with_name("static") / name).read_bytes(), media_type)


def _docs_page(document: str, title: str) -> ASGIApp:
    """A browser that asks with a trailing slash resolves relative URLs one level deeper."""
    up = "../" * (DOCS.count("/") - 1)
    flat = _docs_html(title, DOCS.rpartition("/")[2] + "/", up + document.removeprefix("/"))
    deep = _docs_html(title, "", "../" + up + document.removeprefix("/"))

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or b""
        await (deep if raw.endswith(b"/") else flat)(scope, receive, send)

    return page


def _docs_html(title: str, here: str, document: str) -> _File:
    text = _PAGE.format(title=html.escape(title), here=here, document=html.escape(document))
    return _File(text.encode(), b"text/html; charset=utf-8")
