"""What one connection of a stranger can make the node keep or do, over real sockets."""

import asyncio
import gc
import ipaddress
import json
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

import anyio
import pytest

from app.http.client_address import TrustedProxies
from app.http.edge import _limited_parser as limited_parser
from app.http.edge import connections, http_protocol
from app.http.edge._refusals import MADE_ROOM
from app.http.edge.connections import PIECE_BYTES, TURNS_PER_ROUND
from app.http.edge.http_protocol import AT_ONCE_BYTES, EdgeProtocol, StrangersReader
from tests.http.edge.rig import GET, POST, Edge, open_edge, until

pytestmark = pytest.mark.real

PLAIN = pytest.mark.parametrize("edge", ["http"], indirect=True)  # the others also behind TLS
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"

# --- requests that wait behind another one


async def test_requests_in_one_go_are_answered_in_turn(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(GET * 8 + POST + b"content-length: 3\r\n\r\nabc" + GET)
        assert [await client.answer() for _ in range(10)] == [(200, b"ok")] * 8 + [(200, b"3"), (200, b"ok")]
        client.send(GET)  # and the connection goes on
        assert await client.answer() == (200, b"ok")
    assert not edge.refused


async def test_nothing_is_read_while_a_request_waits(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET /waits HTTP/1.1\r\n\r\n" + GET)
        await edge.app.was_asked.wait()
        (protocol,) = edge.protocols
        await until(lambda: protocol.pipeline)
        client.send(POST + b"content-length: 1000000000\r\n\r\n")
        chunk, written = bytes(1 << 20), 0
        with anyio.move_on_after(0.3):  # what the kernel takes, and no more
            while written < 64 << 20:
                client.send(chunk)
                await client.writer.drain()
                written += len(chunk)
        assert written < 64 << 20
        assert len(protocol.pipeline) == 1
        assert sum(len(cycle.body) for cycle, _ in protocol.pipeline) == 0
        edge.app.may_answer.set()
        assert [await client.answer() for _ in range(2)] == [(200, b"ok")] * 2


async def test_seventeen_that_wait_end_the_connection(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET /waits HTTP/1.1\r\n\r\n" + GET * 16)
        await edge.app.was_asked.wait()
        (protocol,) = edge.protocols
        assert len(protocol.pipeline) == 16
        edge.app.may_answer.set()
        for _ in range(17):
            assert await client.answer() == (200, b"ok")
        edge.app.may_answer.clear()
        client.send(b"GET /waits HTTP/1.1\r\n\r\n" + GET * 17)
        await until(lambda: edge.refused)
        assert not protocol.pipeline
        await edge.spend_time(16)
        assert await client.is_closed()
    assert edge.refused == ["pipeline_too_long"]
    assert len(edge.app.seen) <= 18


async def test_a_flood_that_is_not_read_leaves_nothing_behind(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(GET * 300_000)  # ten megabytes
        await until(lambda: edge.refused)
        await edge.spend_time(16)
    await until(lambda: not edge.connections)
    assert edge.refused == ["pipeline_too_long"]
    assert len(edge.app.seen) < 100


async def test_a_request_hears_that_its_client_left_also_while_others_wait(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET /waits HTTP/1.1\r\n\r\n" + GET)
        await edge.app.was_asked.wait()
        (protocol,) = edge.protocols
        await until(lambda: protocol.pipeline)
        protocol._socket.abort()
        await until(lambda: edge.app.left)
        assert not protocol.pipeline
        assert len(edge.app.seen) == 1
        await until(lambda: edge.app.knows_it)


# --- a node that leaves

CALL, CLOSES = b"GET /t/a/b/waits HTTP/1.1\r\nhost: a\r\n\r\n", b"\r\nconnection: close\r\n"


@pytest.mark.parametrize("is_long", [False, True])
async def test_what_is_in_flight_when_the_node_leaves_hears_that_its_connection_ends(edge: Edge, is_long: bool) -> None:
    edge.app.goes_the_long_way = is_long
    async with edge.client() as client, edge.client() as other, edge.client() as idle:
        await idle.show_a_credential()
        client.send(CALL)
        other.send(b"GET /waits HTTP/1.1\r\nhost: a\r\n\r\n")  # no MCP endpoint
        await until(lambda: len(edge.app.seen) == 3)
        edge.connections.leave_with_answers()
        edge.app.may_answer.set()
        assert CLOSES in await client.head()
        assert await client.is_closed()
        assert CLOSES not in await other.head()
        other.send(GET)
        assert await other.answer() == (200, b"ok")
        idle.send(CALL)
        assert CLOSES in await idle.head()
        assert await idle.is_closed()


async def test_what_waits_behind_it_is_answered_before_the_connection_ends(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(CALL * 3)
        await edge.app.was_asked.wait()
        edge.connections.leave_with_answers()
        edge.app.may_answer.set()
        assert [CLOSES in await client.head() for _ in range(3)] == [False, False, True]
        assert await client.is_closed()


@PLAIN
async def test_a_request_that_has_arrived_when_the_server_stops_is_answered_though_nobody_has_read_it(
    edge: Edge,
) -> None:
    async with edge.client() as client:
        client.send(GET)
        await client.answer()
        (protocol,) = edge.protocols
        socket = client.writer.get_extra_info("socket")
        os.write(socket.fileno(), GET)  # the event loop does not run between this and the next line
        protocol.shutdown()
        assert CLOSES in await client.head()
        assert await client.is_closed()


async def test_a_request_that_is_arriving_when_the_server_stops_is_answered(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(GET[:-1])
        await until(lambda: edge.protocols and edge.protocols[0]._in_head)
        edge.protocols[0].shutdown()
        client.send(GET[-1:])
        assert CLOSES in await client.head()
        assert await client.is_closed()


async def test_idle_connections_are_known_until_they_are_closed(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(CALL)
        await edge.app.was_asked.wait()
        assert not edge.connections.has_kept
        edge.app.may_answer.set()
        await client.head()
        assert edge.connections.has_kept
        edge.protocols[0].shutdown()
        assert await client.is_closed()
        assert not edge.connections.has_kept


# --- heads


@pytest.mark.parametrize("path", [b"/livez", b"/t/a/b/mcp"])
@pytest.mark.parametrize("in_pieces", [False, True])
async def test_a_head_over_32_kib_is_answered_and_closed(edge: Edge, path: bytes, in_pieces: bool) -> None:
    async with edge.client() as client:
        head = b"GET " + path + b" HTTP/1.1\r\nhost: a\r\nlong: " + b"x" * (32 << 10) + b"\r\n\r\n"
        for start in range(0, len(head), 1000 if in_pieces else len(head)):
            client.send(head[start : start + (1000 if in_pieces else len(head))])
            await asyncio.sleep(0)
        status, body = await client.answer()
        assert status == 431
        answer = json.loads(body)
        assert (answer["error"]["data"]["reason"] if path != b"/livez" else answer["reason"]) == "head_too_large"
        edge.pass_time(2)
        assert await client.is_closed()
    assert not edge.app.seen


async def test_a_head_of_just_under_32_kib_and_100_fields_is_served(edge: Edge) -> None:
    async with edge.client() as client:
        fields = b"".join(b"x-%d: %s\r\n" % (number, b"y" * 300) for number in range(99))
        client.send(b"GET / HTTP/1.1\r\nhost: a\r\n" + fields + b"\r\n")
        assert (await client.answer())[0] == 200
        assert len(edge.app.seen[0]["headers"]) == 100
        client.send(b"GET / HTTP/1.1\r\nhost: a\r\n" + fields + b"one: more\r\n\r\n")
        assert (await client.answer())[0] == 431


async def test_an_endless_header_is_refused_as_it_arrives(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET / HTTP/1.1\r\nlong: ")
        for _ in range(60):
            client.send(b"x" * 1000)
            await asyncio.sleep(0)
        assert (await client.answer())[0] == 431


async def test_endless_fields_are_refused_as_they_arrive(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET / HTTP/1.1\r\nhost: a\r\n" + b"a: b\r\n" * 2000)  # less than a head may have, without an end
        assert (await client.answer())[0] == 431


async def test_a_url_over_8_kib_is_a_414(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET /" + b"x" * 8191 + b" HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await client.answer())[0] == 200
        client.send(b"GET /" + b"x" * 4000)
        client.send(b"x" * 4192)  # and no end of it yet
        status, body = await client.answer()
        assert (status, json.loads(body)["reason"]) == (414, "uri_too_long")


async def test_what_is_no_http_is_a_400(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"\x16\x03\x01\x02\x00nonsense")
        assert (await client.answer())[0] == 400
    async with edge.client() as client:
        client.send(GET + b"nonsense\r\n\r\n")
        assert (await client.answer())[0] == 200
        await until(lambda: len(edge.refused) == 2)
    assert edge.refused == ["malformed_request"] * 2


async def test_what_came_before_a_bad_head_is_answered_and_nothing_after(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET /waits HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nbad header\r\n\r\n" + GET)
        await edge.app.was_asked.wait()
        edge.app.may_answer.set()
        assert await client.answer() == (200, b"ok")
        assert await client.is_closed()
    assert len(edge.app.seen) == 1


# --- bodies


async def test_trailers_are_dropped_up_to_8_kib(edge: Edge) -> None:
    async with edge.client() as client:
        chunked = POST + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"
        client.send(chunked + b"authorization: Bearer of another\r\nx: " + b"y" * 8000 + b"\r\n\r\n")
        assert await client.answer() == (200, b"5")
        assert [name for name, _ in edge.app.seen[0]["headers"]] == [b"host", b"transfer-encoding"]
        client.send(chunked + b"x: " + b"y" * 8192 + b"\r\n\r\n")
        assert (await client.answer())[0] == 431
    assert edge.refused == ["trailers_too_large"]


@pytest.mark.parametrize("start", [b"5;", b"0\r\nx: ", b"0\r\nx"])
async def test_extensions_and_trailers_without_end_are_refused_as_they_arrive(edge: Edge, start: bytes) -> None:
    async with edge.client() as client:
        client.send(POST + b"transfer-encoding: chunked\r\n\r\n" + start)
        await edge.app.was_asked.wait()
        for _ in range(10):
            client.send(b"x" * 4000)
            await asyncio.sleep(0)
        assert (await client.answer())[0] == 431


@pytest.mark.parametrize("is_let_in", [False, True])
async def test_many_chunks_are_served_where_the_body_is_short_or_the_chunks_are_not(
    edge: Edge, is_let_in: bool
) -> None:
    async with edge.client() as client:
        if is_let_in:
            await client.show_a_credential()
        for number, size in ((1_600, 1), (50_000, 64), (5_000, 600)):
            client.send(CHUNKED + (b"%x\r\n%b\r\n" % (size, bytes(size))) * number + b"0\r\n\r\n")
            assert await client.answer() == (200, b"%d" % (number * size))
        client.send(POST + b"content-length: 3000000\r\n\r\n" + bytes(3_000_000))
        assert await client.answer() == (200, b"3000000")
    assert not edge.refused


@pytest.mark.parametrize("chunk", [b"1\r\nx\r\n", b"1;a=b;c=d\r\nx\r\n", b"1;" + b"a" * 4_000 + b"\r\nx\r\n"])
@pytest.mark.parametrize("is_let_in", [False, True])
async def test_small_chunks_without_end_are_a_413_after_a_few_thousand(
    edge: Edge, chunk: bytes, is_let_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed, on_body = [0], EdgeProtocol.on_body

    def count(protocol: EdgeProtocol, body: bytes) -> None:
        parsed[0] += 1
        on_body(protocol, body)

    monkeypatch.setattr(EdgeProtocol, "on_body", count)
    async with edge.client() as client:
        if is_let_in:
            await client.show_a_credential()
        client.send(CHUNKED + chunk * 10_000)
        status, body = await client.answer()
        assert (status, json.loads(body)["reason"]) == (413, "chunks_too_small")
        await edge.spend_time(16)
        assert await client.is_closed()
    assert edge.refused == ["chunks_too_small"]
    assert parsed[0] < 6_000


async def test_small_chunks_of_a_body_that_was_answered_end_the_connection_and_spare_the_answer(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(CHUNKED.replace(b"/asks", b"/") + b"1\r\n")
        await until(lambda: edge.connections and edge.protocols[0].cycle)
        await until(lambda: edge.protocols[0].cycle.response_complete)
        client.send(b"x\r\n" + b"1\r\nx\r\n" * 50_000)
        await until(lambda: edge.refused)
        assert await client.answer() == (200, b"ok")
        await edge.spend_time(16)
        assert await client.is_closed()
    assert edge.refused == ["chunks_too_small"]


async def test_a_body_that_nobody_reads_may_have_a_mebibyte(edge: Edge) -> None:
    async with edge.client() as client:
        head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
        client.send(head % 1_000_000 + bytes(1_000_000) + GET)
        assert [await client.answer() for _ in range(2)] == [(200, b"ok")] * 2
        client.send(head % (1 << 40) + bytes(2 << 20))
        await until(lambda: edge.refused)
        assert edge.refused == ["unread_body"]
        assert edge.protocols[0].flow.read_paused
        assert await client.answer() == (200, b"ok")
        await edge.spend_time(16)
        assert await client.is_closed()


async def test_empty_lines_without_end_are_left_alone(edge: Edge) -> None:
    async with edge.client() as client:
        for _ in range(4):
            client.send(b"\r\n" * 2_000 + GET)
            assert await client.answer() == (200, b"ok")
        client.send(b"\r\n" * 20_000)
        await until(lambda: edge.refused)
        await edge.spend_time(16)
        assert await client.is_closed()
    assert edge.refused == ["empty_lines"]


# --- deadlines


async def test_a_connection_that_sends_nothing_ends_after_ten_seconds(edge: Edge) -> None:
    async with edge.client() as client:
        await until(lambda: edge.connections)
        edge.pass_time(9)
        assert edge.connections
        edge.pass_time(2)
        assert await client.is_closed()
    assert edge.refused == ["silent"]


async def test_half_a_head_is_a_408_after_ten_seconds_however_it_trickles(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET / HTTP/1.1\r\n")
        await until(lambda: edge.protocols and edge.protocols[0]._in_head)  # from then on it has its time
        for _ in range(3):
            edge.pass_time(3)
            client.send(b"a: b\r\n")
            await asyncio.sleep(0.01)
        assert edge.connections
        edge.pass_time(2)
        assert (await client.answer())[0] == 408
        edge.pass_time(2)
        assert await client.is_closed()
    assert edge.refused == ["head_timeout"]


async def test_a_connection_without_another_request_ends_after_thirty_seconds(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(GET)
        await client.answer()
        edge.pass_time(25)
        client.send(GET)
        await client.answer()
        edge.pass_time(28)
        assert edge.connections
        edge.pass_time(3)
        assert await client.is_closed()
    assert not edge.refused


async def test_a_later_head_has_ten_seconds_too(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(GET + b"GET / HTTP")
        await client.answer()
        edge.pass_time(12)
        assert (await client.answer())[0] == 408


async def test_a_request_may_take_as_long_as_it_takes(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET /waits HTTP/1.1\r\n\r\n")
        await edge.app.was_asked.wait()
        edge.pass_time(600)
        edge.app.may_answer.set()
        assert await client.answer() == (200, b"ok")


async def test_a_body_that_nobody_reads_has_its_time_too(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"POST / HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n")
        assert await client.answer() == (200, b"ok")
        for _ in range(10):
            edge.pass_time(3)
            client.send(b"x")
            await asyncio.sleep(0.01)
        assert edge.connections
        edge.pass_time(5)
        assert await client.is_closed()
    assert edge.refused == ["body_timeout"]


async def test_a_body_that_came_in_time_is_followed_by_a_wait_like_any_other(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n")
        await client.answer()
        client.send(b"xx")
        await until(lambda: not edge.protocols[0]._in_body)
        edge.pass_time(28)
        client.send(GET)
        assert await client.answer() == (200, b"ok")


async def test_an_answer_that_is_not_taken_ends_the_connection_but_a_slow_reader_may_go_on(edge: Edge) -> None:
    async with edge.client() as slow, edge.client() as stuck:
        for client in (slow, stuck):
            client.send(b"GET /long HTTP/1.1\r\n\r\n")
        await until(lambda: sum(each.flow.write_paused for each in edge.protocols) == 2)
        for _ in range(26):  # the kernel may go on taking some of the other one's for a while
            edge.pass_time(4)
            await slow.reader.readexactly(2 << 20)
        await until(lambda: len(edge.connections) == 1)
    assert edge.refused == ["stalled"]


async def test_time_does_not_pass_while_the_node_stands_still(edge: Edge) -> None:
    async with edge.client() as client:
        await until(lambda: edge.connections)
        edge.time += 60
        edge.connections.sweep()
        client.send(GET)  # which had arrived long before, as far as the client knows
        assert await client.answer() == (200, b"ok")


# --- numbers


async def test_a_client_that_was_let_in_waits_for_no_crowd_of_strangers(edge: Edge) -> None:
    async with AsyncExitStack() as stack:
        guest = await stack.enter_async_context(edge.client())
        await guest.show_a_credential()
        crowd = [await stack.enter_async_context(edge.client()) for _ in range(100)]
        await until(lambda: len(edge.connections) == 101)
        edge.app.seen.clear()
        for stranger in crowd:
            stranger.send(GET)
        guest.send(b"GET /guest HTTP/1.1\r\n\r\n")
        assert await guest.answer() == (200, b"ok")
        assert [each["path"] for each in edge.app.seen].index("/guest") < 50
        assert [await stranger.answer() for stranger in crowd] == [(200, b"ok")] * 100


async def test_what_strangers_send_is_parsed_in_turns_and_what_guests_send_at_once(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, pieces = [0], list[tuple[int, bool]]()
    parse = EdgeProtocol._parse

    def parse_and_count(protocol: EdgeProtocol, piece: bytes | memoryview) -> None:
        if len(piece) > AT_ONCE_BYTES:
            pieces.append((rounds[0], protocol.is_let_in))
        parse(protocol, piece)

    def count_rounds() -> None:
        rounds[0] += 1
        counting[0] = asyncio.get_running_loop().call_soon(count_rounds)

    monkeypatch.setattr(EdgeProtocol, "_parse", parse_and_count)
    counting = [asyncio.get_running_loop().call_soon(count_rounds)]
    request = POST + b"content-length: 300000\r\n\r\n" + bytes(300_000)
    async with AsyncExitStack() as stack:
        guest = await stack.enter_async_context(edge.client())
        await guest.show_a_credential()
        crowd = [await stack.enter_async_context(edge.client()) for _ in range(20)]
        for stranger in crowd:
            stranger.send(request)
        guest.send(request)
        for client in (guest, *crowd):
            assert await client.answer() == (200, b"300000")
        client.send(GET)  # and the connection goes on
        assert await client.answer() == (200, b"ok")
        readers = [each._socket.get_protocol() for each in edge.protocols]
        assert sum(isinstance(each, StrangersReader) for each in readers) == 20
        assert sum(each in edge.protocols for each in readers) == 1  # the guest is read like any connection now
    counting[0].cancel()
    of_strangers = Counter(number for number, is_let_in in pieces if not is_let_in)
    assert sum(of_strangers.values()) >= 20 * 300_000 // PIECE_BYTES
    assert max(of_strangers.values()) <= TURNS_PER_ROUND
    of_the_guest = Counter(number for number, is_let_in in pieces if is_let_in)
    assert max(of_the_guest.values()) > TURNS_PER_ROUND


@PLAIN
async def test_strangers_who_have_left_stand_in_line_no_longer(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not count any more, so there may be any number of them; and others would wait for them."""
    monkeypatch.setattr(connections, "TURNS_PER_ROUND", 0)
    for request in (GET, POST + b"content-length: 3000\r\n\r\n" + bytes(3_000)):
        async with edge.client() as client:
            client.send(request)
            await until(lambda: edge.connections._in_line)
            edge.protocols[0].give_up(MADE_ROOM)
        await until(lambda: not edge.connections._in_line)


async def test_what_stands_in_line_of_a_guest_who_has_left_is_forgotten(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When he was let in, his connection no longer had a reader of its own that could have heard of its end."""
    in_line = list[Callable[[], None]]()
    async with edge.client() as client:
        client.send(b"POST /waits?let-in HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n")
        await edge.app.was_asked.wait()
        monkeypatch.setattr(edge.connections, "take_turns", in_line.append)
        client.send(bytes(AT_ONCE_BYTES + 1))
        await until(lambda: in_line)
        reset_at_close = struct.pack("ii", 1, 0)
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset_at_close)
    edge.app.may_answer.set()
    await until(lambda: not edge.connections)
    for turn in in_line:
        turn()


@pytest.mark.parametrize("request_", [GET, GET.replace(b"host", b"connection: upgrade\r\nupgrade: h2c\r\nhost")])
async def test_what_was_read_of_a_refused_connection_goes_with_it(edge: Edge, request_: bytes) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            async with edge.client() as client:
                client.send(request_ * 100_000)
                await until(lambda: edge.refused)
                edge.refused.clear()
                await edge.spend_time(16)
            await until(lambda: not edge.connections)
        # Nothing of it waits for a garbage collection; what the event loop still holds goes in its next turns.
        await until(lambda: sum(isinstance(each, EdgeProtocol) for each in gc.get_objects()) <= 1)
    finally:
        gc.enable()


async def test_the_longest_idle_stranger_makes_room_and_who_was_let_in_stays() -> None:
    async with open_edge(connections=3) as edge, edge.client() as guest, edge.client() as busy, edge.client() as silent:
        await guest.show_a_credential()
        busy.send(b"GET /waits HTTP/1.1\r\n\r\n")
        await until(lambda: len(edge.app.seen) == 2)
        edge.pass_time(5)
        for _ in range(3):
            async with edge.client() as another:
                another.send(GET)
                assert await another.answer() == (200, b"ok")
                edge.pass_time(1)
        assert await silent.is_closed()
        guest.send(GET)
        assert await guest.answer() == (200, b"ok")
        edge.app.may_answer.set()
        assert await busy.answer() == (200, b"ok")
    assert set(edge.refused) == {"made_room"}


async def test_where_nobody_can_go_a_newcomer_is_told_to_come_back() -> None:
    async with open_edge(connections=2) as edge, edge.client() as first, edge.client() as second:
        for guest in (first, second):
            await guest.show_a_credential()
        async with edge.client() as third:
            status, body = await third.answer()
            assert (status, json.loads(body)["reason"]) == (503, "connection_limit")
            assert await third.is_closed()
        assert len(edge.connections) == 2
    await until(lambda: not edge.connections)


async def test_requests_at_a_time_of_one_client_behind_a_proxy_are_limited_and_the_connections_go_on() -> None:
    proxies = TrustedProxies([ipaddress.ip_network("127.0.0.0/8")])
    async with open_edge(proxies, per_address=1) as edge, edge.client() as first, edge.client() as second:
        waits = b"GET /waits HTTP/1.1\r\nx-forwarded-for: 192.0.2.%d\r\n\r\n"
        asks = b"GET /t/a/b/mcp HTTP/1.1\r\nx-forwarded-for: 192.0.2.%d\r\n\r\n"
        first.send(waits % 1)
        await edge.app.was_asked.wait()
        second.send(asks % 1 + asks % 2)
        status, body = await second.answer()
        assert (status, json.loads(body)["error"]["data"]["reason"]) == (429, "address_limit")
        assert await second.answer() == (200, b"ok")  # somebody else behind the same proxy
        edge.app.may_answer.set()
        assert await first.answer() == (200, b"ok")
        second.send(asks % 1)
        assert await second.answer() == (200, b"ok")
        edge.app.may_answer.clear()
        first.send(waits % 1)
        await until(lambda: edge.app.seen[-1]["path"] == "/waits")
        first.writer.transport.abort()  # who leaves does not count any more
        await until(lambda: len(edge.connections) == 1)
        second.send(asks % 1)
        assert await second.answer() == (200, b"ok")
    assert edge.refused == ["address_limit"]
    assert {each["client"][0] for each in edge.app.seen} == {"192.0.2.1", "192.0.2.2"}


async def test_every_connection_is_let_go_when_it_ends(edge: Edge) -> None:
    for _ in range(20):
        async with edge.client() as client:
            client.send(GET)
            await client.answer()
    await until(lambda: not edge.connections)


def test_the_limits_are_those_that_clients_are_told() -> None:
    assert limited_parser.MAX_HEAD_BYTES == 32 * 1024
    assert limited_parser.MAX_FIELDS == 100
    assert (
        limited_parser.MAX_URL_BYTES == limited_parser.MAX_TRAILER_BYTES == http_protocol.MAX_FRAMING_BYTES == 8 * 1024
    )


# --- what of a head decides where a request goes, and where it ends


@pytest.mark.parametrize(
    ("target", "authority", "path", "query"),
    [
        (b"http://evil.example/t/a/b/mcp", b"evil.example", b"/t/a/b/mcp", b""),
        (b"HTTPS://Evil.example:8443/x?y=/z", b"Evil.example:8443", b"/x", b"y=/z"),
        (b"http://[::1]:80/x", b"[::1]:80", b"/x", b""),
        (b"http://evil.example", b"evil.example", b"/", b""),
        (b"http://evil.example?x@y", b"evil.example", b"/", b"x@y"),
        (b"http://evil.example/http://ours/", b"evil.example", b"/http://ours/", b""),
        (b"/http://evil.example/", b"ours", b"/http://evil.example/", b""),
        (b"//evil.example/x", b"ours", b"//evil.example/x", b""),
    ],
)
async def test_the_authority_of_an_absolute_target_takes_the_place_of_host(
    edge: Edge, target: bytes, authority: bytes, path: bytes, query: bytes
) -> None:
    """RFC 9112 §3.2.2."""
    async with edge.client() as client:
        for fields in (b"", b"connection: upgrade\r\nupgrade: h2c\r\n"):
            edge.app.seen.clear()
            client.send(b"GET " + target + b" HTTP/1.1\r\na: b\r\nHost: ours\r\n" + fields + b"\r\n")
            assert await client.answer() == (200, b"ok")
            (seen,) = edge.app.seen
            assert seen["headers"][:2] == [(b"a", b"b"), (b"host", authority)]
            assert (seen["raw_path"], seen["path"], seen["query_string"]) == (path, path.decode(), query)


async def test_a_second_host_and_a_missing_one_are_as_visible_with_an_absolute_target(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET http://b/ HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\nGET http://b/ HTTP/1.1\r\n\r\n")
        assert [await client.answer() for _ in range(2)] == [(200, b"ok")] * 2
    assert [scope["headers"] for scope in edge.app.seen] == [[(b"host", b"b")] * 2, []]


@pytest.mark.parametrize(
    "target",
    [
        b"http:///x", b"http://?x", b"http://", b"http://@/x", b"http://ours@evil/x", b"http://u:p@ours/x", b"ftp://ours/x",
        b"http://ours\\@evil/x", b"http://ours#@evil/x", b"http:x", b"x", b"ours:80", b"*x", b"http://a@?x",
        b"http://[::1/x", b"http://::1]/x", b"http://[]:80/x", b"http://[::1]x/", b"http://a[b]/x",
    ],
)  # fmt: skip
async def test_other_targets_are_a_400(edge: Edge, target: bytes) -> None:
    async with edge.client() as client:
        client.send(b"GET " + target + b" HTTP/1.1\r\nhost: ours\r\n\r\n" + GET)
        assert (await client.answer())[0] == 400
        edge.pass_time(2)
        assert await client.is_closed()
    assert not edge.app.seen


async def test_an_asterisk_is_what_options_is_asked_for(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n")
        assert await client.answer() == (200, b"ok")
        client.send(b"GET * HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await client.answer())[0] == 400
    assert [scope["path"] for scope in edge.app.seen] == ["*"]


@pytest.mark.parametrize(
    "codings",
    [
        b"gzip, chunked", b"gzip,chunked", b"gzip", b"identity", b"xchunked", b"chunked;a=b", b"x, chunked",
        b"\x0bchunked", b"gzip\r\ntransfer-encoding: chunked", b"deflate\r\nTRANSFER-ENCODING: chunked",
    ],
)  # fmt: skip
@pytest.mark.parametrize("fields", [b"", b"connection: upgrade\r\nupgrade: h2c\r\n"])
async def test_a_transfer_coding_that_is_not_understood_is_a_501(edge: Edge, codings: bytes, fields: bytes) -> None:
    """RFC 9112 §6.1."""
    async with edge.client() as client:
        client.send(POST + fields + b"transfer-encoding: " + codings + b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + GET)
        status, body = await client.answer()
        if status != 400:  # what the parser itself refuses
            assert (status, json.loads(body)["reason"]) == (501, "not_implemented")
        edge.pass_time(2)
        assert await client.is_closed()
    assert not edge.app.seen


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked", b"\t CHUNKED  "])
async def test_chunked_is_understood_however_it_is_written(edge: Edge, coding: bytes) -> None:
    async with edge.client() as client:
        client.send(POST + b"Transfer-Encoding:" + coding + b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + GET)
        assert [await client.answer() for _ in range(2)] == [(200, b"3"), (200, b"ok")]


@pytest.mark.parametrize(
    "request_",
    [
        POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        POST + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc",
        POST + b"content-length: 3, 3\r\n\r\nabc",
        POST + b"content-length: +3\r\n\r\nabc",
        POST + b"transfer-encoding: chunked, gzip\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        POST + b"transfer-encoding:\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        POST.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        POST + b"content-length : 3\r\n\r\nabc",
        POST + b"content-length: 3\r\n folded\r\n\r\nabc",
    ],
)
async def test_a_body_that_could_end_in_two_places_is_a_400(edge: Edge, request_: bytes) -> None:
    async with edge.client() as client:
        client.send(request_ + GET)
        assert (await client.answer())[0] == 400
        edge.pass_time(2)
        assert await client.is_closed()
    assert edge.refused == ["malformed_request"]
    assert not edge.app.seen


@pytest.mark.parametrize(
    "line", [b"GET / HTTP/2.0\r\n", b"GET / HTTP/0.9\r\n", b"GET /\r\n", b"POST /t/a/b/mcp HTTP/2.0\r\n"]
)
@pytest.mark.parametrize("fields", [b"", b"connection: keep-alive\r\n", b"connection: upgrade\r\nupgrade: h2c\r\n"])
async def test_another_version_of_http_is_a_505(edge: Edge, line: bytes, fields: bytes) -> None:
    async with edge.client() as client:
        client.send(GET + line + fields + b"\r\n" + GET)
        assert await client.answer() == (200, b"ok")
        status, body = await client.answer()
        answer = json.loads(body)
        reason = answer["error"]["data"]["reason"] if b"/t/" in line else answer["reason"]
        assert (status, reason) == (505, "version_not_supported")
        assert await client.is_closed()
    assert edge.refused == ["version_not_supported"]
    assert len(edge.app.seen) == 1


@pytest.mark.parametrize("version", [b"3.0", b"1.2", b"2", b"1.10"])
async def test_what_is_no_version_of_http_at_all_is_a_400(edge: Edge, version: bytes) -> None:
    async with edge.client() as client:
        client.send(b"GET / HTTP/" + version + b"\r\nhost: a\r\n\r\n")
        assert (await client.answer())[0] == 400
