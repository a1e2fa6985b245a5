"""Site: the pages of the console by their address."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from app.auth.authorization.server import AuthorizationServers
from app.console import consent
from app.console.assets import Assets
from app.console.consent import Consent
from app.console.cookies import path_of
from app.console.issuer_sign_in import DONE, IssuerSignIn
from app.console.renewals import Renewals
from app.console.rest import Me, Refused, Rest
from app.console.sessions import ConsoleSessions
from app.console.signing import HOME, Signing
from app.console.views import PAGES
from app.console.visit import HEADERS, Page, Templates, Visit, locked_down
from app.errors import GatewayError
from app.http.errors import http_status
from app.limits.caller_rates import RateLimiter

log = logging.getLogger(__name__)

_Answer = Callable[[Request], Awaitable[Response]]


class Limits(NamedTuple):
    """By address."""

    sign_ins: RateLimiter
    authorizations: RateLimiter


class Site:
    """The console at /console, before `api`, which answers everything else, and which the pages ask. `me`: see Rest."""

    def __init__(  # noqa: PLR0913 - once, of parts
        self,
        api: FastAPI,
        me: Me,
        sessions: ConsoleSessions,
        by_issuer: IssuerSignIn,
        servers: AuthorizationServers,
        limits: Limits,
        public_url: str | None,
    ) -> None:
        assets = Assets()
        self._api, self._rest, self._templates = api, Rest(api, me), Templates(assets, path_of(public_url))
        self._renewals = Renewals()
        parts = self._rest, self._templates
        self._signing = signing = Signing(sessions, by_issuer, servers, limits.sign_ins, *parts, public_url)
        asking = Consent(servers, signing, *parts, limits.authorizations)
        self._router = Router(
            [
                Route(f"{HOME}/assets/{{version}}/{{name}}", assets.answer, methods=["GET"]),
                Route(f"{HOME}/sign-in", self._guarded(signing.show), methods=["GET"]),
                Route(f"{HOME}/sign-in", self._guarded(signing.sign_in), methods=["POST"]),
                Route(f"{HOME}/sign-in/with", self._guarded(signing.with_issuer), methods=["GET"]),
                Route(DONE, self._guarded(signing.back), methods=["GET"]),
                Route(consent.PATH, self._guarded(asking.show), methods=["GET"]),
                Route(consent.PATH, self._guarded(asking.answered), methods=["POST"]),
                Route(f"{HOME}/sign-out", self._guarded(signing.sign_out), methods=["POST"]),
                *(
                    Route(HOME + path, self._guarded(partial(self._page, page)), methods=["GET"])
                    for path, page in PAGES
                ),
                Route(f"{HOME}/{{rest:path}}", self._guarded(partial(self._page, _nothing))),
            ],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a page, or hands the request on to REST."""
        path: str = scope["path"]
        if path == HOME or path.startswith(HOME + "/") or (path.startswith("/oauth/") and path.endswith("/authorize")):
            await self._router(scope, receive, _with_headers(send))
        else:
            await self._api(scope, receive, send)

    async def _page(self, page: Page, request: Request) -> Response:
        signed_in = await self._signing.who(request)
        if signed_in is None:
            return self._signing.sign_in_first(request)
        try:
            me = await self._rest.me(request.scope, signed_in)
            visit = Visit(request, signed_in, me, self._rest, self._templates)
        except Refused as refused:
            if refused.status in (401, 403, 404):  # the key was revoked, or the tenant is gone
                return self._signing.sign_in_first(request)
            return self._failed(refused)
        try:
            if visit.renewed:
                return await self._renewals.get(
                    visit.what, partial(page, visit), request.headers.get("if-none-match", "")
                )
            return await page(visit)
        except Refused as refused:
            if refused.status == 401:
                return self._signing.sign_in_first(request)
            if visit.renewed:
                return Response(status_code=refused.status, headers=HEADERS)
            return visit.show("refused.html", refused.status, refused=refused)

    def _failed(self, refused: Refused) -> Response:
        return self._templates.response("failed.html", {"words": str(refused)}, refused.status)

    def _guarded(self, answer: _Answer) -> _Answer:
        async def guarded(request: Request) -> Response:
            try:
                return await answer(request)
            except GatewayError as error:  # RateLimited, StorageUnavailable
                return self._failed(Refused(http_status(error), {"detail": str(error)}))
            except Exception:
                log.exception(
                    "A page of the console failed: a bug in the gateway", extra={"path": request.scope["path"]}
                )
                return self._failed(Refused(500, {"detail": "This page failed; the node's log says why."}))

        return guarded


def _with_headers(send: Send) -> Send:
    """Whatever the console answers, also to a method that it does not know, has the headers of its pages."""

    async def locked(message: Message) -> None:
        await send(locked_down(message) if message["type"] == "http.response.start" else message)

    return locked


async def _nothing(visit: Visit) -> HTMLResponse:
    raise Refused(404, {"title": "There is no such page"})
