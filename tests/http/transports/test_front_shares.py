"""The Front: a tenant over its share of the event loop waits for its turn before anything of a request is read."""

import anyio
import anyio.lowlevel
import pytest

from app.concurrency import loop_share
from app.http.transports import request as requests
from app.http.transports import streamable_http
from app.limits.loop_shares import LoopShares
from tests.http.transports.conftest import Exchanged, FakeAuthenticator, Http
from tests.http.transports.test_front import MCP, initialize
from tests.sessions.fakes import FakePool

NOTE = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


@pytest.fixture
def turns(shares: LoopShares, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who was given a turn, or went on without one."""
    given, turn = list[str](), shares.turn

    async def noted(tenant: str) -> None:
        given.append(tenant)
        await turn(tenant)

    monkeypatch.setattr(shares, "turn", noted)
    return given


async def test_only_requests_of_a_tenant_over_its_share_wait(
    http: Http, pool: FakePool, shares: LoopShares, turns: list[str]
) -> None:
    session = await initialize(http, pool)
    shares.charge("another", 1.0)
    assert (await http.ask("POST", MCP, NOTE, mcp_session_id=session)).status == 202
    assert turns == []
    shares.charge("acme", 0.3)
    with anyio.fail_after(10):
        assert (await http.ask("POST", MCP, NOTE, mcp_session_id=session)).status == 202
    assert turns == ["acme"]


async def test_a_large_body_is_read_in_turn_and_charged(
    http: Http, pool: FakePool, shares: LoopShares, turns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, charged = await initialize(http, pool), list[str]()
    for module in (requests, streamable_http):
        monkeypatch.setattr(module, "HEAVY_BODY", len(NOTE))
    monkeypatch.setattr(shares, "charge", lambda tenant, seconds: charged.append(tenant))
    assert (await http.ask("POST", MCP, NOTE, mcp_session_id=session)).status == 202
    assert (turns, charged) == (["acme"] * 2, ["acme"])  # to be read, and to be handled
    assert (await http.ask("POST", f"/t/acme/echo/messages?sessionId={session}", NOTE)).status == 202
    assert (turns, charged) == (["acme"] * 4, ["acme"] * 2)


async def test_what_was_revoked_during_the_wait_is_refused(
    http: Http, pool: FakePool, shares: LoopShares, authenticator: FakeAuthenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await initialize(http, pool)
    shares.charge("acme", 0.3)

    async def revoked(tenant: str) -> None:
        authenticator.revoke()

    monkeypatch.setattr(shares, "turn", revoked)
    assert (await http.ask("POST", MCP, NOTE, mcp_session_id=session)).status == 401


async def test_what_a_stream_sends_is_charged_to_its_tenant(
    http: Http, pool: FakePool, shares: LoopShares, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_share, "PIECE_S", 0.0)
    session, charged = await initialize(http, pool), list[str]()
    monkeypatch.setattr(shares, "charge", lambda tenant, seconds: charged.append(tenant))
    got = Exchanged()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: http.ask("GET", MCP, into=got, mcp_session_id=session, accept="text/event-stream"))
        with anyio.fail_after(30):
            while not got.body:
                await anyio.lowlevel.checkpoint()
        got.left.set()
    assert set(charged) == {"acme"}
