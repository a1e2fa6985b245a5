"""What one connection can make the node keep or do before its TLS handshake is over, over real sockets."""

import asyncio
import contextlib
import gc
import itertools
import logging
import socket
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from app.http.edge._tls_transport import Tls
from app.http.edge.connections import TURNS_PER_ROUND
from app.http.edge.handshake import HANDSHAKE_RECORD, Handshake
from tests.certificates import self_signed
from tests.http.edge.rig import GET, Edge, open_edge, until

pytestmark = pytest.mark.real

Server = ssl.SSLContext


@pytest.fixture
async def edge(tls: Server, trust: ssl.SSLContext) -> AsyncIterator[Edge]:
    async with open_edge(tls=lambda: tls) as edge:
        edge.trust = trust
        yield edge


def hello() -> bytes:
    """The first message of a client."""
    arrives, leaves = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(arrives, leaves, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return leaves.read()


async def test_a_client_is_served_over_tls_and_the_application_knows_it(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(GET)
        assert await client.answer() == (200, b"ok")
        version = client.writer.get_extra_info("ssl_object").version()
    assert version == "TLSv1.3"
    assert edge.app.seen[0]["scheme"] == "https"
    await until(lambda: not edge.connections)
    assert not edge.refused


async def test_tls_1_2_is_spoken_and_1_1_is_not(edge: Edge, trust: ssl.SSLContext) -> None:
    trust.maximum_version = ssl.TLSVersion.TLSv1_2
    async with edge.client() as client:
        client.send(GET)
        assert await client.answer() == (200, b"ok")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        trust.minimum_version = trust.maximum_version = ssl.TLSVersion.TLSv1_1
    trust.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match=r"(?i)alert protocol version"):
        async with edge.client():
            pass
    assert edge.refused == ["tls_failed"]


async def test_plain_http_is_told_in_plain_words_that_this_port_speaks_tls(edge: Edge) -> None:
    async with edge.client(plain=True) as client:
        client.send(GET)
        status, body = await client.answer()
        assert (status, b"use https" in body) == (400, True)
        await edge.spend_time(2)
        assert await client.is_closed()
    assert edge.refused == ["plain_http"]
    assert not edge.app.seen
    await until(lambda: not edge.connections)


async def test_a_handshake_that_does_not_end_ends_after_ten_seconds_however_it_trickles(edge: Edge) -> None:
    data = hello()
    async with edge.client(plain=True) as client, edge.client(plain=True) as silent:
        await until(lambda: len(edge.connections) == 2)
        for number in range(3):
            edge.pass_time(3)
            client.send(data[number * 20 : number * 20 + 20])
            await until(lambda: any(each._tls is not None for each in edge.protocols))
            await asyncio.sleep(0.01)
        assert len(edge.connections) == 2
        edge.pass_time(2)
        assert await client.is_closed()
        assert await silent.is_closed()
    assert sorted(edge.refused) == ["handshake_timeout", "silent"]
    assert not edge.connections


async def test_a_handshake_whose_client_says_no_more_ends_too(edge: Edge) -> None:
    async with edge.client(plain=True) as client:
        client.send(hello())
        assert (await client.reader.readexactly(1))[0] == HANDSHAKE_RECORD
        edge.pass_time(11)
        await client.reader.read()
    assert edge.refused == ["handshake_timeout"]


async def test_half_open_handshakes_count_and_make_room_for_whoever_comes(tls: Server, trust: ssl.SSLContext) -> None:
    async with open_edge(tls=lambda: tls, connections=8) as edge, AsyncExitStack() as stack:
        edge.trust = trust
        for number in range(8):
            client = await stack.enter_async_context(edge.client(plain=True))
            client.send(hello()[: 20 * number + 1])
            await until(lambda number=number: len(edge.connections) == number + 1)  # type: ignore[misc]
        edge.trust = None  # half-open ones are there to stay
        reader, writer = await asyncio.open_connection(*edge.host.split(":"), ssl=trust)
        writer.write(GET)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert len(edge.connections) == 7
        assert edge.refused == ["made_room"] * 2
        writer.transport.abort()


async def test_an_address_has_so_many_handshakes(tls: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.http.edge.connections.is_loopback", lambda address: False)
    async with open_edge(tls=lambda: tls, per_address=2) as edge:
        async with edge.client(plain=True) as first, edge.client(plain=True), edge.client(plain=True) as third:
            first.send(hello())
            assert await third.is_closed()
            assert len(edge.connections) == 2
        await until(lambda: not edge.connections)
        assert not edge.connections._of_address
        assert edge.refused == ["address_limit"]


async def test_a_connection_counts_once_for_its_address_from_handshake_to_end(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.edge.connections.is_loopback", lambda address: False)
    async with edge.client() as client:
        client.send(GET)
        await client.answer()
        assert (len(edge.connections), edge.connections._of_address) == (1, {"127.0.0.1": 1})
    await until(lambda: not edge.connections)
    assert not edge.connections._of_address


async def test_a_cut_in_mid_handshake_leaves_nothing_and_logs_nothing(
    edge: Edge, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    data = hello()
    gc.collect()
    gc.disable()
    try:
        for length in (0, 1, 5, 100, len(data)):
            async with edge.client(plain=True) as client:
                client.send(data[:length])
                await until(lambda: edge.connections)
                await asyncio.sleep(0.005)
            await until(lambda: not edge.connections)
        # Nothing of it waits for a garbage collection; what the event loop still holds goes in its next turns.
        await until(lambda: sum(isinstance(each, Handshake) for each in gc.get_objects()) <= 1)
    finally:
        gc.enable()
    assert not [each for each in caplog.records if each.name != "asyncio"]
    assert not edge.refused


async def test_bytes_that_are_no_handshake_get_an_alert_and_no_traceback(
    edge: Edge, caplog: pytest.LogCaptureFixture
) -> None:
    for junk in (b"\x16\x03\x01\x00\x05hello", b"\x16" * 40_000, hello()[:9] + bytes(1000)):
        async with edge.client(plain=True) as client:
            client.send(junk)
            await until(lambda: edge.refused)
            assert edge.refused == ["tls_failed"]
            edge.refused.clear()
            await edge.spend_time(2)
            await until(lambda: not edge.connections)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_a_client_that_does_not_trust_the_certificate_is_counted_as_such(edge: Edge) -> None:
    host, port = edge.host.split(":")

    def connect() -> None:  # asyncio's client sends no alert
        with (
            socket.create_connection((host, int(port))) as tcp,
            ssl.create_default_context().wrap_socket(tcp, server_hostname=host),
        ):
            pass

    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.to_thread(connect)
    await until(lambda: edge.refused)
    assert edge.refused == ["tls_refused"]


async def test_a_damaged_record_ends_the_connection(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(GET)
        await client.answer()
        tcp = client.writer.get_extra_info("socket")
        edge.pass_time(1)
        tcp_copy = tcp.dup()
        tcp_copy.setblocking(False)
        tcp_copy.send(b"\x17\x03\x03\x00\x20" + bytes(32))
        tcp_copy.close()
        await until(lambda: edge.refused)
        assert edge.refused == ["tls_failed"]
    await until(lambda: not edge.connections)


async def test_handshakes_take_turns(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signature takes a while: a crowd that says hello at once must not stop everybody else."""
    begun, rounds, data, loop = 0, list[int](), hello(), asyncio.get_running_loop()
    begin = Tls.begin

    def counted(context: ssl.SSLContext) -> Tls:
        nonlocal begun
        begun += 1
        return begin(context)

    def look() -> None:
        rounds.append(begun)
        if begun < 50:
            loop.call_soon(look)

    monkeypatch.setattr(Tls, "begin", counted)
    async with AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(edge.client(plain=True)) for _ in range(50)]
        await until(lambda: len(edge.connections) == 50)
        for client in crowd:
            client.send(data)
        look()
        await until(lambda: begun == 50)
    assert max(after - before for before, after in itertools.pairwise(rounds)) <= TURNS_PER_ROUND


async def test_who_comes_after_a_change_of_the_certificate_gets_the_new_one_and_who_is_here_goes_on(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    now = list[ssl.SSLContext]()
    async with open_edge(tls=lambda: now[-1]) as edge, AsyncExitStack() as stack:
        clients = []
        for pair in (certificate, self_signed(tmp_path)):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*pair)
            now.append(context)
            edge.trust = ssl.create_default_context(cafile=pair[0])
            clients.append(await stack.enter_async_context(edge.client()))
        for client in clients:
            client.send(GET)
            assert await client.answer() == (200, b"ok")


async def test_a_node_that_ends_waits_for_no_handshake(edge: Edge) -> None:
    async with edge.client(plain=True) as client:
        client.send(hello()[:30])
        await until(lambda: edge.connections)
        (protocol,) = edge.protocols
        assert edge.connections.has_kept
        edge.connections.leave_with_answers()
        protocol.shutdown()
        assert await client.is_closed()
    assert not protocol._server_state.connections
