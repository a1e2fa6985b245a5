"""Passage: what a page asks for ends with the session of the page."""

from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from app.console import passage as module
from app.console.passage import Passage
from app.errors import StorageUnavailable
from app.http.scope import WHEN_GONE
from app.transports.client_gone import ClientGone, unless_gone

COOKIE = b"trunkline-console=abc"


class Sessions:
    """One that is signed out some time; the database is away once before."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_signed_in = True

    async def find(self, cookie: bytes) -> Any:
        assert cookie == b"abc"
        self.asked += 1
        if self.asked == 3:
            raise StorageUnavailable

        class SignedIn:
            authorization, csrf = b"Bearer key", "token"

        return SignedIn if self.is_signed_in else None


async def stream(scope: Any, receive: Any, send: Any) -> None:
    """Answers until its reader leaves."""
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while (await receive())["type"] != "http.disconnect":
        await send({"type": "http.response.body", "body": b"x", "more_body": True})


async def test_a_stream_ends_soon_after_its_session_was_signed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)
    sessions, sent = Sessions(), list[Any]()
    passage = Passage(stream, cast("Any", sessions), None)
    headers = [(b"cookie", COOKIE), (b"x-csrf-token", b"token")]
    scope = {"type": "http", "method": "GET", "path": "/console/-/t/acme/echo/mcp", "headers": headers}

    async def nothing_comes() -> Any:
        await anyio.sleep_forever()

    async def send(message: Any) -> None:
        sent.append(message)

    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(5):
            tasks.start_soon(passage, scope, nothing_comes, send)
            while sessions.asked < 6:
                await anyio.sleep(0.01)
            assert [each["type"] for each in sent] == ["http.response.start"]
            sessions.is_signed_in = False
            while len(sent) < 2:
                await anyio.sleep(0.01)
    assert sent[-1] == {"type": "http.response.body", "body": b""}


async def test_a_call_whose_page_is_closed_is_cancelled() -> None:
    gone = list[bool]()

    async def call(scope: Any, receive: Any, send: Any) -> None:
        try:
            await unless_gone(cast("Any", SimpleNamespace(scope=scope, receive=receive)), anyio.sleep_forever)
        except ClientGone:
            gone.append(True)

    async def closed() -> Any:
        return {"type": "http.disconnect"}

    headers = [(b"cookie", COOKIE), (b"x-csrf-token", b"token"), (b"origin", b"http://gw"), (b"host", b"gw")]
    scope = {"type": "http", "method": "POST", "path": "/console/-/t/a/b/mcp", "headers": headers, WHEN_GONE: None}
    with anyio.fail_after(5):
        await Passage(call, cast("Any", Sessions()), None)(scope, closed, cast("Any", None))
    assert gone == [True]


async def test_an_answer_of_the_gateway_is_locked_down_as_pages_are_and_keeps_its_own_headers() -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"cache-control", b"private"), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    sent = list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    for cookie, status in ((COOKIE, 200), (b"", 401)):
        sent.clear()
        headers = [(b"cookie", cookie)]
        scope = {"type": "http", "method": "GET", "path": "/console/-/api/v1/me", "headers": headers}
        await Passage(answer, cast("Any", Sessions()), None)(scope, cast("Any", None), send)
        start, *bodies = sent
        found = dict(start["headers"])
        assert (start["status"], len(bodies)) == (status, 1)
        assert b"frame-ancestors 'none'" in found[b"content-security-policy"]
        assert found[b"cross-origin-resource-policy"] == b"same-origin"
        assert found[b"cache-control"] == (b"private" if status == 200 else b"no-store")
