"""Addresses where there is no node, or another, over real sockets."""

import asyncio
import signal
import socket
import time
from typing import Any

import anyio
import pytest

from app.errors import NodeUnavailable
from app.routing import peers
from app.routing.peers import PeerClient, PeerRefused, PeerUnreachable
from tests.routing.peer_servers import (
    NOTHING,
    accepted,
    answer,
    begin,
    echo,
    full_listener,
    head_of,
    nothing_there,
    post,
    process,
    proof_of,
    proved,
    read_request,
    record,
    scripted,
    serving,
    switching,
    until,
)
from tests.transports.nodes import served

OTHER_KEY = b"x" * 32


# --- where there is no node


async def test_where_nothing_listens_nothing_was_sent(client: PeerClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(PeerUnreachable) as caught:
        await post(client, url)
    assert isinstance(caught.value, NodeUnavailable)
    assert repr(client) == NOTHING


async def test_a_host_that_does_not_answer_is_given_up_after_half_a_second(client: PeerClient) -> None:
    with full_listener() as url:
        started = time.monotonic()
        with pytest.raises(PeerUnreachable):
            await post(client, url)
        assert 0.4 < time.monotonic() - started < 2


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        answer(),
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x-filler: y\r\n" * 10_000,
        b"\0" * 100_000,
    ],
)
async def test_what_is_no_node_is_told_from_one(client: PeerClient, raw: bytes) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        await read_request(reader)
        writer.write(raw)
        await writer.drain()
        if raw:
            assert await reader.read() == b""

    async with scripted(script) as peer:
        with anyio.fail_after(1), pytest.raises(PeerUnreachable):
            await post(client, peer.url)
        await until(lambda: not peer.open and repr(client) == NOTHING)


@pytest.mark.parametrize(
    "raw", [b"", b"HTTP/1.1 101 Switching Pro", b"HTTP/1.1 101 Switching Protocols\r\nupgrade: a\r\n"]
)
async def test_what_does_not_say_who_it_is_is_given_up(client: PeerClient, monkeypatch: Any, raw: bytes) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        writer.write(raw)
        await reader.read()

    monkeypatch.setattr(peers, "PROVE_S", 0.1)
    async with scripted(script) as peer:
        with anyio.fail_after(1), pytest.raises(PeerUnreachable):
            await post(client, peer.url)
        await until(lambda: not peer.open)


async def test_another_program_at_the_address_is_no_node(client: PeerClient) -> None:
    async with served(nothing_there) as url:  # which is what a node that is alone looks like
        with pytest.raises(PeerUnreachable):
            await post(client, url)
        assert await client.probe(url) is None


async def test_a_node_with_another_key_is_not_talked_to(client: PeerClient) -> None:
    async with serving(echo, proof=proof_of("node-b", OTHER_KEY)) as node:
        with pytest.raises(PeerRefused) as caught:
            await post(client, node.url)
        assert not isinstance(caught.value, PeerUnreachable)
        assert await client.probe(node.url) is None
        assert not node.served


@pytest.mark.parametrize("is_replay", [True, False])
async def test_who_only_says_that_it_is_a_node_is_not_believed(client: PeerClient, *, is_replay: bool) -> None:
    proofs: list[bytes] = []

    async def script(reader: Any, writer: Any, number: int) -> None:
        proofs.append(proved(await read_request(reader))[0])
        writer.write(switching(proofs[0] if is_replay else b"6e6f64652d62.00.00"))
        await reader.read()

    async with scripted(script) as peer:
        if is_replay:
            assert await client.probe(peer.url) == "node-b"
        with pytest.raises(PeerRefused):
            await post(client, peer.url)
        await until(lambda: not peer.open)


async def test_nothing_is_sent_to_another_node_at_the_address(client: PeerClient) -> None:
    async with serving(echo, proof=proof_of("node-c")) as node:
        for _ in range(2):
            with pytest.raises(PeerUnreachable):
                await post(client, node.url)
        assert not node.served
        response = await client.send(record(node.url, "node-c"), head_of(), b"x")
        assert await response.body(10) == b"x"


async def test_a_node_that_could_not_be_reached_may_be_a_moment_later(client: PeerClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(PeerUnreachable):
        await post(client, f"http://127.0.0.1:{port}")

    async def script(reader: Any, writer: Any) -> None:
        await accepted(reader, writer)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(script, "127.0.0.1", port):
        (await begin(client, f"http://127.0.0.1:{port}")).close()
        await client.aclose()


# --- who is there


async def test_a_probe_tells_which_node_is_there_and_closes_its_link(client: PeerClient) -> None:
    async with serving(echo) as node:
        assert await client.probe(node.url) == "node-b"
        await until(lambda: "0 links" in repr(node.links) and repr(client) == NOTHING)
        assert await PeerClient(proof_of("node-c", OTHER_KEY)).probe(node.url) is None


async def test_a_probe_takes_no_other_links_word_for_it(client: PeerClient) -> None:
    async with scripted(_accepts_one) as peer:
        response = await begin(client, peer.url)
        assert await client.probe(peer.url) is None
        assert peer.connections == 2
        response.close()
        assert "1 links" in repr(client)


async def _accepts_one(reader: Any, writer: Any, number: int) -> None:
    if number == 1:
        await accepted(reader, writer)
        await reader.read()


async def test_a_probe_of_what_is_frozen_takes_half_a_second_at_most(client: PeerClient) -> None:
    with process() as (url, running):
        assert await client.probe(url) == "node-b"
        running.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        assert await client.probe(url) is None
        assert 0.4 < time.monotonic() - started < 1.5
        await until(lambda: repr(client) == NOTHING)


async def test_a_probe_of_nothing_finds_nobody(client: PeerClient) -> None:
    with process() as (url, running):
        running.kill()
        running.wait()
        assert await client.probe(url) is None
