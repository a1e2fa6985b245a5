"""Assets: scripts and styles of the console, under an address with the hash of all of them.

A browser keeps them for a year; a new version has another address. Modules import each other by relative addresses.
"""

import gzip
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

_TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
_FOREVER = "public, max-age=31536000, immutable"


class _Asset(NamedTuple):
    media_type: str
    plain: bytes
    packed: bytes


class Assets:
    """All files of `static/`, read once."""

    def __init__(self) -> None:
        found = {each.name: each.read_bytes() for each in (files("app.console") / "static").iterdir()}
        self._files: Mapping[str, _Asset] = {
            name: _Asset(_TYPES[name.rpartition(".")[2]], content, gzip.compress(content, mtime=0))
            for name, content in sorted(found.items())
        }
        whole = hashlib.sha256()
        for name, content in sorted(found.items()):
            whole.update(f"{name}\0{len(content)}\0".encode() + content)
        self.version = whole.hexdigest()[:16]

    def url(self, name: str) -> str:
        """The address of one. Raises KeyError: there is none."""
        self._files[name]
        return f"/console/assets/{self.version}/{name}"

    async def answer(self, request: Request) -> Response:
        """A file. A page of a node of another release may ask for its own version: it gets ours, for once."""
        asset = self._files.get(request.path_params["name"])
        if asset is None:
            return Response(status_code=404)
        is_ours = request.path_params["version"] == self.version
        headers = {
            "Cache-Control": _FOREVER if is_ours else "no-store",
            "Vary": "Accept-Encoding",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(asset.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=asset.media_type)
        return Response(asset.plain, headers=headers, media_type=asset.media_type)
