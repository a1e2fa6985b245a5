"""Pages: what anybody may ask for as often as they like. The front answers it without asking the application, which
would spend many times as much on finding the route and encoding the answer anew for each stranger."""

from collections.abc import Callable, Mapping

from fastapi import FastAPI
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.health import ALIVE, Health, readiness
from app.http.reader import reader_pages

READER = "/api/docs"


class _Once:
    """An answer that is made when it is asked for first: the document takes a fifth of a second."""

    def __init__(self, make: Callable[[], ASGIApp]) -> None:
        self._make = make
        self._made: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._made is None:
            self._made = self._make()
        await self._made(scope, receive, send)


def pages(api: FastAPI, health: Health) -> Mapping[str, ASGIApp]:
    """What answers a GET, by path."""
    document = api.openapi_url
    assert document is not None

    async def ready(scope: Scope, receive: Receive, send: Send) -> None:
        await (await readiness(health))(scope, receive, send)

    return {
        "/livez": ALIVE,
        "/readyz": ready,
        document: _Once(lambda: JSONResponse(api.openapi())),
        **{path: _Once(make) for path, make in reader_pages(READER, document, api.title).items()},
    }
