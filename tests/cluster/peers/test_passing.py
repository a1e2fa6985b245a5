"""What a node that stops does with the answers of other nodes that it passes on. Grace is short here, calls are not."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import pytest

from app.cluster.peers import passing as passing_module
from app.cluster.peers.passing import Kind, Passing
from tests.cluster.peers.rig import asked, scripted, until
from tests.http.remote.nodes import MCP, SendingNode
from tests.http.remote.test_forwarding import PING, Streaming, client_of, two_nodes

pytestmark = pytest.mark.real

LISTEN = {"mcp-method": "subscriptions/listen"}


@pytest.fixture
async def sender() -> AsyncIterator[SendingNode]:
    sender = SendingNode()
    yield sender
    await sender.peers.aclose()


async def draining(passing: Passing, seconds: float) -> int:
    """As a node does that has no sessions of its own."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(passing.end_streams, seconds)
        cut_off = await passing.finish(seconds)
        tasks.cancel_scope.cancel()
    return cut_off


async def test_a_call_that_another_node_answers_is_waited_for(sender: SendingNode) -> None:
    owner = Streaming()
    async with two_nodes(sender, owner) as client:
        call = asyncio.ensure_future(client.post(MCP, content=PING))
        await until(lambda: len(sender.passing) == 1)
        drain = asyncio.ensure_future(draining(sender.passing, 30))
        await asyncio.sleep(0.3)
        assert not drain.done()
        for chunk in (b'{"result":', b"1}", b""):
            owner.chunks.put_nowait(chunk)
            await asyncio.sleep(0.05)
        assert (await call).content == b'{"result":1}'
        assert await drain == 0


@pytest.mark.parametrize(("method", "headers"), [("GET", {}), ("POST", LISTEN)])
async def test_a_stream_without_an_end_is_ended_behind_an_event_and_its_client_comes_back(
    sender: SendingNode, method: str, headers: dict[str, str]
) -> None:
    owner = Streaming()
    async with two_nodes(sender, owner) as client:
        owner.chunks.put_nowait(b"id: 1\ndata: 1\n\n")
        async with client.stream(method, MCP, headers=headers) as response:
            chunks = response.aiter_raw()
            got = await anext(chunks)
            with anyio.fail_after(20):
                assert await draining(sender.passing, 30) == 0
                got += b"".join([chunk async for chunk in chunks])
        event, retry = got.split(b"\n\n")
        assert event == b"id: 1\ndata: 1"
        assert 1000 <= int(retry.removeprefix(b"retry: ")) <= 5000
        with anyio.fail_after(20):
            await owner.is_left.wait()
        assert sender.results() == {"ok": 1}


async def test_half_an_event_is_never_the_end(sender: SendingNode) -> None:
    owner = Streaming()
    async with two_nodes(sender, owner) as client:
        owner.chunks.put_nowait(b"data: 1\n\ndata: 2")
        async with client.stream("GET", MCP) as response:
            chunks = response.aiter_raw()
            got = await anext(chunks)
            drain = asyncio.ensure_future(draining(sender.passing, 30))
            await asyncio.sleep(0.2)
            assert not drain.done()
            owner.chunks.put_nowait(b" and more\n\ndata: 3")
            got += b"".join([chunk async for chunk in chunks])
        assert await drain == 0
        assert got.rpartition(b"\n\n")[0] == b"data: 1\n\ndata: 2 and more"
        assert got.rpartition(b"\n\n")[2].startswith(b"retry: ")


@pytest.mark.parametrize(
    ("headers", "ending"),
    [({"mcp-session-id": "a.b"}, "retry: "), ({}, "event: message")],
    ids=["it can be resumed", "it cannot, in 2026-07-28"],
)
async def test_the_stream_of_a_call_has_the_whole_time_and_then_its_client_is_told_how_to_go_on(
    sender: SendingNode, headers: dict[str, str], ending: str
) -> None:
    owner = Streaming()
    async with two_nodes(sender, owner) as client:
        owner.chunks.put_nowait(b"id: 1\ndata: \n\n")
        async with client.stream("POST", MCP, content=PING, headers=headers) as response:
            chunks = response.aiter_raw()
            got = await anext(chunks)
            drain = asyncio.ensure_future(draining(sender.passing, 2.5))
            await asyncio.sleep(0.2)
            owner.chunks.put_nowait(b"data: 1\n\n")
            assert await anext(chunks) == b"data: 1\n\n"
            with anyio.fail_after(20):
                got += b"".join([chunk async for chunk in chunks])
                assert await drain == 1
        event, end = got.decode().split("\n\n", 1)
        assert event == "id: 1\ndata: "
        assert end.startswith(ending)
        assert ("node_lost" in end) == (not headers)


async def test_a_call_that_takes_longer_than_the_drain_hears_that_its_outcome_is_not_known(
    sender: SendingNode,
) -> None:
    async with two_nodes(sender, Streaming()) as client:
        call = asyncio.ensure_future(client.post(MCP, content=PING))
        await until(lambda: len(sender.passing) == 1)
        with anyio.fail_after(20):
            assert await draining(sender.passing, 0.1) == 1
            answer = await call
    assert (answer.status_code, answer.json()["error"]["data"]["reason"]) == (200, "node_lost")
    assert len(sender.passing) == 0


async def test_a_stream_whose_node_says_nothing_more_in_the_middle_of_an_event_ends_with_the_drain(
    sender: SendingNode,
) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        await asked(reader, writer)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"7\r\ndata: 1\r\n")
        await reader.read()

    async with scripted(script) as peer, client_of(sender) as client:
        sender.to = peer.url
        async with client.stream("GET", MCP) as response:
            chunks = response.aiter_raw()
            await anext(chunks)
            with anyio.fail_after(30):
                await draining(sender.passing, 0.1)
                assert [chunk async for chunk in chunks] == []  # the body is complete: nothing is cut in mid-chunk


async def test_streams_end_some_at_a_time_and_those_of_sessions_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(passing_module, "time", SimpleNamespace(monotonic=lambda: now))

    class One:
        def __init__(self, kind: Kind) -> None:
            self.kind, self.ended_at = kind, 0

        def end(self) -> None:
            self.ended_at = next(ticks)
            passing.over(self)

        def cut(self) -> None:
            raise AssertionError

    passing, ticks = Passing(), iter(range(1, 100))
    session, *streams = everybody = [One(Kind.SESSION), *[One(Kind.LISTENING) for _ in range(20)]]
    for each in everybody:
        passing.begin(each)
    call = One(Kind.CALL)
    passing.begin(call)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(passing.end_streams, 60.0)
        await until(lambda: any(each.ended_at for each in streams))
        assert not all(each.ended_at for each in streams)
        await until(lambda: all(each.ended_at for each in streams))
        assert len(passing) == 2  # the session's and the call
        now = 30.0
        await until(lambda: len(passing) == 1)
        tasks.cancel_scope.cancel()
    assert session.ended_at == 21
    assert not call.ended_at


async def test_a_client_that_reads_nothing_does_not_hold_up_the_end(sender: SendingNode) -> None:
    owner = Streaming()
    async with two_nodes(sender, owner) as client:
        owner.chunks.put_nowait(b"data: 1\n\n")
        async with client.stream("GET", MCP) as response:
            assert isinstance(response, httpx2.Response)
            for _ in range(400):
                owner.chunks.put_nowait(b"x" * 65536)
            await asyncio.sleep(0.3)
            with anyio.fail_after(30):
                await sender.passing.finish(0.1)


async def test_once_it_is_closed_nothing_is_passed_on_and_it_is_said_that_nothing_was(sender: SendingNode) -> None:
    async with two_nodes(sender, Streaming()) as client:
        late = asyncio.ensure_future(client.post(MCP, content=PING))
        await until(lambda: len(sender.passing) == 1)
        with anyio.fail_after(30):
            await sender.passing.close(0.05)
            assert (await late).json()["error"]["data"]["reason"] == "node_lost"
        answer = await client.post(MCP, content=PING)
    assert (answer.status_code, answer.json()["error"]["data"]["reason"]) == (503, "shutting_down")
    assert len(sender.passing) == 0
