"""Addresses where there is no node, or another, over real sockets."""

import asyncio
import signal
import socket
import time
from typing import Any

import anyio
import pytest

from app.cluster.peers import client as peer_client
from app.cluster.peers import credentials as node_credentials
from app.cluster.peers._connection import MAX_HEADERS
from app.cluster.peers.client import Deadlines, PeerClient, PeerRefused, PeerUnreachable
from app.errors import NodeUnavailable
from app.sessions.routes import UNPROVEN, is_there
from tests.cluster.peers.rig import (
    NOTHING,
    PATIENT,
    answer,
    credentials,
    echo,
    full_listener,
    greet,
    greeting,
    nothing_there,
    post,
    process,
    read_request,
    record,
    request_of,
    scripted,
    serving,
    turned_for,
    until,
)
from tests.http.remote.nodes import served

OTHER_KEY = b"x" * 32


# --- where there is no node


async def test_where_nothing_listens_nothing_was_sent(client: PeerClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(PeerUnreachable) as caught:
        await post(client, url)
    assert isinstance(caught.value, NodeUnavailable)
    assert repr(client) == NOTHING


async def test_a_host_that_does_not_answer_is_given_up_after_a_second() -> None:
    client = PeerClient(credentials())
    with full_listener() as url:
        started, asking = time.monotonic(), asyncio.ensure_future(post(client, url))
        assert await turned_for(asking) < 4
        assert time.monotonic() - started > 0.9
        with pytest.raises(PeerUnreachable):
            await asking
    await client.aclose()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        answer(),
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x-filler: y\r\n" * 10_000,
        b"HTTP/1.1 200 OK\r\n" + b"x-filler: y\r\n" * (MAX_HEADERS + 2),
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
        with anyio.fail_after(PATIENT.greet_s - 10), pytest.raises(PeerUnreachable):  # that is not waited for
            await post(client, peer.url)
        await until(lambda: not peer.open and repr(client) == NOTHING)


@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 204 No Con", b"HTTP/1.1 204 No Content\r\nupgrade: a\r\n"])
async def test_what_does_not_say_who_it_is_is_given_up(raw: bytes) -> None:
    client = PeerClient(credentials(), Deadlines(greet_s=0.1))

    async def script(reader: Any, writer: Any, number: int) -> None:
        writer.write(raw)
        await reader.read()

    async with scripted(script) as peer:
        with anyio.fail_after(30), pytest.raises(PeerUnreachable):
            await post(client, peer.url)
        await until(lambda: not peer.open)


async def test_another_program_at_the_address_is_no_node(client: PeerClient) -> None:
    async with served(nothing_there) as url:  # which is what a node that is alone looks like
        with pytest.raises(PeerUnreachable):
            await post(client, url)
        assert await client.probe(url) is None


async def test_a_node_with_another_key_is_not_talked_to_and_not_dead(
    client: PeerClient, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(nothing_there, node=credentials("node-b", OTHER_KEY)) as url:
        with pytest.raises(PeerRefused) as caught:
            await post(client, url)
        assert not isinstance(caught.value, PeerUnreachable)
        assert await client.probe(url) == UNPROVEN
        assert is_there(UNPROVEN, "node-b")
        assert client.problems == {url: "it has another SECRET_KEY"}
        assert caplog.text.count("it has another SECRET_KEY") == 1


async def test_a_node_of_another_release_is_not_talked_to_and_not_dead(
    client: PeerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(nothing_there) as url:
        with monkeypatch.context() as patched:
            patched.setattr(node_credentials, "HOP_VERSION", "4")
            with pytest.raises(PeerRefused):
                await post(client, url)
            assert await client.probe(url) == "node-b"
            assert "it is of another release" in client.problems[url]
        assert await client.probe(url) == "node-b"
        assert client.problems == {}


async def test_problems_are_remembered_but_not_without_end(client: PeerClient) -> None:
    for number in range(200):
        client.refused(f"http://{number}", "a problem")
    assert len(client.problems) == 64


@pytest.mark.parametrize("is_replay", [True, False])
async def test_who_only_says_that_it_is_a_node_is_not_believed(client: PeerClient, *, is_replay: bool) -> None:
    said: list[bytes] = []

    async def script(reader: Any, writer: Any, number: int) -> None:
        said.append(greeting(await read_request(reader)))
        forged = b"HTTP/1.1 204 No Content\r\ntrunkline-node: 3.6e6f64652d62.00\r\n\r\n"
        writer.write(said[0] if is_replay else forged)
        await reader.read()

    async with scripted(script) as peer:
        if is_replay:
            assert await client.probe(peer.url) == "node-b"
        with pytest.raises(PeerUnreachable):
            await post(client, peer.url)
        assert await client.probe(peer.url) is None
        await until(lambda: not peer.open)


async def test_nothing_is_sent_to_another_node_at_the_address(client: PeerClient) -> None:
    async with serving(echo, node=credentials("node-c")) as url:
        for _ in range(2):
            with pytest.raises(PeerUnreachable):
                await post(client, url)
        response = await client.send(record(url, "node-c"), request_of(), b"x")
        assert await response.body(10) == b"x"
        assert "1 open, 1 idle" in repr(client)


async def test_a_connection_that_was_kept_does_not_speak_for_the_node_that_is_there_now(client: PeerClient) -> None:
    async with scripted(_greets_once) as peer:
        await post(client, peer.url)
        assert await client.probe(peer.url) is None
        assert peer.connections == 2


async def _greets_once(reader: Any, writer: Any, number: int) -> None:
    if number == 1:
        await greet(reader, writer)
        await read_request(reader)
        writer.write(answer())
        await reader.read()


# --- who is there


async def test_a_probe_tells_which_node_is_there_and_leaves_nothing(client: PeerClient) -> None:
    async with serving(echo) as url:
        assert await client.probe(url) == "node-b"
        assert repr(client) == NOTHING


async def test_a_probe_of_what_is_frozen_takes_half_a_second_at_most(
    client: PeerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process() as (url, running):
        with monkeypatch.context() as patched:
            patched.setattr(peer_client, "PROBE_S", 30.0)  # the process may have to wait for a processor
            assert await client.probe(url) == "node-b"
        running.send_signal(signal.SIGSTOP)
        started, probing = time.monotonic(), asyncio.ensure_future(client.probe(url))
        assert await turned_for(probing) < 2.5
        assert time.monotonic() - started > 0.4
        assert await probing is None
        assert repr(client) == NOTHING


async def test_a_probe_of_nothing_finds_nobody(client: PeerClient) -> None:
    with process() as (url, running):
        running.kill()
        running.wait()
        assert await client.probe(url) is None
