"""Passage: what the pages' scripts ask of this gateway, with the cookie instead of a key.

`/console/-/api/v1/…` and `/console/-/t/…` are the REST API and the MCP endpoints. The request goes back to the front
with the credential of whoever has signed in, and is checked there like any other: the console can do what REST allows
it.
"""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.console.cookies import SESSION, reached
from app.console.sessions import REMEMBERED, ConsoleSessions, SignedIn
from app.console.visit import locked_down
from app.errors import StorageUnavailable
from app.http.header_fields import API_KEY
from app.http.problems import ProblemResponse
from app.http.scope import WHEN_GONE
from app.http.transports.front import FROM_PAGES
from app.protocol.headers import EVENTS

PREFIX = FROM_PAGES.removesuffix("/")
LOOK_EVERY_S = REMEMBERED.total_seconds()  # so long after a sign-out a stream may go on
CSRF = b"x-csrf-token"
_REST = "/api/v1/"
_TO = (_REST, "/t/")
_FOREIGN = "The request did not come from a page of the console"
_READING = frozenset({"GET", "HEAD"})
_DROPPED = frozenset({b"cookie", b"authorization", API_KEY, CSRF})


class Passage:
    """Of the console's sessions."""

    def __init__(self, sessions: ConsoleSessions, public_url: str | None) -> None:
        self._sessions, self._public_url = sessions, public_url

    async def __call__(self, gateway: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Changes the request into one with an Authorization header for the gateway, or refuses it."""
        answer = await self._changed(scope)
        if isinstance(answer, ProblemResponse):
            await answer(scope, receive, _Reply(send).send)
            return
        cookie = SESSION.of(scope["headers"], reached(self._public_url, scope)) or b""
        reply = _Reply(send, partial(self._is_signed_out, cookie))
        await gateway(answer, self._while_signed_in(cookie, receive), reply.send)
        await reply.finish()

    def _while_signed_in(self, cookie: bytes, receive: Receive) -> Receive:
        """A stream ends as if its reader had left once the session is signed out, wherever that was."""

        async def received() -> Message:
            while True:
                with anyio.move_on_after(LOOK_EVERY_S):
                    return await receive()
                if await self._is_signed_out(cookie):
                    return {"type": "http.disconnect"}

        return received

    async def _is_signed_out(self, cookie: bytes) -> bool:
        """Not, as far as is known, while the database is away: it was not when the request came."""
        try:
            return await self._sessions.find(cookie) is None
        except StorageUnavailable:
            return False

    async def _changed(self, scope: Scope) -> Scope | ProblemResponse:
        path, raw = scope["path"].removeprefix(PREFIX), scope.get("raw_path") or scope["path"].encode()
        if not path.startswith(_TO) or not raw.startswith(PREFIX.encode()):
            return ProblemResponse(404, "not_found")
        try:
            signed_in = await self._signed_in(scope)
        except StorageUnavailable as error:
            return ProblemResponse(503, error.reason, detail=str(error))
        if signed_in is None:
            return _signed_out()
        if not _is_ours(scope["method"], path, dict(scope["headers"]), signed_in):
            return ProblemResponse(403, "not_from_the_console", detail=_FOREIGN)
        kept = [(name, value) for name, value in scope["headers"] if name not in _DROPPED]
        headers = [*kept, (b"authorization", signed_in.authorization)]
        changed = {**scope, "path": path, "raw_path": raw.removeprefix(PREFIX.encode()), "headers": headers}
        changed.pop(WHEN_GONE, None)  # the edge knows only its own scope: who waits for the client asks `receive`
        return changed

    async def _signed_in(self, scope: Scope) -> SignedIn | None:
        cookie = SESSION.of(scope["headers"], reached(self._public_url, scope))
        return None if cookie is None else await self._sessions.find(cookie)


class _Reply:
    """An answer of the gateway on its way to a page, with the headers of pages: no other site shows or loads it. Who
    `is_signed_out` when it begins, perhaps long after the request, does not get it."""

    def __init__(self, send: Send, is_signed_out: Callable[[], Awaitable[bool]] | None = None) -> None:
        self._send, self._is_signed_out = send, is_signed_out
        self._has_begun = self._is_open = self._is_stream = self._is_withheld = False

    async def send(self, message: Message) -> None:
        if self._is_withheld:
            return
        if message["type"] == "http.response.start":
            self._has_begun = True
            if self._is_signed_out is not None and await self._is_signed_out():
                self._is_withheld = True
                await self._refuse()
                return
            message = locked_down(message)
            self._is_stream = _is_event_stream(message)
        self._is_open = message["type"] == "http.response.start" or bool(message.get("more_body"))
        await self._send(message)

    async def _refuse(self) -> None:
        refusal = _signed_out()
        start = {"type": "http.response.start", "status": refusal.status_code, "headers": refusal.raw_headers}
        await self._send(locked_down(start))
        await self._send({"type": "http.response.body", "body": refusal.body})

    async def finish(self) -> None:
        """Ends a stream that was begun, if it is not over. Anything else breaks off: nobody must take it for whole.
        Where there is no answer, as its reader had left by signing out, says so."""
        if not self._has_begun and self._is_signed_out is not None and await self._is_signed_out():
            await self._refuse()
        elif self._is_open and self._is_stream:
            await self._send({"type": "http.response.body", "body": b""})


def _is_event_stream(start: Message) -> bool:
    return any(name == b"content-type" and value.startswith(EVENTS.encode()) for name, value in start["headers"])


def _signed_out() -> ProblemResponse:
    return ProblemResponse(401, "signed_out", detail="You are signed out. Sign in again.")


def _is_ours(method: str, path: str, headers: Mapping[bytes, bytes], signed_in: SignedIn) -> bool:
    """Whether a page of this session asks. To read REST needs no token, as nothing changes. A GET of an MCP endpoint
    may open a session, and browsers send no Origin with it: the token, which no other site knows, is enough."""
    if method in _READING and path.startswith(_REST):
        return True
    has_token = hmac.compare_digest(headers.get(CSRF, b""), signed_in.csrf.encode())
    return has_token and (method in _READING or is_same_origin(headers))


def is_same_origin(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser says that the request comes from a page of ours. The scheme is not compared: behind a proxy
    that terminates TLS it may differ."""
    origin = headers.get(b"origin", b"").lower().partition(b"://")[2]
    site = headers.get(b"sec-fetch-site", b"same-origin")
    return bool(origin) and origin == headers.get(b"host", b"").lower() and site == b"same-origin"
