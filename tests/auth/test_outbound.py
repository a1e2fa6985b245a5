"""What is fetched, from which addresses, and what is never connected to (security.md P8, T22)."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from anyio.abc import SocketStream
from anyio.streams.tls import TLSStream
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from app.auth import outbound as module
from app.auth.outbound import MAX_CHUNKS, Outbound
from app.auth.outbound_urls import FetchFailed, UrlRefused, parse_url
from tests.integration.stopwatch import stopwatch_of

pytestmark = pytest.mark.real

LOOPBACK = ip_network("127.0.0.0/8")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
Answer = Callable[[SocketStream, bytes], Awaitable[None]]


class Names:
    """A resolver with answers of its own; each look-up gets the next one, the last for ever."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), 0

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def connects(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Every TCP connection that httpx2 asks for. Those to elsewhere than this machine fail."""
    made: list[tuple[str, int]] = []
    really = anyio.connect_tcp

    async def connect_tcp(remote_host: str, remote_port: int, **options: Any) -> Any:
        made.append((remote_host, remote_port))
        if not ip_address(remote_host).is_loopback:
            raise OSError("not from a test")
        return await really(remote_host, remote_port, **options)

    monkeypatch.setattr(anyio, "connect_tcp", connect_tcp)
    return made


@asynccontextmanager
async def answering(answer: bytes | Answer) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server on loopback; yields its port and the heads of the requests it got."""
    heads: list[bytes] = []

    async def handle(stream: SocketStream) -> None:
        async with stream:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await stream.receive()
            heads.append(head)
            if isinstance(answer, bytes):
                await stream.send(answer)
            else:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await answer(stream, head)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield listener.extra(anyio.abc.SocketAttribute.local_port), heads
        tasks.cancel_scope.cancel()


# --- what is never connected to

INSIDE = [
    "https://127.0.0.1/", "https://2130706433/", "https://0x7f000001/", "https://0177.0.0.1/", "https://127.1/",
    "https://0x7f.0.0.1/", "https://017700000001/", "https://0/", "https://[::1]/", "https://[::]/",
    "https://[::ffff:127.0.0.1]/", "https://[::ffff:7f00:1]/", "https://[64:ff9b::7f00:1]/",
    "https://[64:ff9b:1::a9fe:a9fe]/", "https://[2002:7f00:1::]/", "https://[2001:0:4136:e378:8000:63bf:80ff:fffe]/",
    "https://[2606:4700::5efe:127.0.0.1]/", "https://[::127.0.0.1]/", "https://[fe80::1]/", "https://[fe80::1%25eth0]/",
    "https://[fd00::1]/", "https://[ff02::1]/", "https://169.254.169.254/latest/meta-data/", "https://100.64.0.1/",
    "https://10.0.0.1/", "https://172.31.255.255/", "https://192.168.0.1/", "https://192.88.99.1/", "https://224.0.0.1/",
    "https://255.255.255.255/", "https://198.18.0.1/", "https://0.0.0.0/",
]  # fmt: skip
TRICKS = [
    "https://93.184.216.34@127.0.0.1/", "https://user:pass@93.184.216.34/", "https://127.0.0.1\\@93.184.216.34/",
    "https://93.184.216.34#@127.0.0.1/", "https://127.0.0.1%2f@93.184.216.34/", "https://93.184.216.34:443@127.0.0.1/",
    "https://ⓛocalhost/", "https://127。0。0。1/", "https://93.184.216.34:22/", "https://93.184.216.34:0/",
    "https://93.184.216.34:99999/", "http://93.184.216.34/", "ftp://93.184.216.34/", "file:///etc/passwd",
    "gopher://127.0.0.1/", "https:///127.0.0.1", "https://", "//127.0.0.1/", "", "https://a b/",
    "https://a\r\nHost: b/",
    "https://\t127.0.0.1/", "https://[::1", "https://93.184.216.34./", "https://1.2.3.4.5/", "https://0x/",
    "https://93.184.216.034/", "https://" + "a" * 3000,
]  # fmt: skip


@pytest.mark.parametrize("url", INSIDE + TRICKS)
async def test_a_url_that_leads_inside_or_can_be_read_twice_is_refused_without_a_connection(connects, url):
    names = Names(["127.0.0.1"])
    with pytest.raises(UrlRefused):
        Outbound().check(url)
    with pytest.raises(UrlRefused):
        await Outbound(resolve=names).get(url)
    assert (connects, names.asked) == ([], 0)


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["93.184.216.34", "127.0.0.1"],
        ["10.1.2.3", "93.184.216.34"],
        ["::ffff:169.254.169.254"],
        ["64:ff9b::a00:1"],
        ["2002:a00:1::1"],
        ["2001::1"],
        ["fe80::1%eth0"],
        ["100.127.255.255"],
        ["239.1.1.1"],
    ],
)
async def test_a_name_with_any_address_inside_is_refused_without_a_connection(connects, addresses):
    with pytest.raises(UrlRefused):
        await Outbound(resolve=Names(addresses)).get("https://idp.example.com/jwks")
    assert connects == []


async def test_a_name_is_looked_up_once_and_only_checked_addresses_are_connected_to(connects):
    names = Names(["93.184.216.34"], ["127.0.0.1"])
    with pytest.raises(FetchFailed):
        await Outbound(resolve=names).get("https://rebinding.example.com/jwks")
    assert connects == [("93.184.216.34", 443)]
    assert names.asked == 1


async def test_the_next_address_is_tried_when_one_does_not_answer_and_not_for_ever(connects):
    names = Names([f"93.184.216.{last}" for last in range(9)])
    with pytest.raises(FetchFailed):
        await Outbound(resolve=names).get("https://idp.example.com:8443/jwks")
    assert connects == [(f"93.184.216.{last}", 8443) for last in range(module.MAX_ADDRESSES)]


async def test_redirects_are_not_followed(connects):
    answer = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    async with answering(answer) as (port, heads):
        with pytest.raises(FetchFailed, match="HTTP 302"):
            await Outbound([LOOPBACK]).get(f"http://127.0.0.1:{port}/")
    assert (len(connects), len(heads)) == (1, 1)


async def test_proxies_of_the_environment_are_not_used(connects, monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with answering(OK) as (port, _):
        assert await Outbound([LOOPBACK]).get(f"http://127.0.0.1:{port}/") == b"{}"
    assert connects == [("127.0.0.1", port)]


# --- what is


async def test_a_listed_network_may_be_asked_by_http_with_the_name_as_host(connects):
    async with answering(OK) as (port, heads):
        out = Outbound([LOOPBACK], resolve=Names(["127.0.0.1"]))
        assert await out.get(f"http://IDP.internal:{port}/a/b?c=d") == b"{}"
    assert heads[0].startswith(b"GET /a/b?c=d HTTP/1.1\r\n")
    assert f"host: idp.internal:{port}\r\n".encode() in heads[0].lower()
    assert connects == [("127.0.0.1", port)]


async def test_listing_one_network_opens_no_other(connects):
    out = Outbound([ip_network("127.0.0.2/32")], resolve=Names(["127.0.0.1"]))
    for url in ("http://127.0.0.1/", "https://127.0.0.1/", "http://idp.example.com/", "http://[::ffff:127.0.0.2]/"):
        with pytest.raises(UrlRefused):
            await out.get(url)
    assert connects == []


def certificate(name: str) -> tuple[bytes, bytes]:
    """A self-signed certificate for the name, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return made.public_bytes(pem), key.private_bytes(pem, form, plain)


@pytest.mark.parametrize(("name", "is_right"), [("idp.example.com", True), ("other.example.com", False)])
async def test_tls_is_spoken_with_the_name_although_the_address_is_connected_to(tmp_path: Path, name, is_right):
    (tmp_path / "cert").write_bytes(certificate("idp.example.com")[0])
    public, private = certificate("idp.example.com")
    (tmp_path / "both").write_bytes(public + private)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "both")
    seen: list[str | None] = []
    server.sni_callback = lambda _, sni, __: seen.append(sni)  # type: ignore[assignment]
    client = ssl.create_default_context(cadata=public.decode())

    async def handle(stream: SocketStream) -> None:
        try:
            async with stream:
                tls = await TLSStream.wrap(stream, ssl_context=server, server_side=True)
                await tls.receive()
                await tls.send(OK)
        except (anyio.BrokenResourceError, anyio.EndOfStream, ssl.SSLError):
            pass

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        out = Outbound([LOOPBACK], resolve=Names(["127.0.0.1"]), tls=client)
        if is_right:
            assert await out.get(f"https://{name}:{port}/") == b"{}"
        else:
            with pytest.raises(FetchFailed, match="certificate"):
                await out.get(f"https://{name}:{port}/")
        tasks.cancel_scope.cancel()
    assert seen == [name]


@pytest.mark.parametrize("declared", [b"Content-Length: 2000000\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_a_document_over_one_mebibyte_is_refused_before_it_is_read_whole(declared):
    sent = 0

    async def endless(stream: SocketStream, _: bytes) -> None:
        nonlocal sent
        await stream.send(b"HTTP/1.1 200 OK\r\n" + declared + b"\r\n")
        chunk = b" " * 65536
        framed = b"%x\r\n%s\r\n" % (len(chunk), chunk) if b"chunked" in declared else chunk
        while True:
            await stream.send(framed)
            sent += len(chunk)

    async with answering(endless) as (port, _):
        with pytest.raises(FetchFailed, match="more than 1048576 bytes"):
            await Outbound([LOOPBACK]).get(f"http://127.0.0.1:{port}/")
    assert sent < 16 * 2**20  # what fits into the sockets' buffers


@pytest.mark.parametrize("count", [MAX_CHUNKS, MAX_CHUNKS + 1])
async def test_a_document_in_many_chunks_is_refused_above_a_limit(count: int):
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * count + b"0\r\n\r\n"
    async with answering(whole) as (port, _):
        fetched = Outbound([LOOPBACK]).get(f"http://127.0.0.1:{port}/")
        if count <= MAX_CHUNKS:
            assert await fetched == b" " * count
            return
        with pytest.raises(FetchFailed, match=f"more than {MAX_CHUNKS} chunks"):
            await fetched


async def test_an_encoded_answer_is_refused(connects):
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n") as (port, _):
        with pytest.raises(FetchFailed, match="Content-Encoding"):
            await Outbound([LOOPBACK]).get(f"http://127.0.0.1:{port}/")


async def test_a_host_that_is_silent_costs_no_more_than_the_deadline(monkeypatch):
    monkeypatch.setattr(module, "DEADLINE_S", 0.1)

    async def silent(*_: object) -> None:
        await anyio.sleep_forever()

    async with answering(silent) as (port, _), stopwatch_of([psutil.Process()]) as watch:
        with anyio.fail_after(30), pytest.raises(FetchFailed):
            await Outbound([LOOPBACK]).get(f"http://127.0.0.1:{port}/")
        assert watch.seconds < 3


async def test_a_host_that_drips_costs_no_more_than_the_deadline_either(monkeypatch):
    monkeypatch.setattr(module, "DEADLINE_S", 0.2)

    async def dripping(stream: SocketStream, _: bytes) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            await stream.send(b" ")
            await anyio.sleep(0.02)

    async with answering(dripping) as (port, _), stopwatch_of([psutil.Process()]) as watch:
        with anyio.fail_after(30), pytest.raises(FetchFailed, match="no answer within"):
            await Outbound([LOOPBACK]).get(f"http://127.0.0.1:{port}/")
        assert watch.seconds < 3


@pytest.mark.parametrize("error", [OSError("no such name"), UnicodeError("label too long")])
async def test_a_name_that_cannot_be_resolved_is_a_failure(error):
    async def resolve(*_: object) -> list[str]:
        raise error

    with pytest.raises(FetchFailed, match="cannot be resolved"):
        await Outbound(resolve=resolve).get("https://idp.example.com/")
    with pytest.raises(FetchFailed, match="no address"):
        await Outbound(resolve=Names([])).get("https://idp.example.com/")


async def test_the_real_resolver_gives_addresses():
    assert "127.0.0.1" in await module._resolve("localhost", 80)


def test_parts_are_normalised():
    url = parse_url("https://IDP.Example.COM:8443")
    assert (url.host, url.port, url.authority, url.target) == ("idp.example.com", 8443, "idp.example.com:8443", "/")
    assert parse_url("https://[2606:4700:0:0::1]/x?y").host == "2606:4700::1"


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("http://idp.example.com/jwks", ["93.184.216.34"]),
        ("https://idp.example.com/jwks", ["10.0.0.7"]),
        ("https://idp.example.com:9443/jwks", ["93.184.216.34"]),
        ("https://10.0.0.7/jwks", []),
    ],
)
async def test_what_is_out_of_bounds_names_the_setting_and_no_address_that_the_asker_did_not_write(url, addresses):
    for allow in ([], [ip_network("192.168.7.0/24")]):
        with pytest.raises(UrlRefused, match="TRUNKLINE_OUTBOUND_ALLOW") as caught:
            await Outbound(allow, resolve=Names(addresses)).get(url)
        assert not [each for each in addresses if each in str(caught.value)]
