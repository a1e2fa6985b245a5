"""The HTTP client between nodes, over real sockets."""

import asyncio
import datetime
import gc
import ipaddress
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from app.errors import NodeLost, NodeUnavailable
from app.routing import peer_connection, peers
from app.routing.forward_credentials import ForwardCredentials
from app.routing.peers import PROOF, PeerClient, PeerLost, PeerUnreachable
from tests.routing.peer_servers import answer, process, read_request, scripted, serving, stands_still, until

KEY, TARGET = b"k" * 32, b"/t/acme/echo/mcp"


def credentials(node: str = "node-a", key: bytes = KEY) -> ForwardCredentials:
    return ForwardCredentials(key, node, time.time)


@pytest.fixture
async def client() -> AsyncIterator[PeerClient]:
    client = PeerClient(credentials())
    yield client
    await client.aclose()


async def post(client: PeerClient, url: str, body: bytes = b"hello") -> bytes:
    response = await client.send(url, "POST", TARGET, [(b"x-a", b"b")], body)
    assert response.status == 200
    return await response.body(1 << 20)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the body it was sent."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    headers = [(b"x-method", scope["method"].encode()), (b"X-Path", scope["raw_path"] + b"?" + scope["query_string"])]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def keeps_answering(reader: Any, writer: Any, number: int) -> None:
    while True:
        await read_request(reader)
        writer.write(answer())


# --- the usual case


async def test_a_request_goes_there_and_its_answer_comes_back(client: PeerClient) -> None:
    async with serving(echo) as url:
        response = await client.send(url, "DELETE", b"/a%20b?c=d", [(b"x-a", b"b")], b"")
        headers = dict(response.headers)
        assert (response.status, headers[b"x-method"], headers[b"x-path"]) == (200, b"DELETE", b"/a%20b?c=d")
        assert await response.body(10) == b""
        large = bytes(range(256)) * 4096
        assert await post(client, url, large) == large
        await client.aclose()


async def test_what_is_sent_is_what_was_given(client: PeerClient) -> None:
    requests = []

    async def script(reader: Any, writer: Any, number: int) -> None:
        requests.append(await read_request(reader))
        writer.write(answer())

    async with scripted(script) as peer:
        await post(client, peer.url)
    host = peer.url.removeprefix("http://").encode()
    assert requests == [b"POST %b HTTP/1.1\r\nhost: %b\r\nx-a: b\r\ncontent-length: 5\r\n\r\nhello" % (TARGET, host)]


async def test_a_connection_serves_one_request_after_the_other(client: PeerClient) -> None:
    async with scripted(keeps_answering) as peer:
        for _ in range(5):
            assert await post(client, peer.url) == b"{}"
        assert peer.connections == 1


async def test_a_thousand_at_once_each_get_their_own_answer(client: PeerClient, monkeypatch: Any) -> None:
    monkeypatch.setattr(peers, "CONNECT_S", 5.0)  # the server is a thread of this process
    answers: dict[int, bytes] = {}

    async def one(number: int) -> None:
        answers[number] = await post(client, url, b"%d" % number)

    async with serving(echo, backlog=2048) as url:
        async with anyio.create_task_group() as tasks:
            for number in range(1000):
                tasks.start_soon(one, number)
        assert answers == {number: b"%d" % number for number in range(1000)}
        assert repr(client).endswith(f"{peers.MAX_IDLE} idle]>")
        await client.aclose()


async def test_https_is_spoken_where_the_url_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = _certificate(tmp_path)
    async with serving(echo, ssl_certfile=str(certificate), ssl_keyfile=str(tmp_path / "key.pem")) as url:
        stranger = PeerClient(credentials())
        with pytest.raises(PeerUnreachable):  # nobody vouches for this certificate
            await post(stranger, url)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        client = PeerClient(credentials())
        assert await post(client, url, b"sealed") == b"sealed"
        await client.aclose()


# --- connections that are kept


async def test_a_kept_connection_that_the_peer_has_closed_is_not_used(client: PeerClient) -> None:
    closed = asyncio.Event()

    async def script(reader: Any, writer: Any, number: int) -> None:
        await read_request(reader)
        writer.write(answer())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        closed.set()

    async with scripted(script) as peer:
        await post(client, peer.url)
        await closed.wait()
        await until(lambda: "0 open" in repr(client))
        assert await post(client, peer.url) == b"{}"
        assert peer.connections == 2


async def test_a_kept_connection_is_used_for_so_long_only(client: PeerClient, monkeypatch: Any) -> None:
    async with scripted(keeps_answering) as peer:
        await post(client, peer.url)
        monkeypatch.setattr(peers, "IDLE_S", 0.0)
        await post(client, peer.url)
        assert peer.connections == 2
        await until(lambda: peer.open == 1)


async def test_no_more_connections_are_kept_than_may_be(client: PeerClient, monkeypatch: Any) -> None:
    monkeypatch.setattr(peers, "MAX_IDLE", 2)
    async with scripted(keeps_answering) as peer:
        responses = [await client.begin(peer.url, "POST", TARGET, [], b"") for _ in range(5)]
        for response in responses:
            await response.body(10)
        await until(lambda: "2 open, 2 idle" in repr(client))


async def test_an_answer_that_says_close_is_the_last_on_its_connection(client: PeerClient) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        await read_request(reader)
        writer.write(answer(headers=b"connection: close\r\n"))
        await reader.read()

    async with scripted(script) as peer:
        await post(client, peer.url)
        await post(client, peer.url)
        assert peer.connections == 2


async def test_a_response_that_is_closed_early_takes_its_connection_along(client: PeerClient) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbeginning")
        assert await reader.read() == b""

    async with scripted(script) as peer:
        response = await client.send(peer.url, "POST", TARGET, [], b"")
        await response.aclose()
        await until(lambda: not peer.open)
        assert "0 open" in repr(client)


async def test_what_nobody_asked_for_ends_the_connection(client: PeerClient) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        await read_request(reader)
        writer.write(answer())
        await writer.drain()
        writer.write(answer(b'{"of":"somebody else"}'))
        await reader.read()

    async with scripted(script) as peer:
        assert await post(client, peer.url) == b"{}"
        await until(lambda: not peer.open)


# --- what goes wrong


async def test_where_nothing_listens_nothing_was_sent(client: PeerClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(PeerUnreachable) as caught:
        await post(client, url)
    assert isinstance(caught.value, NodeUnavailable)
    assert "[0 peers" in repr(client)


async def test_a_host_that_does_not_answer_is_given_up_after_half_a_second(client: PeerClient) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        filling = [socket.socket() for _ in range(3)]  # the queue of what nobody accepts is full then
        for each in filling:
            each.setblocking(False)
            each.connect_ex(address)
        started = time.monotonic()
        with pytest.raises(PeerUnreachable):
            await post(client, f"http://127.0.0.1:{address[1]}")
        assert 0.4 < time.monotonic() - started < 2
        for each in filling:
            each.close()


async def test_a_node_killed_in_mid_call_is_noticed_at_once(client: PeerClient) -> None:
    with process() as (url, running):
        response = await client.begin(url, "POST", TARGET, [], b"hello")
        assert not await response.has_head_soon()
        running.kill()
        started = time.monotonic()
        with pytest.raises(PeerLost) as caught:
            await response.head()
        assert time.monotonic() - started < 1
        assert isinstance(caught.value, NodeLost)


async def test_a_node_that_is_given_up_fails_the_calls_that_wait_for_it(client: PeerClient) -> None:
    with process() as (url, _):
        response = await client.begin(url, "POST", TARGET, [], b"hello")
        client.abandon(url)
        with pytest.raises(PeerLost):
            await response.head()


async def dies_second(reader: Any, writer: Any, number: int) -> None:
    """Answers the first request of its first connection, and closes it when it gets a second."""
    await read_request(reader)
    writer.write(answer())
    if number > 1:
        await reader.read()
    seen.append(await read_request(reader))


seen: list[bytes] = []


async def test_a_post_that_may_have_been_read_is_not_sent_again(client: PeerClient) -> None:
    seen.clear()
    async with scripted(dies_second) as peer:
        await post(client, peer.url)
        with pytest.raises(PeerLost):
            await post(client, peer.url)
        assert (len(seen), peer.connections) == (1, 1)


async def test_a_get_on_a_connection_that_was_dead_is_sent_once_more(client: PeerClient) -> None:
    seen.clear()
    async with scripted(dies_second) as peer:
        await post(client, peer.url)
        response = await client.send(peer.url, "GET", TARGET, [])
        assert await response.body(10) == b"{}"
        assert (len(seen), peer.connections) == (1, 2)


async def test_a_get_on_a_new_connection_is_not_sent_again(client: PeerClient) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        await read_request(reader)

    async with scripted(script) as peer:
        with pytest.raises(PeerLost):
            await client.send(peer.url, "GET", TARGET, [])
        assert peer.connections == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x-filler: y\r\n" * 10_000,
        b"",
    ],
)
async def test_what_is_no_answer_is_a_lost_one(client: PeerClient, raw: bytes) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        await read_request(reader)
        writer.write(raw)
        await writer.drain()
        if raw:
            await reader.read()

    async with scripted(script) as peer:
        with pytest.raises(PeerLost):
            await post(client, peer.url)
        await until(lambda: "0 open" in repr(client))


async def test_an_answer_that_breaks_off_gives_what_came_and_then_fails(client: PeerClient) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")

    async with scripted(script) as peer:
        response = await client.send(peer.url, "POST", TARGET, [], b"")
        assert await anext(response) == b"first"
        with pytest.raises(PeerLost):
            await anext(response)


async def test_a_body_over_the_limit_is_not_kept(client: PeerClient) -> None:
    async with serving(echo) as url:
        response = await client.send(url, "POST", TARGET, [], b"x" * 100_000)
        with pytest.raises(PeerLost):
            await response.body(1000)
        await client.aclose()


@pytest.mark.parametrize("target", [b"/a b", b"/a\r\nx: y", b"/a\n"])
async def test_a_line_break_never_becomes_a_second_request(client: PeerClient, target: bytes) -> None:
    async with scripted(keeps_answering) as peer:
        with pytest.raises(ValueError, match="line break"):
            await client.send(peer.url, "GET", target, [])
        with pytest.raises(ValueError, match="line break"):
            await client.send(peer.url, "GET", b"/", [(b"a", b"b\r\nc: d")])
        await until(lambda: "0 open" in repr(client))


async def test_requests_over_the_bound_are_refused_and_probes_are_not(client: PeerClient, monkeypatch: Any) -> None:
    monkeypatch.setattr(peers, "MAX_OPEN", 2)
    with process() as (url, _):
        waiting = [await client.begin(url, "POST", TARGET, [], b"") for _ in range(2)]
        with pytest.raises(NodeUnavailable) as caught:
            await client.begin(url, "POST", TARGET, [], b"")
        assert not isinstance(caught.value, PeerUnreachable)
        assert await client.probe(url) is None
        await waiting[0].aclose()
        await until(lambda: "1 open" in repr(client))
        await (await client.begin(url, "POST", TARGET, [], b"")).aclose()


# --- back-pressure


async def test_a_peer_is_read_no_faster_than_its_answer_is_taken(client: PeerClient) -> None:
    sent, total = 0, 64 << 20

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while sent < total:
            await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
            sent += 65536
        await send({"type": "http.response.body", "body": b""})

    async with serving(stream) as url:
        response = await client.send(url, "GET", TARGET, [])
        assert await stands_still(lambda: sent) < 16 << 20  # what the two sockets' buffers take
        assert len(response.take()) <= peer_connection.MAX_UNREAD_BYTES + (256 << 10)
        got, largest = 0, 0
        async for chunk in response:
            got, largest = got + len(chunk), max(largest, len(chunk))
        assert sent == total
        assert total - (512 << 10) <= got <= total
        assert largest <= peer_connection.MAX_UNREAD_BYTES + (256 << 10)
        await client.aclose()


# --- who is there


async def proves(reader: Any, writer: Any, number: int) -> None:
    request = await read_request(reader)
    challenge = request.split(b"trunkline-challenge: ")[1].split(b"\r\n")[0]
    proof = credentials("node-b").prove(challenge)
    writer.write(b"HTTP/1.1 204 No Content\r\n%b: %b\r\n\r\n" % (PROOF, proof or b""))
    await reader.read()


async def test_a_probe_tells_which_node_is_there(client: PeerClient) -> None:
    async with scripted(proves) as peer:
        assert await client.probe(peer.url) == "node-b"
        await until(lambda: not peer.open)
        assert await PeerClient(credentials("node-c", b"x" * 32)).probe(peer.url) is None


async def test_another_process_at_the_address_is_no_node(client: PeerClient) -> None:
    async with serving(echo) as url:
        assert await client.probe(url) is None


async def test_a_probe_takes_half_a_second_at_most(client: PeerClient) -> None:
    with process() as (url, _):
        started = time.monotonic()
        assert await client.probe(url) is None
        assert time.monotonic() - started < 1
        await until(lambda: "0 open" in repr(client))


async def test_a_probe_of_nothing_finds_nobody(client: PeerClient) -> None:
    with process() as (url, running):
        running.kill()
        running.wait()
        assert await client.probe(url) is None


# --- the end


async def test_closing_fails_who_waits_and_closes_everything(client: PeerClient) -> None:
    async with scripted(keeps_answering) as peer:
        with process() as (url, _):
            await post(client, peer.url)
            response = await client.begin(url, "POST", TARGET, [], b"")
            assert "2 open, 1 idle" in repr(client)
            await client.aclose()
            with pytest.raises(PeerLost):
                await response.head()
            await client.aclose()
            await until(lambda: not peer.open and "[0 peers, 0 open, 0 idle]" in repr(client))
            with pytest.raises(PeerUnreachable):
                await post(client, peer.url)


@pytest.mark.parametrize("after_s", [0.0, 0.05])
async def test_a_request_that_is_cancelled_leaves_nothing(client: PeerClient, after_s: float) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        await reader.read()

    async with scripted(script) as peer:
        with anyio.move_on_after(after_s):
            await post(client, peer.url)
        await until(lambda: not peer.open and "[0 peers, 0 open" in repr(client))


async def test_nothing_of_a_connection_stays_behind(client: PeerClient) -> None:
    async with serving(echo) as url:
        for _ in range(20):
            await (await client.begin(url, "POST", TARGET, [], b"x" * 1000)).aclose()
    await until(lambda: "[0 peers" in repr(client))
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, peer_connection.PeerConnection)]


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
