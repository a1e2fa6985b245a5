"""Pages: what anybody may ask for as often as they like. The front answers it without asking the application, which
would spend many times as much on finding the route and encoding the answer anew for each stranger."""

from collections.abc import Mapping
from functools import cache

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.health import ALIVE, Health, readiness


def pages(api: FastAPI, health: Health) -> Mapping[str, ASGIApp]:
    """What answers a GET, by path."""
    assert api.openapi_url is not None
    assert api.docs_url is not None

    async def ready(scope: Scope, receive: Receive, send: Send) -> None:
        await (await readiness(health))(scope, receive, send)

    @cache
    def document() -> Response:  # when it is asked for first: it takes a fifth of a second
        return JSONResponse(api.openapi())

    @cache
    def reader() -> Response:
        return get_swagger_ui_html(openapi_url=str(api.openapi_url), title=api.title)

    async def show_document(scope: Scope, receive: Receive, send: Send) -> None:
        await document()(scope, receive, send)

    async def show_reader(scope: Scope, receive: Receive, send: Send) -> None:
        await reader()(scope, receive, send)

    return {"/livez": ALIVE, "/readyz": ready, api.openapi_url: show_document, api.docs_url: show_reader}
