"""The end of a link between two nodes that answers, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from app.routing import frames
from app.routing.frames import (
    DATA,
    END,
    REQUEST,
    RESPONSE,
    encode_frame,
    encode_number,
)
from app.routing.peers import PeerClient, PeerLost, PeerUnreachable
from app.transports import node_links
from app.transports.node_links import LinkedRequest
from tests.routing.peer_servers import (
    accepted,
    asking,
    asks_for_link,
    begin,
    connection_to,
    echo,
    head_of,
    post,
    proof_of,
    record,
    say,
    scripted,
    serving,
    start,
    until,
    until_left,
)


@pytest.fixture
async def client() -> AsyncIterator[PeerClient]:
    client = PeerClient(proof_of("node-a"))
    yield client
    await client.aclose()


class Held:
    """Serves what waits until it is told to go on."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()

    async def __call__(self, request: LinkedRequest) -> None:
        await start(request)
        await self.may_go_on.wait()
        await say(request, request.body)


# --- requests


async def test_a_request_body_over_the_limit_is_kept_up_to_just_above_it(client: PeerClient, monkeypatch: Any) -> None:
    async def serve(request: LinkedRequest) -> None:
        await start(request)
        await say(request, b"%d" % len(request.body))

    async with serving(serve) as node:
        monkeypatch.setattr(node.links, "_max_body_bytes", 100_000)
        assert await post(client, node.url, bytes(300_000)) == b"100001"


async def test_requests_that_go_on_after_their_clients_have_left_do_not_break_the_link(
    client: PeerClient, monkeypatch: Any
) -> None:
    """The asking end counts those that it waits for, the answering end those that it works for."""
    monkeypatch.setattr(node_links, "MAX_STREAMS", 3)
    held = Held()
    async with serving(held) as node:
        waiting = await client.send(record(node.url), head_of(), b"first")
        for _ in range(2):
            (await client.send(record(node.url), head_of())).close()
        response = await client.send(record(node.url), head_of())
        assert (response.status, dict(response.headers)[b"retry-after"]) == (503, b"1")
        held.may_go_on.set()
        assert await waiting.body(10) == b"first"
        await until(lambda: node.is_idle)
        assert await post(client, node.url) == b"hello"


async def test_an_asking_end_that_vanishes_is_a_client_that_leaves() -> None:
    async with serving(until_left) as node:
        async with asking(node.url) as wire:
            wire.send(*(encode_frame(REQUEST | END, n, frames.encode_request(head_of(), b"")) for n in (1, 2, 3)))
            for _ in range(3):
                assert (await wire.frame()).kind == RESPONSE
        await until(lambda: repr(node.links) == "<NodeLinks [0 links, 0 requests]>")
        await until(lambda: all(request.is_over for request in node.served))


async def test_closing_ends_what_still_answers_for_a_link_that_is_gone() -> None:
    ended: list[bool] = []

    async def serve(request: LinkedRequest) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    async with serving(serve) as node:
        async with asking(node.url) as wire:
            wire.send(encode_frame(REQUEST | END, 1, frames.encode_request(head_of(), b"")))
            await until(lambda: node.served)
        await until(lambda: node.served[0].is_over)
        assert not ended
        node.links.close()
        await until(lambda: ended)


# --- leaving


async def test_a_node_that_leaves_answers_what_it_has_begun(client: PeerClient) -> None:
    held = Held()
    async with serving(held) as node:
        response = await client.send(record(node.url), head_of(), b"begun")
        leaving = asyncio.ensure_future(node.links.leave(5))
        await until(lambda: not client._links)
        assert not leaving.done()
        held.may_go_on.set()
        assert await response.body(10) == b"begun"
        await leaving
        await until(lambda: repr(client) == "<PeerClient [0 links, 0 requests]>")


async def test_a_link_that_is_left_ends_when_nobody_waits_for_its_answers(client: PeerClient) -> None:
    async with serving(until_left) as node:
        responses = [await begin(client, node.url) for _ in range(2)]
        await responses[1].head()
        leaving = asyncio.ensure_future(node.links.leave(5))
        await until(lambda: not client._links)
        responses[0].close()
        assert "1 links, 1 requests" in repr(client)
        responses[1].close()
        await leaving
        await until(lambda: "0 links" in repr(client))


async def test_what_comes_after_a_node_has_said_so_is_not_executed(client: PeerClient) -> None:
    held = Held()
    async with serving(held) as node:
        begun = await client.send(record(node.url), head_of(), b"begun")
        leaving = asyncio.ensure_future(node.links.leave(5))
        late = await begin(client, node.url, b"late")  # before it has heard of that
        large = await begin(client, node.url, bytes(1 << 20))
        for response in (late, large):
            with pytest.raises(PeerUnreachable):
                await response.head()
        with pytest.raises(PeerUnreachable):  # over a new link
            await client.send(record(node.url), head_of(), b"later still")
        held.may_go_on.set()
        assert await begun.body(10) == b"begun"
        await leaving
        assert [request.body for request in node.served] == [b"begun"]


async def test_a_body_that_was_on_its_way_is_answered(client: PeerClient) -> None:
    async with serving(echo) as node, asking(node.url) as wire:
        wire.send(encode_frame(REQUEST, 1, frames.encode_request(head_of(), b"")))
        await until(lambda: "1 requests" in repr(node.links))
        leaving = asyncio.ensure_future(node.links.leave(5))
        assert (await wire.frame()).kind == frames.LEAVING
        wire.send(encode_frame(DATA, 1, b"in "), encode_frame(DATA | END, 1, b"parts"))
        assert (await wire.frame()).kind == RESPONSE
        assert (await wire.frame()).payload == b"in parts"
        wire.writer.close()
        await leaving


async def test_the_next_request_after_leaving_opens_a_new_link(client: PeerClient) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        wire = await accepted(reader, writer)
        while True:
            frame = await wire.frame()
            if number == 1 and frame.stream == 2:
                wire.send(encode_frame(frames.LEAVING, 0, encode_number(1)))
            else:
                wire.send(encode_frame(RESPONSE | END, frame.stream, frames.encode_response(200, [])))

    async with scripted(script) as peer:
        assert await post(client, peer.url) == b""
        with pytest.raises(PeerUnreachable):
            await post(client, peer.url)
        assert await post(client, peer.url) == b""
        assert peer.connections == 2
        await until(lambda: peer.open == 1)


async def test_a_node_waits_for_the_others_only_so_long(client: PeerClient) -> None:
    async with serving(Held()) as node:
        response = await client.send(record(node.url), head_of(), b"begun")
        with anyio.fail_after(2):
            await node.links.leave(0.05)
        node.links.close()
        with pytest.raises(PeerLost):
            await response.body(10)


async def test_a_node_without_links_leaves_at_once() -> None:
    async with serving(echo) as node:
        with anyio.fail_after(1):
            await node.links.leave(60)


# --- what goes wrong


@pytest.mark.parametrize("header", [(b"a", b"x" * 600_000), (b"a", b"b\nc: d")])
async def test_an_answer_whose_head_cannot_be_sent_is_the_answering_ends_failure(
    client: PeerClient, header: tuple[bytes, bytes]
) -> None:
    async def serve(request: LinkedRequest) -> None:
        if request.body == b"bad":
            await start(request, (header,))
        await echo(request)

    async with serving(serve) as node:
        waiting = await begin(client, node.url, b"good")
        assert (await client.send(record(node.url), head_of(), b"bad")).status == 500
        await waiting.head()
        assert await waiting.body(10) == b"good"
        assert "1 links" in repr(client)


async def test_what_fails_before_its_head_is_a_500(client: PeerClient) -> None:
    async def serve(request: LinkedRequest) -> None:
        raise RuntimeError("a bug")

    async with serving(serve) as node:
        response = await client.send(record(node.url), head_of())
        assert (response.status, await response.body(10)) == (500, b"")
        await until(lambda: node.is_idle)


@pytest.mark.parametrize("fails", [True, False])
async def test_what_ends_after_its_head_gives_what_came_and_then_fails(client: PeerClient, *, fails: bool) -> None:
    async def serve(request: LinkedRequest) -> None:
        await start(request)
        await say(request, b"first", more=True)
        if fails:
            raise RuntimeError("a bug")

    async with serving(serve) as node:
        response = await client.send(record(node.url), head_of())
        assert await anext(response) == b"first"
        for _ in range(2):
            with pytest.raises(PeerLost):
                await anext(response)
        await until(lambda: node.is_idle)
        assert "1 links" in repr(client)


async def test_the_answering_end_believes_nothing_else_either() -> None:
    async with serving(echo) as node:
        for bad in (b"GET / HTTP/1.1\r\n\r\n" * 3, bytes(20), b"\0\0\0\1" + bytes(17)):
            async with asking(node.url) as wire:
                wire.writer.write(bad)
                assert await wire.is_closed()
        async with asking(node.url) as wire:
            request = frames.encode_request(head_of(), b"")
            wire.send(encode_frame(REQUEST | END, 2, request))
            wire.send(encode_frame(REQUEST | END, 2, request))  # its number has been used
            assert await wire.is_closed()
        await until(lambda: repr(node.links) == "<NodeLinks [0 links, 0 requests]>")
        assert len(node.served) == 1


async def test_a_link_over_which_nothing_comes_is_closed(monkeypatch: Any) -> None:
    monkeypatch.setattr(node_links, "SILENT_S", 0.05)
    async with serving(echo) as node, asking(node.url) as speaking, asking(node.url) as silent:
        speaking.send(encode_frame(REQUEST | END, 1, frames.encode_request(head_of(), b"")))
        assert (await speaking.frame()).kind == RESPONSE
        assert await silent.is_closed()  # the later of the two
        await until(lambda: repr(node.links) == "<NodeLinks [1 links, 0 requests]>")


async def test_only_so_many_links_are_accepted(client: PeerClient, monkeypatch: Any) -> None:
    monkeypatch.setattr(node_links, "MAX_LINKS", 1)
    async with serving(echo) as node, asking(node.url), connection_to(node.url) as (reader, writer):
        writer.write(asks_for_link(proof_of("node-a").challenge()))
        assert (await reader.read()).startswith(b"HTTP/1.1 403 ")


async def test_a_link_is_the_first_thing_on_its_connection(client: PeerClient) -> None:
    """What was asked before would be answered in the middle of the link, and its own end would never hear of the
    connection's."""
    async with serving(echo) as node, connection_to(node.url) as (reader, writer):
        link = asks_for_link(proof_of("node-a").challenge())
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" + link)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
        assert "0 links" in repr(node.links)


@pytest.mark.parametrize("challenge", [b"", b".", b"a.b", b"\xff" * 50, b"x" * 5000])
async def test_who_is_no_node_gets_no_link(challenge: bytes) -> None:
    async with serving(echo) as node, connection_to(node.url) as (reader, writer):
        writer.write(asks_for_link(challenge))
        assert (await reader.read()).startswith(b"HTTP/1.1 403 ")
        assert "0 links" in repr(node.links)
