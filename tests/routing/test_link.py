"""What goes over a link between two nodes, with both ends and over real sockets."""

import asyncio
import time
from typing import Any

import anyio
import pytest

from app.errors import NodeUnavailable
from app.routing import frames, peer_link
from app.routing.frames import (
    DATA,
    END,
    MAX_HEAD_BYTES,
    REQUEST,
    RESPONSE,
    WINDOW_BYTES,
    encode_frame,
)
from app.routing.peers import PeerClient, PeerLost, PeerResponse, PeerUnreachable
from app.transports import node_links
from app.transports.node_links import LinkedRequest
from tests.routing.peer_servers import (
    ALICE,
    Wire,
    accepted,
    asking,
    begin,
    echo,
    head_of,
    post,
    process,
    record,
    say,
    scripted,
    serving,
    stands_still,
    start,
    until,
    until_left,
)

# --- the usual case


async def test_a_request_goes_there_and_its_answer_comes_back(client: PeerClient) -> None:
    async def serve(request: LinkedRequest) -> None:
        await start(request, ((b"a", b"b: c"), (b"A", b""), (b"set", b"1"), (b"set", b"2")))
        await say(request, b"one ", more=True)
        await say(request, b"two")

    async with serving(serve) as node:
        head = head_of("DELETE", b"/a%20b?c=d", ((b"x-a", b"b"), (b"x-a", b"c")))
        response = await client.send(record(node.url), head, b"body")
        assert response.status == 200
        assert response.headers == ((b"a", b"b: c"), (b"A", b""), (b"set", b"1"), (b"set", b"2"))
        assert await response.body(100) == b"one two"
        (request,) = node.served
        assert (request.head, request.body) == (head, b"body")
        scope = request.scope()
        assert (scope["method"], scope["path"], scope["raw_path"]) == ("DELETE", "/a b", b"/a%20b")
        assert (scope["query_string"], scope["headers"]) == (b"c=d", ((b"x-a", b"b"), (b"x-a", b"c")))
        assert request.head.principal == ALICE


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 131072, 1 << 20, 5_000_000])
async def test_bodies_of_any_length_go_both_ways(client: PeerClient, size: int) -> None:
    body = bytes(range(251)) * (size // 251 + 1)
    async with serving(echo) as node:
        assert await post(client, node.url, body[:size]) == body[:size]
        await until(lambda: node.is_idle)


async def test_a_thousand_at_once_each_get_their_own_answer(client: PeerClient) -> None:
    answers: dict[int, bytes] = {}

    async def one(number: int) -> None:
        answers[number] = await post(client, node.url, b"%d" % number * (number % 7))

    async with serving(echo) as node:
        async with anyio.create_task_group() as tasks:
            for number in range(1000):
                tasks.start_soon(one, number)
        assert answers == {number: b"%d" % number * (number % 7) for number in range(1000)}
        assert repr(client) == "<PeerClient [1 links, 0 requests]>"
        assert repr(node.links) == "<NodeLinks [1 links, 0 requests]>"


async def test_answers_come_in_the_order_in_which_they_are_made(client: PeerClient) -> None:
    first = asyncio.Event()

    async def serve(request: LinkedRequest) -> None:
        if request.body == b"slow":
            await first.wait()
        await echo(request)

    async with serving(serve) as node:
        slow = await begin(client, node.url, b"slow")
        assert await post(client, node.url, b"quick") == b"quick"
        assert not slow.status
        first.set()
        await slow.head()
        assert await slow.body(10) == b"slow"


async def test_a_head_that_does_not_come_soon_can_be_waited_for(client: PeerClient) -> None:
    held = asyncio.Event()

    async def serve(request: LinkedRequest) -> None:
        await held.wait()
        await echo(request)

    async with serving(serve) as node:
        response = await begin(client, node.url)
        began_at = time.monotonic()
        assert not await response.has_head_soon()
        assert time.monotonic() - began_at >= peer_link.SOON_S * 0.9
        held.set()
        await response.head()
        assert await response.has_head_soon()
        assert await response.body(10) == b"hello"


async def test_a_body_over_the_limit_is_not_kept(client: PeerClient) -> None:
    async with serving(echo) as node:
        response = await client.send(record(node.url), head_of(), b"x" * 500_000)
        with pytest.raises(PeerLost):
            await response.body(1000)
        await until(lambda: node.is_idle)
        assert await post(client, node.url) == b"hello"


# --- back-pressure


@pytest.mark.parametrize("sizes", [(20_000, 65536), (1, 65536), (40_000, 40_000, 40_000), (65_535, 2, 65_536)])
async def test_parts_of_any_length_get_through_the_window(client: PeerClient, sizes: tuple[int, ...]) -> None:
    """Credit comes in lots: neither end may wait for more of it than the other is going to give."""

    async def serve(request: LinkedRequest) -> None:
        await start(request)
        for size in sizes:
            await say(request, bytes(size), more=True)
        await say(request)

    async with serving(serve) as node:
        with anyio.fail_after(5):
            assert len(await post(client, node.url)) == sum(sizes)


async def test_a_peer_that_is_not_read_stops_and_the_others_on_its_link_go_on(client: PeerClient) -> None:
    sent, total = 0, 8 << 20

    async def serve(request: LinkedRequest) -> None:
        nonlocal sent
        if request.body:
            await echo(request)
            return
        await start(request)
        while sent < total:
            await say(request, bytes(50_000), more=True)
            sent += 50_000
        await say(request)

    async with serving(serve) as node:
        response = await client.send(record(node.url), head_of())
        assert await stands_still(lambda: sent) <= WINDOW_BYTES
        for _ in range(50):
            assert await post(client, node.url, b"x" * 200_000) == b"x" * 200_000
        got, largest = 0, 0
        async for part in response:
            got, largest = got + len(part), max(largest, len(part))
        assert got == sent >= total
        assert largest <= WINDOW_BYTES


async def test_a_node_that_is_frozen_stops_those_that_send_to_it(client: PeerClient) -> None:
    with process() as (url, _):  # it never reads what comes over the link
        sent, total = 0, 100

        async def send() -> None:
            nonlocal sent
            while sent < total:
                response = await begin(client, url, bytes(4 << 20))
                sent += 1
                responses.append(response)

        responses: list[PeerResponse] = []
        sending = asyncio.ensure_future(send())
        assert await stands_still(lambda: sent) < 10
        assert "<PeerClient [1 links, " in repr(client)
        client.abandon(url)
        with pytest.raises(PeerUnreachable):  # it has not sent the next one
            await sending
        for response in responses:
            with pytest.raises(PeerLost):
                await response.head()


async def test_who_waits_to_send_when_the_link_breaks_has_sent_nothing(client: PeerClient) -> None:
    with process() as (url, running):
        first = await begin(client, url, bytes(16 << 20))
        second = asyncio.ensure_future(begin(client, url))
        await asyncio.sleep(0)
        running.kill()
        with pytest.raises(PeerUnreachable):
            await second
        with pytest.raises(PeerLost):
            await first.head()


async def test_an_answering_end_waits_where_the_link_takes_no_more(client: PeerClient, monkeypatch: Any) -> None:
    monkeypatch.setattr(node_links, "WINDOW_BYTES", 1 << 40)  # only the sockets hold it up
    sent = 0

    async def serve(request: LinkedRequest) -> None:
        nonlocal sent
        await start(request)
        while not request.is_over:
            await say(request, bytes(65536), more=True)
            sent += 65536
            await asyncio.sleep(0)

    async with serving(serve) as node, asking(node.url) as wire:
        wire.send(encode_frame(REQUEST | END, 1, frames.encode_request(head_of(), b"")))
        assert 1 << 16 < await stands_still(lambda: sent) < 16 << 20  # what the sockets' buffers take
        before = sent
        while sent == before:
            await wire.frame()


@pytest.mark.parametrize("size", [1, 3])
async def test_many_tiny_parts_in_one_turn_are_as_good_as_a_long_one(client: PeerClient, size: int) -> None:
    """A frame is longer than what is in it: records must not grow over what the other end accepts."""

    async def serve(request: LinkedRequest) -> None:
        await start(request)
        for _ in range(30_000):
            await say(request, bytes(size), more=True)
        await say(request)

    async with serving(serve) as node:
        held = [begin(client, node.url) for _ in range(4)]
        for response in [await each for each in held]:
            await response.head()
            assert len(await response.body(1 << 20)) == 30_000 * size


async def test_all_that_are_cancelled_in_one_turn_are_told_so(client: PeerClient) -> None:
    async with serving(until_left) as node:
        responses = [await begin(client, node.url) for _ in range(1000)]
        await responses[-1].head()
        for response in responses:
            response.close()
        await until(lambda: node.is_idle)
        assert "1 links" in repr(client)


# --- who leaves


async def test_closing_a_response_tells_the_answering_end(client: PeerClient) -> None:
    seen: list[str] = []

    async def serve(request: LinkedRequest) -> None:
        await start(request)
        seen.append((await request.receive())["type"])
        seen.append((await request.receive())["type"])
        await say(request, b"nobody reads this")

    async with serving(serve) as node:
        response = await client.send(record(node.url), head_of())
        response.close()
        response.close()
        assert repr(client) == "<PeerClient [1 links, 0 requests]>"
        await until(lambda: node.is_idle)
        assert seen == ["http.request", "http.disconnect"]
        assert "1 links" in repr(client)


async def test_closing_a_response_lets_go_who_waits_for_room(client: PeerClient) -> None:
    async def serve(request: LinkedRequest) -> None:
        await start(request)
        await say(request, bytes(1 << 20))

    async with serving(serve) as node:
        response = await client.send(record(node.url), head_of())
        response.close()
        await until(lambda: node.is_idle)


async def test_a_complete_answer_is_not_cancelled(client: PeerClient) -> None:
    async with serving(echo) as node:
        response = await client.send(record(node.url), head_of(), b"hello")
        await until(lambda: response.is_complete)
        response.close()
        assert response.take() == b"hello"
        assert await post(client, node.url) == b"hello"


async def test_a_node_that_is_killed_fails_all_that_wait_for_it_at_once(client: PeerClient) -> None:
    with process() as (url, running):
        responses = [await begin(client, url) for _ in range(100)]
        assert not await responses[0].has_head_soon()
        running.kill()
        killed_at = time.monotonic()
        for response in responses:
            with pytest.raises(PeerLost):
                await response.head()
        assert time.monotonic() - killed_at < 1
        assert repr(client) == "<PeerClient [0 links, 0 requests]>"


# --- what goes wrong


async def test_more_requests_than_may_be_under_way_are_refused(client: PeerClient, monkeypatch: Any) -> None:
    monkeypatch.setattr(peer_link, "MAX_STREAMS", 2)
    async with serving(until_left) as node:
        waiting = [await begin(client, node.url) for _ in range(2)]
        with pytest.raises(NodeUnavailable) as caught:
            await begin(client, node.url)
        assert not isinstance(caught.value, PeerUnreachable)
        assert await client.probe(node.url) == "node-b"
        waiting[0].close()
        (await begin(client, node.url)).close()


async def test_a_head_that_is_too_long_is_refused(client: PeerClient) -> None:
    async with serving(echo) as node:
        with pytest.raises(NodeUnavailable, match="too long"):
            await client.begin(record(node.url), head_of(headers=((b"a", bytes(MAX_HEAD_BYTES)),)))
        with pytest.raises(ValueError, match="line break"):
            await client.begin(record(node.url), head_of(headers=((b"a", b"b\nc: d"),)))
        with pytest.raises(ValueError, match="line break"):
            await client.begin(record(node.url), head_of(target=b"/a b"))
        assert repr(client) == "<PeerClient [1 links, 0 requests]>"
        assert await post(client, node.url) == b"hello"


async def answer_badly(wire: Wire, how: str) -> None:
    """Answers a request in a way that no node does."""
    answer = wire.records.record(encode_frame(RESPONSE | END, 1, frames.encode_response(200, [])))
    if how == "changed":
        answer = answer[:-1] + bytes([answer[-1] ^ 1])
    elif how == "repeated":
        answer = wire.records.record(encode_frame(RESPONSE, 2, frames.encode_response(200, []))) * 2
    elif how == "left out":
        answer = wire.records.record(encode_frame(DATA, 1, b""))
    elif how == "too long":
        answer = (frames.MAX_RECORD_BYTES + 1).to_bytes(4) + bytes(16)
    elif how == "over the window":
        answer += b"".join(wire.records.record(encode_frame(DATA, 2, bytes(65536))) for _ in range(2))
    elif how == "other keys":
        answer = frames.RecordWriter(b"k" * 32).record(encode_frame(RESPONSE, 1, frames.encode_response(200, [])))
    wire.writer.write(answer)


@pytest.mark.parametrize("how", ["changed", "repeated", "left out", "too long", "over the window", "other keys"])
async def test_what_a_node_has_not_said_ends_the_link_and_all_that_wait_on_it(client: PeerClient, how: str) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        wire = await accepted(reader, writer)
        await wire.frame()
        await wire.frame()
        await answer_badly(wire, how)
        closed.append(await wire.is_closed())

    closed: list[bool] = []
    async with scripted(script) as peer:
        responses = [await begin(client, peer.url) for _ in range(3)]
        for response in responses[1:]:
            with pytest.raises(PeerLost):
                await response.body(1 << 30)
        await until(lambda: closed and repr(client) == "<PeerClient [0 links, 0 requests]>")
