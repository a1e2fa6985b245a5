"""What an HTTP protocol has as its transport, over real sockets. test_http_protocol.py uses it too."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator

import pytest

from app.http.edge._tls_transport import MOST_ENCRYPTED_BYTES, TlsTransport
from app.http.edge.connections import TURNS_PER_ROUND
from app.http.edge.http_protocol import AT_ONCE_BYTES
from tests.http.edge.rig import GET, POST, Edge, open_edge, until

pytestmark = pytest.mark.real


@pytest.fixture
async def edge(tls: ssl.SSLContext, trust: ssl.SSLContext) -> AsyncIterator[Edge]:
    async with open_edge(tls=lambda: tls) as edge:
        edge.trust = trust
        yield edge


async def test_a_long_body_arrives_and_returns_whole(edge: Edge) -> None:
    body = bytes(range(256)) * (1 << 12)
    async with edge.client() as client:
        client.send(b"POST /echo?let-in HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        assert await client.answer() == (200, body)
        client.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        assert await client.answer() == (200, body)


async def test_a_long_answer_leaves_no_long_buffer_behind(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET /long HTTP/1.1\r\nhost: a\r\n\r\n")
        await until(lambda: any(each.flow.write_paused for each in edge.protocols))
        (protocol,) = edge.protocols
        assert isinstance(protocol._socket, TlsTransport)
        assert protocol._socket.get_write_buffer_size() > MOST_ENCRYPTED_BYTES
        assert protocol._socket._tls.outgoing.pending == 0
        status, body = await client.answer()
        assert (status, len(body)) == (200, 64 << 20)


async def test_tiny_records_of_a_stranger_are_decrypted_in_turns(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, pumped = [0], list[int]()
    decrypt = TlsTransport._decrypt

    def counted(transport: TlsTransport) -> None:
        if transport._tls.incoming.pending > AT_ONCE_BYTES:
            pumped.append(rounds[0])
        decrypt(transport)

    def count_rounds() -> None:
        rounds[0] += 1
        counting[0] = asyncio.get_running_loop().call_soon(count_rounds)

    monkeypatch.setattr(TlsTransport, "_decrypt", counted)
    counting = [asyncio.get_running_loop().call_soon(count_rounds)]
    async with edge.client() as first, edge.client() as second, edge.client() as third:
        clients = (first, second, third)
        for client in clients:
            client.send(POST + b"content-length: 3000\r\n\r\n")
            for _ in range(3000):
                client.send(b"a")
        assert [await each.answer() for each in clients] == [(200, b"3000")] * 3
    counting[0].cancel()
    assert pumped
    assert max(map(pumped.count, pumped)) <= TURNS_PER_ROUND


async def test_who_says_that_it_sends_no_more_is_told_the_same_and_gone(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(GET)
        await client.answer()
        client.writer.close()  # with close_notify
        await until(lambda: not edge.connections)
    assert not edge.refused


async def test_the_end_of_a_connection_is_said_so_that_it_cannot_be_mistaken_for_a_cut(edge: Edge) -> None:
    """RFC 8446 §6.1."""
    host, port = edge.host.split(":")

    def ask() -> bytes:
        trust, received = edge.trust, b""
        assert trust is not None
        with (
            socket.create_connection((host, int(port))) as tcp,
            trust.wrap_socket(tcp, server_hostname=host, suppress_ragged_eofs=False) as tls,
        ):
            tls.sendall(GET.replace(b"host", b"connection: close\r\nhost"))
            while piece := tls.recv(1000):  # a cut would be an error
                received += piece
        return received

    assert (await asyncio.to_thread(ask)).endswith(b"ok")


async def test_pauses_inside_of_a_piece_hold_back_the_rest_of_it(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET /waits HTTP/1.1\r\n\r\n")
        await edge.app.was_asked.wait()
        for _ in range(3):
            client.send(GET)
        await until(lambda: edge.protocols[0].pipeline)
        edge.app.may_answer.set()
        assert [await client.answer() for _ in range(4)] == [(200, b"ok")] * 4
