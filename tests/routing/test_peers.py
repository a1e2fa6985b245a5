"""Links to other nodes: how they are opened, kept and closed, over real sockets. What goes over them: test_link.py."""

import asyncio
import datetime
import gc
import ipaddress
from pathlib import Path
from typing import Any

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from app.errors import NodeLost
from app.routing import peers
from app.routing.frames import LEAVING, encode_frame, encode_number
from app.routing.peer_link import PeerLink
from app.routing.peers import PeerClient, PeerLost, PeerUnreachable
from app.transports.node_links import LinkedRequest, ServingLink
from tests.routing.peer_servers import (
    NOTHING,
    accepted,
    begin,
    echo,
    full_listener,
    head_of,
    post,
    process,
    proof_of,
    proved,
    read_request,
    record,
    say,
    scripted,
    serving,
    start,
    switching,
    until,
)


async def never(request: LinkedRequest) -> None:
    """Does not answer for as long as anybody waits."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def says_nothing(reader: Any, writer: Any, number: int) -> None:
    await reader.read()


class Complaints:
    """What the event loop has to say of futures and tasks whose errors nobody has looked at."""

    def __init__(self) -> None:
        self.said: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.said.append(context["message"]))

    def all(self) -> list[str]:
        gc.collect()
        asyncio.get_running_loop().set_exception_handler(None)
        return self.said


# --- opening


async def test_a_link_is_asked_for_as_a_request_that_changes_its_protocol(client: PeerClient) -> None:
    asked = []

    async def script(reader: Any, writer: Any, number: int) -> None:
        asked.append(await read_request(reader))

    async with scripted(script) as peer:
        with pytest.raises(PeerUnreachable):
            await post(client, peer.url)
    lines = asked[0].split(b"\r\n")
    host = peer.url.removeprefix("http://").encode()
    assert lines[:4] == [
        b"GET /internal/link HTTP/1.1",
        b"host: " + host,
        b"connection: upgrade",
        b"upgrade: trunkline-link",
    ]
    assert lines[4].startswith(b"trunkline-challenge: ")


async def test_all_that_come_at_once_go_over_one_link(client: PeerClient) -> None:
    async with serving(echo) as node:
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(post, client, node.url, b"%d" % number)
        assert (len(node.served), repr(node.links)) == (100, "<NodeLinks [1 links, 0 requests]>")
        await post(client, node.url)
        assert repr(client) == "<PeerClient [1 links, 0 requests]>"


async def test_who_leaves_while_a_link_is_opened_does_not_take_it_from_the_others(client: PeerClient) -> None:
    async with serving(echo) as node:
        waiting = [asyncio.ensure_future(post(client, node.url)) for _ in range(5)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[3].cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [each if isinstance(each, bytes) else None for each in results] == [
            None,
            b"hello",
            b"hello",
            None,
            b"hello",
        ]
        assert "1 links" in repr(node.links)


async def test_each_node_has_a_link_of_its_own(client: PeerClient) -> None:
    async with serving(echo) as one, serving(echo, proof=proof_of("node-c")) as other:
        for url, name in ((one.url, "node-b"), (other.url, "node-c")) * 2:
            response = await client.send(record(url, name), head_of(), b"x")
            assert await response.body(10) == b"x"
        assert repr(client) == "<PeerClient [2 links, 0 requests]>"
        client.abandon(one.url)
        await until(lambda: "1 links" in repr(client))
        response = await client.send(record(other.url, "node-c"), head_of(), b"x")
        assert "1 links" in repr(other.links)


async def test_a_link_that_has_broken_is_not_used_again(client: PeerClient) -> None:
    async with serving(echo) as node:
        await post(client, node.url)
        node.links.close()
        await until(lambda: repr(client) == NOTHING)
        assert await post(client, node.url) == b"hello"


async def test_an_answer_may_come_in_pieces(client: PeerClient) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        proof, _ = proved(await read_request(reader))
        for byte in switching(proof):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    async with scripted(script) as peer:
        (await begin(client, peer.url)).close()
        assert "1 links" in repr(client)


async def test_a_node_may_leave_in_the_same_breath(client: PeerClient) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        wire = await accepted(reader, writer)
        wire.send(encode_frame(LEAVING, 0, encode_number(0)))
        assert await reader.read() == b""

    async with scripted(script) as peer:
        with pytest.raises(PeerUnreachable):
            await post(client, peer.url)
        await until(lambda: not peer.open)


async def test_https_is_spoken_where_the_url_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = _certificate(tmp_path)
    async with serving(echo, ssl_certfile=str(certificate), ssl_keyfile=str(tmp_path / "key.pem")) as node:
        stranger = PeerClient(proof_of("node-a"))
        with pytest.raises(PeerUnreachable):  # nobody vouches for this certificate
            await post(stranger, node.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        client = PeerClient(proof_of("node-a"))
        assert await post(client, node.url, b"sealed" * 100_000) == b"sealed" * 100_000
        assert await client.probe(node.url) == "node-b"
        await client.aclose()
        await until(lambda: "0 links" in repr(node.links))


# --- who leaves


async def test_a_failure_that_nobody_waits_for_any_more_is_not_complained_of(client: PeerClient) -> None:
    complaints = Complaints()
    closing = asyncio.Event()

    async def script(reader: Any, writer: Any, number: int) -> None:
        await closing.wait()

    async with scripted(script) as peer:
        with anyio.move_on_after(0.05):
            await post(client, peer.url)
        assert client._connecting
        closing.set()
        await until(lambda: not client._connecting)
    assert complaints.all() == []


async def test_who_leaves_before_there_is_a_connection_leaves_nothing(client: PeerClient) -> None:
    with full_listener() as url:
        with anyio.move_on_after(0.05):
            await post(client, url)
        await until(lambda: not client._connecting)
        assert repr(client) == NOTHING


async def test_who_leaves_before_the_link_is_open_leaves_nothing(client: PeerClient, monkeypatch: Any) -> None:
    monkeypatch.setattr(peers, "PROVE_S", 0.2)
    async with scripted(says_nothing) as peer:
        with anyio.move_on_after(0.05):
            await post(client, peer.url)
        assert peer.open
        await until(lambda: not peer.open and not client._connecting)


async def test_who_leaves_before_the_answer_frees_its_place(client: PeerClient) -> None:
    async with serving(never) as node:
        with anyio.move_on_after(0.05):
            await post(client, node.url)
        assert repr(client) == "<PeerClient [1 links, 0 requests]>"
        await until(lambda: node.served and node.is_idle)


async def test_who_leaves_in_the_middle_of_the_answer_frees_its_place(client: PeerClient) -> None:
    async def serve(request: LinkedRequest) -> None:
        await start(request)
        await say(request, b"beginning", more=True)
        await never(request)

    async with serving(serve) as node:
        response = await client.send(record(node.url), head_of())
        assert await anext(response) == b"beginning"
        with anyio.move_on_after(0.05):
            await anext(response)
        response.close()
        assert repr(client) == "<PeerClient [1 links, 0 requests]>"
        await until(lambda: node.is_idle)


# --- the end


async def test_a_node_that_is_given_up_fails_the_calls_that_wait_for_it(client: PeerClient) -> None:
    with process() as (url, _):
        response = await begin(client, url)
        client.abandon("http://127.0.0.1:1")
        assert not await response.has_head_soon()
        client.abandon(url)
        with pytest.raises(PeerLost) as caught:
            await response.head()
        assert isinstance(caught.value, NodeLost)


async def test_closing_fails_who_waits_and_closes_everything(client: PeerClient) -> None:
    complaints = Complaints()
    async with serving(never) as node, scripted(says_nothing) as silent:
        response = await begin(client, node.url)
        opening = asyncio.ensure_future(post(client, silent.url))
        await until(lambda: silent.open)
        await client.aclose()
        with pytest.raises(PeerLost):
            await response.head()
        with pytest.raises(PeerUnreachable):
            await opening
        await client.aclose()
        await until(lambda: not silent.open and "0 links" in repr(node.links) and repr(client) == NOTHING)
        for url in (node.url, silent.url):
            with pytest.raises(PeerUnreachable):
                await post(client, url)
        assert silent.connections == 1
    assert complaints.all() == []


async def test_closing_that_is_cancelled_half_way_has_closed_everything(client: PeerClient) -> None:
    async with serving(never) as node, scripted(says_nothing) as silent:
        response = await begin(client, node.url)
        opening = asyncio.ensure_future(post(client, silent.url))
        await until(lambda: silent.open)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await client.aclose()
        with anyio.fail_after(5):
            with pytest.raises(PeerUnreachable):
                await opening
            with pytest.raises(PeerLost):
                await response.head()
        await until(lambda: not silent.open and repr(client) == NOTHING)


async def test_nothing_of_a_link_stays_behind(client: PeerClient) -> None:
    complaints = Complaints()
    before = asyncio.all_tasks()
    async with serving(echo) as node:
        for _ in range(5):
            await post(client, node.url, b"x" * 100_000)
            (await begin(client, node.url)).close()
            client.abandon(node.url)
            await until(lambda: repr(client) == NOTHING)
        await until(lambda: repr(node.links) == "<NodeLinks [0 links, 0 requests]>")
        node.served.clear()
    await until(lambda: asyncio.all_tasks() <= before)
    assert complaints.all() == []
    assert not [each for each in gc.get_objects() if isinstance(each, PeerLink | ServingLink | LinkedRequest)]


def _certificate(directory: Path) -> Path:
    """A certificate for 127.0.0.1 that speaks for itself, beside its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = directory / "certificate.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (directory / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path
