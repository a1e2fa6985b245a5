"""The HTTP client between nodes, over real sockets. Who is there and who is not: test_client_strangers.py."""

import asyncio
import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from app.cluster.peers import _connection as peer_connection
from app.cluster.peers import _pool as peer_pool
from app.cluster.peers import client as peer_client
from app.cluster.peers.client import Deadlines, PeerClient, PeerLost, PeerUnreachable, PoolLimits
from app.cluster.peers.late_head import encode_late_head
from app.errors import NodeLost, NodeUnavailable
from tests.certificates import self_signed
from tests.cluster.peers.rig import (
    NOTHING,
    PATIENT,
    TARGET,
    answer,
    asked,
    begin,
    credentials,
    echo,
    greet,
    post,
    process,
    read_request,
    record,
    request_of,
    scripted,
    serving,
    stands_still,
    until,
)


def bounded(**limits: Any) -> PeerClient:
    return PeerClient(credentials(), PATIENT, PoolLimits(**limits))


def hurried(**deadlines: float) -> PeerClient:
    return PeerClient(credentials(), Deadlines(**deadlines))


async def keeps_answering(reader: Any, writer: Any, number: int) -> None:
    await greet(reader, writer)
    while True:
        await read_request(reader)
        writer.write(answer())


async def answers_nothing(reader: Any, writer: Any, number: int) -> None:
    """Which is also what stands behind a proxy that has stalled."""
    await greet(reader, writer)
    await reader.read()


# --- the usual case


async def test_a_request_goes_there_and_its_answer_comes_back(client: PeerClient) -> None:
    async with serving(echo) as url:
        response = await client.send(record(url), request_of("DELETE", b"/a%20b?c=d"))
        headers = dict(response.headers)
        assert (response.status, headers[b"x-method"], headers[b"x-path"]) == (200, b"DELETE", b"/a%20b?c=d")
        assert await response.body(10) == b""
        large = bytes(range(256)) * 4096
        assert await post(client, url, large) == large
        await client.aclose()


async def test_what_is_sent_is_what_was_given_and_who_vouches_for_it(client: PeerClient) -> None:
    requests = []

    async def script(reader: Any, writer: Any, number: int) -> None:
        requests.append(await asked(reader, writer))
        writer.write(answer())

    async with scripted(script) as peer:
        await post(client, peer.url)
    host = peer.url.removeprefix("http://").encode()
    before, after = requests[0].split(b"trunkline-forwarded: ")
    assert before == b"POST %b HTTP/1.1\r\nhost: %b\r\nx-a: b\r\n" % (TARGET, host)
    assert after.endswith(b"\r\ncontent-length: 5\r\n\r\nhello")


async def test_a_connection_serves_one_request_after_the_other(client: PeerClient) -> None:
    async with scripted(keeps_answering) as peer:
        for _ in range(5):
            assert await post(client, peer.url) == b"{}"
        assert peer.connections == 1


async def test_a_thousand_at_once_each_get_their_own_answer_over_few_connections(client: PeerClient) -> None:
    answers: dict[int, bytes] = {}

    async def one(number: int) -> None:
        answers[number] = await post(client, url, b"%d" % number)

    async with serving(echo) as url:
        async with anyio.create_task_group() as tasks:
            for number in range(1000):
                tasks.start_soon(one, number)
        assert answers == {number: b"%d" % number for number in range(1000)}
        size, idle = (client._pools[url].size, len(client._pools[url].idle))
        assert size == idle < 300
        await client.aclose()


async def test_https_is_spoken_where_the_url_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path)
    async with serving(echo, ssl_certfile=str(certificate), ssl_keyfile=str(key)) as url:
        stranger = PeerClient(credentials())
        with pytest.raises(PeerUnreachable):  # nobody vouches for this certificate
            await post(stranger, url)
        assert stranger.problems[url].startswith("its certificate is not trusted here: self")
        stranger = PeerClient(credentials())
        assert await stranger.probe(url) is None
        assert url in stranger.problems
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        client = PeerClient(credentials())
        for _ in range(2):
            assert await post(client, url, b"sealed" * 100_000) == b"sealed" * 100_000
        assert "1 open, 1 idle" in repr(client)
        assert await client.probe(url) == "node-b"
        await client.aclose()


# --- connections that are kept


async def closes_after_one(reader: Any, writer: Any, number: int) -> None:
    await asked(reader, writer)
    writer.write(answer())


async def test_a_kept_connection_that_the_peer_has_closed_is_not_used(client: PeerClient) -> None:
    async with scripted(closes_after_one) as peer:
        await post(client, peer.url)
        await until(lambda: "0 open" in repr(client))
        assert await post(client, peer.url) == b"{}"
        assert peer.connections == 2


async def test_nor_where_the_event_loop_has_not_been_told_yet(client: PeerClient) -> None:
    """As on a node that is busy: a request sent now would be lost, and nobody could say whether it was executed."""
    with process() as (url, running):
        pool = client._pool(url)
        connection = await pool.connect(None)
        assert connection.is_usable()
        running.kill()
        running.wait()  # the loop does not run meanwhile
        assert not connection.is_usable()
        await client.aclose()


async def test_a_connection_is_kept_for_so_long_only() -> None:
    client = PeerClient(credentials(), Deadlines(head_s=1.0), PoolLimits(idle_s=0.0))
    async with scripted(keeps_answering) as peer:
        await post(client, peer.url)
        await until(lambda: not peer.open and repr(client) == NOTHING)


async def test_no_more_connections_are_kept_than_may_be() -> None:
    client = bounded(idle=2)
    async with scripted(keeps_answering) as peer:
        responses = [await begin(client, peer.url) for _ in range(5)]
        for response in responses:
            await response.body(10)
        await until(lambda: "2 open, 2 idle" in repr(client))
        await client.aclose()


async def test_an_answer_that_says_close_is_the_last_on_its_connection(client: PeerClient) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        await asked(reader, writer)
        writer.write(answer(headers=b"connection: close\r\n"))
        await reader.read()

    async with scripted(script) as peer:
        await post(client, peer.url)
        await post(client, peer.url)
        assert peer.connections == 2


async def test_a_response_that_is_closed_early_takes_its_connection_along(client: PeerClient) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        await asked(reader, writer)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbeginning")
        assert await reader.read() == b""

    async with scripted(script) as peer:
        response = await client.send(record(peer.url), request_of())
        response.close()
        await until(lambda: not peer.open and repr(client) == NOTHING)


async def test_what_nobody_asked_for_ends_the_connection(client: PeerClient) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        await asked(reader, writer)
        writer.write(answer())
        await writer.drain()
        writer.write(answer(b'{"of":"somebody else"}'))
        await reader.read()

    async with scripted(script) as peer:
        assert await post(client, peer.url) == b"{}"
        await until(lambda: not peer.open)


@pytest.mark.parametrize("says_so", ["record", "notice"])
async def test_a_node_that_leaves_is_sent_nothing_on_a_connection_that_was_kept(
    client: PeerClient, says_so: str
) -> None:
    async with scripted(keeps_answering) as peer:
        under_way = await begin(client, peer.url)
        await post(client, peer.url)
        if says_so == "notice":
            client.retire(peer.url)
        await (await client.send(record(peer.url, draining=says_so == "record"), request_of())).body(10)
        assert peer.connections == 3
        assert await under_way.body(10) == b"{}"


# --- bounds


async def test_requests_over_the_bound_are_refused_and_probes_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    client = bounded(open=2)
    with process() as (url, _):
        waiting = [await begin(client, url) for _ in range(2)]
        with pytest.raises(NodeUnavailable) as caught:
            await begin(client, url)
        assert not isinstance(caught.value, PeerUnreachable)
        with monkeypatch.context() as patched:
            patched.setattr(peer_client, "PROBE_S", 30.0)  # the process may have to wait for a processor
            assert await client.probe(url) == "node-b"
        waiting[0].close()
        await until(lambda: "1 open" in repr(client))
        (await begin(client, url)).close()
        await client.aclose()


async def test_there_is_a_bound_for_all_nodes_together() -> None:
    client = bounded(in_all=2)
    async with scripted(answers_nothing) as one, scripted(answers_nothing) as other:
        await begin(client, one.url)
        await begin(client, other.url)
        with pytest.raises(NodeUnavailable):
            await begin(client, one.url)
        await client.aclose()


async def test_while_connections_are_opened_others_wait_and_take_what_comes_free() -> None:
    client = bounded(opening=1, waiting=2)
    may_greet = asyncio.Event()

    async def script(reader: Any, writer: Any, number: int) -> None:
        await may_greet.wait()
        await keeps_answering(reader, writer, number)

    async with scripted(script) as peer:
        asking = [asyncio.ensure_future(post(client, peer.url)) for _ in range(3)]
        await until(lambda: peer.open)
        with pytest.raises(NodeUnavailable):
            await post(client, peer.url)
        asking[1].cancel()
        may_greet.set()
        assert await asking[0] == await asking[2] == b"{}"
        assert peer.connections <= 2
        await client.aclose()


async def says_nothing(reader: Any, writer: Any, number: int) -> None:
    await reader.read()


async def test_who_waits_for_a_node_that_says_nothing_need_not_find_out_in_turn() -> None:
    client = PeerClient(credentials(), Deadlines(connect_s=0.1, greet_s=0.1), PoolLimits(opening=1))
    async with scripted(says_nothing) as peer:
        asking = [asyncio.ensure_future(post(client, peer.url)) for _ in range(50)]
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(each) for each in results} == {PeerUnreachable, peer_pool._Late}
        assert peer.connections <= 5
    await until(lambda: repr(client) == NOTHING)


@pytest.mark.parametrize("what_is_there", ["nothing", "a stranger"])
async def test_nor_where_there_is_none_or_one_that_is_no_node(what_is_there: str) -> None:
    client, may_answer = bounded(opening=1), asyncio.Event()

    async def a_stranger(reader: Any, writer: Any, number: int) -> None:
        await read_request(reader)
        await may_answer.wait()
        writer.write(answer())

    async with scripted(a_stranger) as peer:
        url = peer.url if what_is_there == "a stranger" else "http://127.0.0.1:1"
        asking = [asyncio.ensure_future(post(client, url)) for _ in range(50)]
        await asyncio.sleep(0)  # all of them are in line
        may_answer.set()
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(each) for each in results} == {PeerUnreachable}
        assert peer.connections <= 2
    await until(lambda: repr(client) == NOTHING)


async def test_a_connection_that_is_late_is_no_bad_news_of_those_that_are_not() -> None:
    """On a busy machine one of many always is."""
    client = PeerClient(credentials(), Deadlines(greet_s=0.5), PoolLimits(opening=1))

    async def the_first_is_late(reader: Any, writer: Any, number: int) -> None:
        await (says_nothing if number == 1 else keeps_answering)(reader, writer, number)

    async with scripted(the_first_is_late) as peer:
        asking = [asyncio.ensure_future(post(client, peer.url)) for _ in range(20)]
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(results[0], PeerUnreachable)
        assert results[1:] == [b"{}"] * 19
        await client.aclose()


async def test_nobody_waits_for_ever_for_a_node_that_lives_and_has_no_time() -> None:
    client = PeerClient(credentials(), Deadlines(connect_s=0.5, greet_s=1.0, head_s=1.5), PoolLimits(opening=1))

    async def takes_its_time(reader: Any, writer: Any, number: int) -> None:
        await asyncio.sleep(0.2)
        await answers_nothing(reader, writer, number)

    async with scripted(takes_its_time) as peer:
        asking = [asyncio.ensure_future(begin(client, peer.url)) for _ in range(50)]
        results = await asyncio.gather(*asking, return_exceptions=True)
        busy = [each for each in results if isinstance(each, NodeUnavailable)]
        assert {str(each) for each in busy} == {"that node is busy: no connection to it came free in time"}
        assert not any(isinstance(each, PeerUnreachable) for each in busy)
        assert 0 < len(results) - len(busy) == peer.connections
        await client.aclose()


# --- what goes wrong


async def test_a_node_killed_in_mid_call_is_noticed_at_once(client: PeerClient) -> None:
    with process() as (url, running):
        response = await begin(client, url)
        assert not await response.has_head_soon()
        running.kill()
        with anyio.fail_after(Deadlines().head_s - 5), pytest.raises(PeerLost) as caught:  # which is not waited for
            await response.head()
        assert isinstance(caught.value, NodeLost)


async def test_a_node_that_is_given_up_fails_the_calls_that_wait_for_it(client: PeerClient) -> None:
    with process() as (url, _):
        response = await begin(client, url)
        client.abandon("http://127.0.0.1:1")
        assert not await response.has_head_soon()
        client.abandon(url)
        with pytest.raises(PeerLost):
            await response.head()


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_nothing_that_may_have_been_read_is_sent_again(client: PeerClient, method: str) -> None:
    seen: list[bytes] = []

    async def script(reader: Any, writer: Any, number: int) -> None:
        await asked(reader, writer)
        writer.write(answer())
        seen.append(await read_request(reader))

    async with scripted(script) as peer:
        await post(client, peer.url)
        with pytest.raises(PeerLost):
            await client.send(record(peer.url), request_of(method))
        assert (len(seen), peer.connections) == (1, 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x-filler: y\r\n" * 10_000,
        b"HTTP/1.1 200 OK\r\ntrunkline-late-head: 1\r\ncontent-length: 3\r\n\r\n\n{\n",
        b"HTTP/1.1 200 OK\r\ntrunkline-late-head: 1\r\ncontent-length: 3\r\n\r\n\n\n\n",
        b"HTTP/1.1 200 OK\r\ntrunkline-late-head: 1\r\n\r\n" + b"x" * 100_000,
        b"",
    ],
)
async def test_what_is_no_answer_is_a_lost_one(client: PeerClient, raw: bytes) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        await asked(reader, writer)
        writer.write(raw)
        await writer.drain()
        if raw:
            await reader.read()

    async with scripted(script) as peer:
        with pytest.raises(PeerLost):
            await post(client, peer.url)
        await until(lambda: repr(client) == NOTHING)


async def test_an_answer_that_breaks_off_gives_what_came_and_then_fails(client: PeerClient) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        await asked(reader, writer)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")

    async with scripted(script) as peer:
        response = await client.send(record(peer.url), request_of())
        assert await anext(response) == b"first"
        with pytest.raises(PeerLost):
            await anext(response)


async def test_a_body_over_the_limit_is_not_kept(client: PeerClient) -> None:
    async with serving(echo) as url:
        response = await begin(client, url, b"x" * 100_000)
        await response.head()
        with pytest.raises(PeerLost):
            await response.body(1000)
        await client.aclose()


@pytest.mark.parametrize("target", [b"/a b", b"/a\r\nx: y", b"/a\n"])
async def test_a_line_break_never_becomes_a_second_request(client: PeerClient, target: bytes) -> None:
    async with scripted(keeps_answering) as peer:
        for bad in (request_of(target=target), request_of(headers=[(b"a", b"b\r\nc: d")])):
            with pytest.raises(ValueError, match="line break"):
                await client.send(record(peer.url), bad)
        await until(lambda: repr(client) == NOTHING)


# --- deadlines


async def test_a_node_that_does_not_begin_to_answer_in_time_is_given_up() -> None:
    client = hurried(head_s=0.5)
    async with scripted(answers_nothing) as peer:
        with anyio.fail_after(30), pytest.raises(PeerLost, match="has sent nothing"):
            await post(client, peer.url)
        await until(lambda: not peer.open and repr(client) == NOTHING)


@pytest.mark.parametrize("late", [b"", b"trunkline-late-head: 1\r\n"])
async def test_a_node_that_stops_in_the_middle_of_its_answer_is_given_up(late: bytes) -> None:
    client = hurried(idle_s=0.5)

    async def script(reader: Any, writer: Any, number: int) -> None:
        await asked(reader, writer)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n%b\r\n1\r\n\n\r\n" % late)
        await reader.read()

    async with scripted(script) as peer:
        with anyio.fail_after(30), pytest.raises(PeerLost, match="has sent nothing"):
            await post(client, peer.url)
        await until(lambda: not peer.open)


async def test_a_node_that_lets_hear_of_itself_has_the_time_it_needs() -> None:
    """Its head comes late, and says what a head says."""
    client, breaths = hurried(idle_s=0.5), 10

    async def script(reader: Any, writer: Any, number: int) -> None:
        await asked(reader, writer)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrunkline-late-head: 1\r\n\r\n")
        for _ in range(breaths):
            await asyncio.sleep(0.1)
            writer.write(b"1\r\n\n\r\n")
        line = encode_late_head(404, [(b"x-a", b"\xe4")])
        for part in (line[:7], line[7:] + b"not", b" here"):
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await keeps_answering_from_here(reader, writer)

    async with scripted(script) as peer:
        response = await client.send(record(peer.url), request_of())
        assert (response.status, response.headers) == (404, [(b"x-a", b"\xe4")])
        assert await response.body(100) == b"not here"
        assert await post(client, peer.url) == b"{}"
        assert peer.connections == 1
        await client.aclose()


async def keeps_answering_from_here(reader: Any, writer: Any) -> None:
    while True:
        await read_request(reader)
        writer.write(answer())


async def test_a_reader_that_takes_its_time_is_not_held_against_the_node() -> None:
    client = hurried(idle_s=0.5)
    async with serving(echo) as url:
        body = b"x" * (8 << 20)
        response = await begin(client, url, body)
        await response.head()
        await asyncio.sleep(1.0)  # calm: nothing is read meanwhile
        assert len(await response.body(len(body))) == len(body)
        await client.aclose()


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
        response = await client.send(record(url), request_of())
        assert await stands_still(lambda: sent) < 16 << 20  # what the two sockets' buffers take
        assert len(response.take()) <= peer_connection.MAX_UNREAD_BYTES + (256 << 10)
        got, largest = 0, 0
        async for chunk in response:
            got, largest = got + len(chunk), max(largest, len(chunk))
        assert sent == total
        assert total - (512 << 10) <= got <= total
        assert largest <= peer_connection.MAX_UNREAD_BYTES + (256 << 10)
        await client.aclose()


def test_short_pieces_of_an_answer_fill_the_room_for_it_too() -> None:
    response = peer_connection.PeerResponse(SimpleNamespace())  # type: ignore[arg-type]
    most = peer_connection.MAX_UNREAD_BYTES // peer_connection.LEAST_PIECE_BYTES
    assert [response.body_received(b"x") for _ in range(most)] == [True] * (most - 1) + [False]


# --- the end


async def test_closing_fails_who_waits_and_closes_everything(client: PeerClient) -> None:
    async with scripted(keeps_answering) as peer, scripted(answers_nothing) as silent:
        await post(client, peer.url)
        response = await begin(client, silent.url)
        assert "2 open, 1 idle" in repr(client)
        await client.aclose()
        with pytest.raises(PeerLost):
            await response.head()
        await client.aclose()
        await until(lambda: not peer.open and repr(client) == NOTHING)
        with pytest.raises(PeerUnreachable):
            await post(client, peer.url)


async def test_closing_ends_what_is_being_opened(client: PeerClient) -> None:
    async with scripted(says_nothing) as peer:
        opening = [asyncio.ensure_future(post(client, peer.url)) for _ in range(40)]  # some wait in line
        await until(lambda: peer.open == 32)
        await client.aclose()
        results = await asyncio.gather(*opening, return_exceptions=True)
        assert {type(each) for each in results} == {PeerUnreachable}
        await until(lambda: not peer.open)


@pytest.mark.parametrize("after_s", [0.0, 0.05])
async def test_a_request_that_is_cancelled_leaves_nothing(client: PeerClient, after_s: float) -> None:
    async with scripted(answers_nothing) as peer:
        with anyio.move_on_after(after_s):
            await post(client, peer.url)
        await until(lambda: not peer.open and repr(client) == NOTHING)


def connections() -> list[peer_connection.PeerConnection]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, peer_connection.PeerConnection)]


async def test_nothing_of_a_connection_stays_behind(client: PeerClient) -> None:
    of_other_tests = connections()
    async with serving(echo) as url:
        for _ in range(20):
            (await begin(client, url, b"x" * 1000)).close()
        await until(lambda: repr(client) == NOTHING)
    assert not [each for each in connections() if each not in of_other_tests]
