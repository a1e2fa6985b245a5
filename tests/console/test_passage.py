"""Passage: what a page asks for ends with the session of the page."""

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from app.console import passage as module
from app.console.passage import Passage
from app.errors import StorageUnavailable
from app.http.scope import WHEN_GONE
from app.http.transports.request import ClientGone, unless_gone

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
    passage = partial(Passage(cast("Any", sessions), None), stream)
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
        await Passage(cast("Any", Sessions()), None)(call, scope, closed, cast("Any", None))
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
        await Passage(cast("Any", Sessions()), None)(answer, scope, cast("Any", None), send)
        start, *bodies = sent
        found = dict(start["headers"])
        assert (start["status"], len(bodies)) == (status, 1)
        assert b"frame-ancestors 'none'" in found[b"content-security-policy"]
        assert found[b"cross-origin-resource-policy"] == b"same-origin"
        assert found[b"cache-control"] == (b"private" if status == 200 else b"no-store")


def sent_by(path: str, sessions: Sessions, answer: Any) -> tuple[list[Any], Any]:
    """What is sent for a GET of this path, and the request."""
    sent = list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"cookie", COOKIE), (b"x-csrf-token", b"token")]
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
    return sent, partial(Passage(cast("Any", sessions), None), answer, scope, cast("Any", None), send)


async def test_an_answer_that_comes_after_the_session_was_signed_out_is_not_shown() -> None:
    sessions = Sessions()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        sessions.is_signed_in = False
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b'"a secret"'})

    sent, ask = sent_by("/console/-/t/acme/echo/mcp", sessions, slow)
    await ask()
    assert [each["type"] for each in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 401
    assert b"secret" not in sent[1]["body"]


@pytest.mark.parametrize(("kind", "ends"), [(b"text/event-stream; charset=utf-8", True), (b"application/jsonl", False)])
async def test_only_a_stream_of_events_that_is_left_in_the_middle_has_an_end(kind: bytes, ends: bool) -> None:
    async def half(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})

    sent, ask = sent_by("/console/-/api/v1/tenants/acme/inspections/a/messages", Sessions(), half)
    await ask()
    assert (not sent[-1].get("more_body")) is ends


@pytest.mark.parametrize(("is_signed_in", "statuses"), [(False, [401]), (True, [])])
async def test_what_ends_without_an_answer_as_the_session_was_signed_out_says_so(
    is_signed_in: bool, statuses: list[int]
) -> None:
    sessions = Sessions()

    async def gone(scope: Any, receive: Any, send: Any) -> None:
        sessions.is_signed_in = is_signed_in

    sent, ask = sent_by("/console/-/t/acme/echo/mcp", sessions, gone)
    await ask()
    assert [each["status"] for each in sent if "status" in each] == statuses
