"""Who offers another protocol (`Upgrade`, RFC 9110 §7.8) is served as if he had not. Java's HttpClient offers h2c with
every request."""

import asyncio
import json
from random import Random

import anyio
import pytest

from tests.http.edge.rig import GET, WITHIN_S, Client, Edge, until

pytestmark = pytest.mark.real

H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
WEBSOCKET = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAA\r\n"
OFFERS = {"h2c": H2C, "websocket": WEBSOCKET, "both": H2C + WEBSOCKET}
BODY = b"GET / HTTP/1.1\r\n\r\n"  # what would be a request, if it were not a body
OFFERED_GET = b"GET / HTTP/1.1\r\nhost: a\r\n" + H2C + b"\r\n"


def with_length(body: bytes, fields: bytes = H2C) -> bytes:
    return b"POST /echo HTTP/1.1\r\nhost: a\r\n" + fields + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def in_chunks(body: bytes, fields: bytes = H2C, size: int = 5, trailers: bytes = b"") -> bytes:
    head = b"POST /echo HTTP/1.1\r\nhost: a\r\n" + fields + b"transfer-encoding: chunked\r\n\r\n"
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks) + b"0\r\n" + trailers + b"\r\n"


async def send_in_pieces(client: Client, data: bytes, size: int) -> None:
    """So that the other side reads each on its own."""
    for start in range(0, len(data), size):
        client.send(data[start : start + size])
        await asyncio.sleep(0)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("offer", OFFERS)
async def test_the_body_behind_an_offer_arrives_and_the_connection_goes_on(
    edge: Edge, offer: str, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    fields = OFFERS[offer]
    requests = (
        with_length(BODY, fields) + in_chunks(BODY, fields, trailers=b"x: y\r\n") + with_length(b"", fields) + GET
    )
    async with edge.client() as client:
        for _ in range(2):
            await send_in_pieces(client, requests, size)
            for expected in (BODY, BODY, b"", b"ok"):
                assert await client.answer() == (200, expected)
    assert len(edge.app.seen) == 8
    assert not edge.refused
    assert not caplog.records


async def test_the_application_sees_no_offer(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(
            b"GET /a?b HTTP/1.1\r\nHost: a\r\nempty:\r\nUPGRADE: h2c\r\nConnection: upgrade\r\nX: \xff y\r\n\r\n"
        )
        assert await client.answer() == (200, b"ok")
    (seen,) = edge.app.seen
    assert (seen["method"], seen["raw_path"], seen["query_string"], seen["http_version"]) == ("GET", b"/a", b"b", "1.1")
    fields = [(b"host", b"a"), (b"empty", b""), (b"connection", b"upgrade"), (b"x", b"\xff y")]
    assert seen["headers"] == fields


async def test_a_body_that_comes_later_is_waited_for(edge: Edge) -> None:
    async with edge.client() as client:
        request = with_length(BODY)
        client.send(request[: -len(BODY)])
        await edge.app.was_asked.wait()
        client.send(BODY)
        assert await client.answer() == (200, BODY)


@pytest.mark.parametrize("length", [16 << 10, 100_000, 3_000_000])
async def test_long_bodies_behind_an_offer_are_served(edge: Edge, length: int) -> None:
    body = bytes(range(250)) * (length // 250)
    async with edge.client() as client:
        client.send(with_length(body) + in_chunks(body, size=1000) + OFFERED_GET)
        assert [await client.answer() for _ in range(3)] == [(200, body), (200, body), (200, b"ok")]


async def test_who_waits_for_a_100_gets_it_in_spite_of_his_offer(edge: Edge) -> None:
    async with edge.client() as client:
        request = with_length(BODY, H2C + b"expect: 100-continue\r\n")
        client.send(request[: -len(BODY)])
        with anyio.fail_after(WITHIN_S):
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(BODY + GET)
        assert [await client.answer() for _ in range(2)] == [(200, BODY), (200, b"ok")]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_connection_that_is_to_end_ends_behind_the_body(edge: Edge, version: bytes, chunked: bool) -> None:
    fields = b"connection: close, upgrade\r\nupgrade: h2c\r\n"
    request = in_chunks(BODY, fields) if chunked and version == b"1.1" else with_length(BODY, fields)
    async with edge.client() as client:
        client.send(request.replace(b"HTTP/1.1", b"HTTP/" + version, 1) + GET)
        assert await client.answer() == (200, BODY)
        assert await client.is_closed()
    assert len(edge.app.seen) == 1
    assert edge.app.seen[0]["http_version"] == version.decode()


async def test_offers_that_wait_are_counted_like_other_requests(edge: Edge) -> None:
    async with edge.client() as client:
        waits = b"GET /waits HTTP/1.1\r\n" + H2C + b"\r\n"
        client.send(waits + OFFERED_GET * 16)
        await edge.app.was_asked.wait()
        (protocol,) = edge.protocols
        await until(lambda: len(protocol.pipeline) == 16)
        edge.app.may_answer.set()
        assert [await client.answer() for _ in range(17)] == [(200, b"ok")] * 17
        edge.app.may_answer.clear()
        client.send(waits + OFFERED_GET * 17)
        await until(lambda: edge.refused)
    assert edge.refused == ["pipeline_too_long"]


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        (b"GET / HTTP/1.1\r\n" + H2C + b"long: " + b"x" * (32 << 10) + b"\r\n\r\n", 431, "head_too_large"),
        (b"GET / HTTP/1.1\r\n" + H2C + b"a: b\r\n" * 98 + b"\r\n", 431, "head_too_large"),
        (b"GET /" + b"x" * (8 << 10) + b" HTTP/1.1\r\n" + H2C + b"\r\n", 414, "uri_too_long"),
        (in_chunks(BODY, trailers=b"x: " + b"y" * (8 << 10) + b"\r\n"), 431, "trailers_too_large"),
        (in_chunks(BODY, H2C + b"content-length: 3\r\n"), 400, "malformed_request"),
        (in_chunks(BODY)[:-30] + b"nonsense", 400, "malformed_request"),
        (with_length(BODY, H2C + b"content-length: 3\r\n"), 400, "malformed_request"),
        (OFFERED_GET + b"nonsense\r\n\r\n", 200, "malformed_request"),
    ],
)
async def test_limits_and_the_grammar_hold_for_them_too(edge: Edge, request_: bytes, status: int, reason: str) -> None:
    async with edge.client() as client:
        client.send(request_)
        assert (await client.answer())[0] == status
        await until(lambda: edge.refused)
        await edge.spend_time(2)
        assert await client.is_closed()
    assert edge.refused == [reason]


async def test_a_body_behind_an_offer_has_its_time(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(with_length(BODY)[:-3])
        await edge.app.was_asked.wait()
        edge.pass_time(32)
        assert edge.connections
        edge.pass_time(2)
        assert await client.is_closed()
    assert edge.refused == ["body_timeout"]


@pytest.mark.parametrize("target", [b"a:80", b"/livez", b"http://a/", b"*"])
@pytest.mark.parametrize("fields", [b"", H2C])
async def test_connect_is_refused(edge: Edge, target: bytes, fields: bytes) -> None:
    async with edge.client() as client:
        client.send(b"CONNECT " + target + b" HTTP/1.1\r\nhost: a\r\n" + fields + b"\r\n" + GET)
        status, body = await client.answer()
        assert (status, json.loads(body)["reason"]) == (501, "not_implemented")
        edge.pass_time(2)
        assert await client.is_closed()
    assert not edge.app.seen


# --- however it is cut


class Requests:
    """A few valid requests in a row, by chance; the same ones with and without offers."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.plain, self.offered = b"", b""
        self.number = random.randint(1, 5)
        for _ in range(self.number):
            self._add()

    def cut(self, data: bytes) -> list[bytes]:
        """Anywhere: in many pieces, in few, or not at all."""
        cuts = min(len(data) - 1, self._random.choice((0, 1, 2, 5, 40)))
        ends = [*sorted(self._random.sample(range(1, len(data)), cuts)), len(data)]
        return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _add(self) -> None:
        fields = [b"x-%d: %b\r\n" % (number, b"y" * self._random.randint(0, 90)) for number in range(self._some(12))]
        framing, body = self._body()
        fields += framing
        self._random.shuffle(fields)
        line = b"%b /echo%b HTTP/1.1\r\nhost: a\r\n" % (self._random.choice((b"POST", b"PUT")), b"?q" * self._some(1))
        self.plain += line + b"".join(fields) + b"\r\n" + body
        fields.insert(self._some(len(fields)), self._random.choice((b"", *OFFERS.values())))
        self.offered += line + b"".join(fields) + b"\r\n" + body

    def _body(self) -> tuple[list[bytes], bytes]:
        random = self._random
        body = random.randbytes(random.choice((0, 1, 30, 1000, 20_000))) + random.choice((b"", BODY, b"0\r\n\r\n"))
        kind = random.choice(("none", "length", "chunks"))
        if kind == "none":
            return [], b""
        if kind == "length":
            return [b"Content-Length: %d\r\n" % len(body)], body
        size, extension = random.randint(1, 3000), random.choice((b"", b";a=b"))
        chunks = (
            [body[start : start + size] for start in range(0, len(body), size)] if size > 9 else [body] * bool(body)
        )
        text = b"".join(b"%x%b\r\n%b\r\n" % (len(each), extension, each) for each in chunks)
        return [b"Transfer-Encoding: chunked\r\n"], text + b"0\r\n" + random.choice((b"", b"x: y\r\n")) + b"\r\n"

    def _some(self, most: int) -> int:
        return self._random.randint(0, most)


@pytest.mark.parametrize("seed", range(8))
async def test_requests_are_answered_alike_with_or_without_offers_and_however_they_are_cut(
    edge: Edge, seed: int
) -> None:
    random = Random(seed)
    for _ in range(10):
        requests = Requests(random)
        async with edge.client() as client:
            client.send(requests.plain)
            expected = [await client.answer() for _ in range(requests.number)]
        asked = [scope["raw_path"] + scope["query_string"] for scope in edge.app.seen]
        edge.app.seen.clear()
        async with edge.client() as client:
            for piece in requests.cut(requests.offered):
                client.send(piece)
                await asyncio.sleep(0)
            assert [await client.answer() for _ in range(requests.number)] == expected, requests.offered
            client.send(GET)
            assert await client.answer() == (200, b"ok")
        assert [scope["raw_path"] + scope["query_string"] for scope in edge.app.seen[:-1]] == asked
        edge.app.seen.clear()
    assert not edge.refused
