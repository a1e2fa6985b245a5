"""Upstream sessions with servers that answer as they should, as they should not, or not at all."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from app.backends.upstreams import _channel as channel
from app.backends.upstreams import _events as events
from app.backends.upstreams import _session as link_module
from app.backends.upstreams import _streamable as streamable
from app.concurrency import loop_share
from app.errors import (
    BackendBusy,
    BackendExited,
    CallCutOff,
    InvalidResponse,
    ResponseTooLarge,
    UpstreamFailed,
    UpstreamRefused,
)
from app.protocol.eras.sessionless_envelope import refuses_handshake
from app.telemetry.metrics import Metrics
from tests.backends.upstreams.rig import (
    HELLO,
    WAIT_S,
    Heard,
    good,
    line,
    make_upstreams,
    opened,
    polite,
    serving,
    spec_at,
)
from tests.concurrency.test_loop_share import Shares

CALL = line(7, "tools/call", name="add", arguments={})


@asynccontextmanager
async def session(answer, *, limit_bytes=1 << 20, headers=None, **fields):
    """A session whose handshake is over; afterwards nothing may be left of it."""
    async with serving(polite(answer)) as server:
        async with make_upstreams(Metrics("test"), limit_bytes=limit_bytes) as upstreams:
            link, heard = await opened(upstreams, spec_at(server.url, headers, **fields))
            yield server, link, heard
            link.release("done")
        await server.until_quiet()


async def failed(answer, **options):
    """The error of a call that is answered so."""
    async with session(answer, **options) as (_, link, heard):
        link.send(CALL)
        return await heard.failure(7)


async def test_an_answer_is_a_line(monkeypatch):
    async def answer(asked):
        await asked.whole('{"jsonrpc": "2.0",\r\n "id": 7, "result":\n {"sum": 3}}')

    async with session(answer, headers={"Authorization": "Bearer k"}) as (server, link, heard):
        link.send(CALL)
        assert (await heard.answer(7))["result"] == {"sum": 3}
    posts = server.of("POST")
    assert all(each.headers["authorization"] == "Bearer k" for each in server.asked)
    assert [each.headers.get("mcp-session-id") for each in posts] == [None, "s-1", "s-1"]
    assert [each.headers.get("mcp-protocol-version") for each in posts] == [None, "2025-11-25", "2025-11-25"]
    (goodbye,) = server.of("DELETE")
    assert goodbye.headers["mcp-session-id"] == "s-1"


async def test_a_byte_order_mark_before_an_answer_is_ignored():
    async def answer(asked):
        await asked.whole(b'\xef\xbb\xbf{"jsonrpc":"2.0","id":7,"result":{}}'.decode())

    async with session(answer) as (_, link, heard):
        link.send(CALL)
        assert (await heard.answer(7))["result"] == {}


async def test_a_stream_has_messages_before_its_answer(monkeypatch):
    monkeypatch.setattr(channel, "KEPT_S", 600.0)  # on a busy machine the usual four seconds may pass
    monkeypatch.setattr(channel, "REST_S", 60.0)

    async def answer(asked):
        await asked.events()
        await asked.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}})
        await asked.event({"jsonrpc": "2.0", "id": "q", "method": "ping"})
        await asked.event({"jsonrpc": "2.0", "id": asked.message["id"], "result": {}})
        await asked.end()

    async with session(answer) as (server, link, heard):
        link.send(CALL)
        await heard.answer(7)
        assert [each.get("method") for each in heard.lines[1:]] == ["notifications/progress", "ping", None]
        link.send(b'{"jsonrpc":"2.0","id":"q","result":{}}')
        link.send(CALL.replace(b"7", b"8"))
        await heard.answer(8)
    assert [each.message.get("id") for each in server.of("POST")] == [1, None, 7, "q", 8]
    assert server.ever_connected <= 3  # connections are used again


async def test_notifications_of_a_flood_are_dropped_unread_and_the_answer_behind_them_arrives():
    def note(method: str, **params: object) -> str:
        return f"data: {json.dumps({'jsonrpc': '2.0', 'method': f'notifications/{method}', 'params': params})}\n\n"

    async def answer(asked):
        await asked.events()
        for _ in range(100):
            await asked.chunk(note("message", level="info", data="working") * 200)
        await asked.chunk(note("progress", progressToken=7, progress=1) + note("progress", progressToken=7, progress=2))
        await asked.event({"jsonrpc": "2.0", "id": 7, "result": {}})
        await asked.end()

    metrics = Metrics("test")
    async with serving(polite(answer)) as server, make_upstreams(metrics) as upstreams:
        link, heard = await opened(upstreams, spec_at(server.url))
        link.send(CALL)
        await heard.answer(7)
        await heard.until(lambda: heard.lines[-1].get("params", {}).get("progress"))
        newest = heard.lines[-1]["params"]
        dropped = metrics.messages_dropped.labels("notification_rate")._value.get()
        assert newest["progress"] == 2  # held for a moment
        assert len(heard.lines) == 2 + 20_001 - dropped + 1
        assert dropped >= 1000
        link.release("done")


async def test_calls_do_not_overtake_a_notification():
    taken, go_on = [], asyncio.Event()

    async def slow(asked):
        if asked.method == "POST" and asked.message.get("method") == "notifications/roots/list_changed":
            await go_on.wait()
        taken.append(asked.message.get("method") if asked.method == "POST" else asked.method)
        await polite(good)(asked)

    async with serving(slow) as server, make_upstreams() as upstreams:
        link, heard = await opened(upstreams, spec_at(server.url))
        link.send(line(None, "notifications/roots/list_changed"))
        link.send(CALL)
        await asyncio.sleep(0.05)  # calm: it is not to be sent
        assert "tools/call" not in taken
        go_on.set()
        await heard.answer(7)


async def test_several_answers_at_once_and_equal_ids():
    """An answer that comes twice, one to a call that was never made, and one to another call that is open."""

    async def answer(asked):
        if asked.message["id"] == 8:
            await asked.events()
            return
        batch = [{"jsonrpc": "2.0", "id": each, "result": {"n": n}} for n, each in enumerate((99, 7, 7, 1, "7"))]
        await asked.whole(json.dumps(batch))

    async with session(answer) as (_, link, heard):
        link.send(CALL.replace(b"7", b"8"))
        link.send(CALL)
        assert (await heard.answer(7))["result"] == {"n": 1}
        assert [each["id"] for each in heard.lines] == [1, 7]
        assert not heard.failed


async def html(asked):
    await asked.whole("<html>Sign in</html>", kind="text/html")


async def redirect(asked):
    await asked.whole("", 302, "Location: http://169.254.169.254/latest/meta-data\r\n")


async def unauthorized(asked):
    await asked.whole('{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"s3cret is wrong"}}', 401)


async def forbidden(asked):
    await asked.whole('{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"archived"}}', 403)


async def broken_json(asked):
    await asked.whole('{"jsonrpc": "2.0", "id": 7, "result":')


async def someone_elses(asked):
    await asked.whole('{"jsonrpc":"2.0","id":99,"result":{}}')


async def empty(asked):
    await asked.accept()


async def cut_head(asked):
    asked.cut()


async def cut_body(asked):
    await asked.send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
    asked.cut()


async def cut_event(asked):
    await asked.events()
    await asked.chunk('data: {"jsonrpc":"2.0","id":7,')
    asked.cut()


async def no_http(asked):
    await asked.send("220 mail.example ESMTP\r\n\r\n")
    asked.writer.close()


async def early_end(asked):
    await asked.events()
    await asked.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
    await asked.end()


async def large_body(asked):
    await asked.whole('{"jsonrpc":"2.0","id":7,"result":"' + "x" * 100_000 + '"}')


async def large_body_of_unknown_length(asked):
    await asked.send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(100):
        await asked.chunk("x" * 1000)


async def large_event(asked):
    await asked.events()
    for _ in range(200):
        await asked.chunk("data: " + "x" * 1000 + "\n")


async def gzipped(asked):
    await asked.whole("{}", headers="Content-Encoding: gzip\r\n")


async def server_error(asked):
    await asked.whole("oops", 502, kind="text/plain")


async def too_many(asked):
    await asked.whole("", 429, "Retry-After: 9\r\n")


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (html, InvalidResponse, "text/html"),
        (redirect, InvalidResponse, "names http://169.254.169.254/latest/meta-data: "),
        (unauthorized, UpstreamRefused, "does not accept the `headers` of this backend"),
        (forbidden, UpstreamRefused, "does not accept the `headers` of this backend (archived)"),
        (broken_json, InvalidResponse, "no answer to it"),
        (someone_elses, InvalidResponse, "no answer to it"),
        (empty, InvalidResponse, "neither JSON nor an event stream"),
        (cut_head, channel.NotAnswered, "before"),
        (cut_body, CallCutOff, "within its answer"),
        (cut_event, CallCutOff, "before it had answered"),
        (early_end, CallCutOff, "before it had answered"),
        (no_http, InvalidResponse, "HTTP/1.1"),
        (large_body, ResponseTooLarge, "too many bytes"),
        (large_body_of_unknown_length, ResponseTooLarge, "too many bytes"),
        (large_event, ResponseTooLarge, "too many bytes"),
        (gzipped, InvalidResponse, "Content-Encoding"),
        (server_error, UpstreamFailed, "HTTP 502"),
        (too_many, BackendBusy, "HTTP 429"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_the_caller_alone_gets_a_clear_error(answer, kind, words):
    """And the session goes on."""

    async def second_is_good(asked):
        await (asked.result({}) if asked.message["id"] == 8 else answer(asked))

    async with session(second_is_good, limit_bytes=50_000, headers={"Authorization": "Bearer s3cret"}) as parts:
        _, link, heard = parts
        link.send(CALL)
        error = await heard.failure(7)
        assert type(error) is kind
        assert words in str(error)
        assert "s3cret" not in str(error) + str(error.hint)
        link.send(CALL.replace(b"7", b"8"))
        assert "result" in await heard.answer(8)
        assert (len(heard.failed), heard.exits) == (1, [])


async def test_an_error_of_json_rpc_is_passed_on_whatever_the_status():
    async def answer(asked):
        await asked.whole('{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"unknown tool"}}', 400)

    async with session(answer) as (_, link, heard):
        link.send(CALL)
        assert (await heard.answer(7))["error"]["code"] == -32602


@pytest.mark.parametrize("named", ["null", '"server-error"', "99"])
async def test_an_error_without_the_id_belongs_to_its_call(named):
    async def answer(asked):
        of_ping = json.dumps(asked.message["id"])  # which it refuses as well, but not for the session's sake
        refused = of_ping if asked.message["method"] == "ping" else named
        await asked.whole(f'{{"jsonrpc":"2.0","id":{refused},"error":{{"code":-32700,"message":"?"}}}}', 400)

    async with session(answer) as (_, link, heard):
        link.send(CALL)
        assert (await heard.answer(7))["error"]["code"] == -32700
        assert heard.exits == []


@pytest.mark.parametrize("status", [400, 404])
async def test_a_session_whose_every_request_is_refused_with_400_has_ended(status):
    """As by the example of the official TypeScript SDK, once it was restarted. A ping tells: no text is compared."""

    async def answer(asked):
        words = '{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID"}}'
        await asked.whole(words, 400 if asked.message["method"] == "tools/call" else status)

    async with session(answer) as (_, link, heard):
        link.send(CALL)
        assert (await heard.end()).description == "the server has ended the session (HTTP 400)"


async def test_a_session_that_the_server_does_not_know_has_ended():
    async def answer(asked):
        await asked.whole('{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}', 404)

    async with session(answer) as (server, link, heard):
        link.send(CALL)
        exit = await heard.end()
        assert (exit.reason, exit.description) == ("exited", "the server has ended the session (HTTP 404)")
        with pytest.raises(BackendExited):
            link.send(CALL)
    assert server.of("DELETE") == []


async def test_a_call_whose_stream_is_cut_is_resumed(monkeypatch):
    async def answer(asked):
        await asked.events()
        if asked.method == "POST":
            await asked.chunk("id: e1\nretry: 10\ndata: \n\n")
            await asked.end()
        elif len(asked.headers["last-event-id"]) and asked.headers["last-event-id"] == "e1":
            await asked.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}, "e2")
            asked.cut()
        else:
            await asked.event({"jsonrpc": "2.0", "id": 7, "result": {}}, "e3")
            await asked.end()

    async with session(answer) as (server, link, heard):
        link.send(CALL)
        await heard.answer(7)
    assert [each.headers["last-event-id"] for each in server.of("GET") if "last-event-id" in each.headers] == [
        "e1",
        "e2",
    ]


async def test_a_server_that_does_not_resume_fails_the_call():
    async def answer(asked):
        if asked.method == "GET":
            await asked.whole("", 400)
            return
        await asked.events()
        await asked.chunk("id: e1\nretry: 1\ndata: \n\n")
        await asked.end()

    error = await failed(answer)
    assert isinstance(error, CallCutOff)
    assert "does not resume it: " in str(error)
    assert "answered HTTP 400" in str(error)


async def test_the_stream_for_other_messages_is_read_and_resumed():
    gets = []

    async def whole(asked):
        if asked.method == "GET":
            gets.append(asked.headers.get("last-event-id"))
            await asked.events()
            await asked.chunk("retry: 1\n")
            await asked.event({"jsonrpc": "2.0", "method": f"notifications/n{len(gets)}"}, f"e{len(gets)}")
            if len(gets) == 1:
                asked.cut()
            return
        await polite(html)(asked)

    async with serving(whole) as server, make_upstreams() as upstreams:
        link, heard = await opened(upstreams, spec_at(server.url))
        await heard.until(lambda: len(heard.lines) == 3)
        assert [each["method"] for each in heard.lines[1:]] == ["notifications/n1", "notifications/n2"]
        assert gets == [None, "e1"]
        link.release("done")
    await server.until_quiet()


async def test_a_cancelled_call_is_told_and_its_stream_closed(monkeypatch):
    monkeypatch.setattr(link_module, "CANCEL_GRACE_S", 0.05)

    async def answer(asked):
        await asked.events()
        await asked.gone()

    async with session(answer) as (server, link, heard):
        link.send(CALL)
        while not [each for each in server.of("POST") if each.message.get("id") == 7]:
            await asyncio.sleep(0.01)
        link.send(line(None, "notifications/cancelled", requestId=7))
        (call,) = [each for each in server.of("POST") if each.message.get("id") == 7]
        await call.gone()
        async with asyncio.timeout(WAIT_S):  # it has a connection of its own
            while server.of("POST")[-1].message["method"] != "notifications/cancelled":
                await asyncio.sleep(0.01)
        assert not heard.failed


async def test_a_call_of_2026_is_cancelled_by_closing_it():
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}

    async def answer(asked):
        await asked.events()
        await asked.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
        await asked.gone()

    async with serving(answer) as server, make_upstreams() as upstreams:
        link = await upstreams.lease(spec_at(server.url))
        heard = Heard()
        link.attach(heard)
        link.send(line(7, "tools/call", name="add", _meta=meta))
        await heard.until(lambda: heard.lines)
        link.send(line(None, "notifications/cancelled", requestId=7))
        await server.asked[0].gone()
        assert len(server.asked) == 1
        assert server.asked[0].headers["mcp-name"] == "add"
        link.release("done")
    await server.until_quiet()
    assert server.of("DELETE") == []


async def test_a_session_that_is_held_up_reads_nothing():
    sent = []

    async def answer(asked):
        await asked.events()
        for number in range(20_000):
            await asked.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x" * 1000}})
            sent.append(number)

    async with session(answer) as (_, link, heard):
        link.send(CALL)
        await heard.until(lambda: len(heard.lines) > 5)
        link.pause_reading()
        before = -1
        while before != len(heard.lines):  # what had been read already may still come
            before = len(heard.lines)
            await asyncio.sleep(0.1)
        at_server = len(sent)
        await asyncio.sleep(0.3)  # calm: nothing is to be read
        assert len(heard.lines) == before
        assert len(sent) - at_server < 8000  # what fits into the buffers of the kernel
        link.resume_reading()
        await heard.until(lambda: len(heard.lines) > before + 10)


async def test_releasing_half_way_leaves_nothing(monkeypatch):
    """Calls that wait for a head, for events, and for their turn; a notification that is not accepted."""
    monkeypatch.setattr(link_module, "MAX_CALLS", 2)

    async def whole(asked):
        if asked.method == "POST" and asked.message.get("method") == "notifications/roots/list_changed":
            await asked.gone()
        await polite(stuck)(asked)

    async def stuck(asked):
        if asked.message["id"] == 10:
            await asked.events()
        await asked.gone()

    async with serving(whole) as server, make_upstreams() as upstreams:
        link, heard = await opened(upstreams, spec_at(server.url))
        for number in (10, 11, 12, 13):
            link.send(CALL.replace(b"7", b"%d" % number))
        link.send(line(None, "notifications/roots/list_changed"))
        link.send(CALL)
        while len(server.of("POST")) < 5:
            await asyncio.sleep(0.01)
        link.release("session_closed")
        link.release("session_closed")
        assert (heard.failed, heard.exits) == ([], [])
        with pytest.raises(BackendExited):
            link.send(CALL)
    await server.until_quiet()
    assert len(server.of("DELETE")) == 1
    assert not link._tasks


async def test_too_much_that_waits_is_refused(monkeypatch):
    async def answer(asked):
        await asked.gone()

    monkeypatch.setattr(link_module, "MAX_UNSENT_BYTES", 1000)
    monkeypatch.setattr(link_module, "MAX_CALLS", 1)

    def send_many(link):
        for number in range(100, 200):
            link.send(CALL.replace(b"7", b"%d" % number))

    async with session(answer) as (server, link, _):
        link.send(CALL)
        while not [each for each in server.of("POST") if each.message.get("id") == 7]:
            await asyncio.sleep(0.01)
        with pytest.raises(BackendBusy):
            send_many(link)


async def test_a_server_without_a_stream_is_left_alone():
    async with session(good) as (server, link, heard):
        link.send(CALL)
        await heard.answer(7)
        async with asyncio.timeout(WAIT_S):  # it has a connection of its own
            while not server.of("GET"):
                await asyncio.sleep(0.01)
    assert len(server.of("GET")) == 1


def old_server(endpoint="/messages?id=1"):
    """A server of 2024-11-05."""
    streams = []

    async def answer(asked):
        if asked.method == "GET":
            await asked.events()
            await asked.chunk(f"event: endpoint\ndata: {endpoint}\n\n")
            streams.append(asked)
            await asked.gone()
        elif asked.target == "/mcp":
            await asked.whole("Cannot POST /mcp", 404, kind="text/html")
        else:
            await asked.accept()
            if "id" in asked.message:
                result = HELLO if asked.message["method"] == "initialize" else {"ok": True}
                await streams[0].event({"jsonrpc": "2.0", "id": asked.message["id"], "result": result})
                if asked.message["params"].get("name") == "die":
                    streams[0].cut()

    return answer


@pytest.mark.parametrize("transport", ["auto", "sse"])
@pytest.mark.parametrize("endpoint", ["/messages?id=1", "messages?id=1"])
async def test_a_server_of_2024_is_spoken_to_as_it_wants(transport, endpoint):
    async with serving(old_server(endpoint)) as server, make_upstreams() as upstreams:
        link, heard = await opened(upstreams, spec_at(server.url, transport=transport))
        link.send(CALL)
        assert (await heard.answer(7))["result"] == {"ok": True}
        link.send(line(8, "tools/call", name="die"))
        assert "ended its event stream" in (await heard.end()).description
        link.release("done")
    await server.until_quiet()


@pytest.mark.parametrize(
    ("to_get", "words"), [(405, "HTTP 400"), (404, "HTTP 400"), (200, "HTTP 400"), (401, "HTTP 401")]
)
async def test_what_is_no_server_of_2024_either_is_told_with_its_first_answer(to_get, words):
    async def answer(asked):
        await asked.whole("X-Org is missing", 400 if asked.method == "POST" else to_get, kind="text/plain")

    async with serving(answer) as server, make_upstreams() as upstreams:
        link = await upstreams.lease(spec_at(server.url, transport="auto"))
        heard = Heard()
        link.attach(heard)
        link.send(line(1, "initialize"))
        assert words in str(await heard.failure(1))


async def test_a_server_of_2024_may_refuse_a_call_with_its_error():
    streams = []

    async def answer(asked):
        if asked.method == "GET":
            streams.append(asked)
            await asked.events()
            await asked.chunk("event: endpoint\ndata: /messages\n\n")
            await asked.gone()
        elif asked.message.get("method") == "initialize":
            await asked.accept()
            await streams[0].event({"jsonrpc": "2.0", "id": 1, "result": HELLO})
        elif asked.message.get("method") in ("tools/call", "notifications/odd"):
            await asked.whole('{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"bad"}}', 400)
        else:
            await asked.accept()

    async with serving(answer) as server, make_upstreams() as upstreams:
        link, heard = await opened(upstreams, spec_at(server.url, transport="sse"))
        link.send(line(None, "notifications/odd"))  # its refusal is nobody's answer
        link.send(CALL)
        assert (await heard.answer(7))["error"] == {"code": -32602, "message": "bad"}
        assert upstreams._metrics.messages_dropped.labels("upstream_refused_it")._value.get() == 1
        link.release("done")


async def test_a_server_of_2024_is_not_asked_where_another_was_wanted():
    async with serving(old_server()) as server, make_upstreams() as upstreams:
        link = await upstreams.lease(spec_at(server.url))
        heard = Heard()
        link.attach(heard)
        link.send(line(1, "initialize"))
        assert "HTTP 404" in str(await heard.failure(1))
    assert server.of("GET") == []


@pytest.mark.parametrize("endpoint", ["http://169.254.169.254/x", "//evil.example/x", "http://127.0.0.1:1/x", "\\", ""])
async def test_an_endpoint_elsewhere_is_refused(endpoint):
    async with serving(old_server(endpoint)) as server, make_upstreams() as upstreams:
        link = await upstreams.lease(spec_at(server.url, transport="sse"))
        heard = Heard()
        link.attach(heard)
        if endpoint:
            link.send(line(1, "initialize"))
            assert "not on the same host" in str(await heard.failure(1))
        link.release("done")
    await server.until_quiet()
    assert server.of("POST") == []


async def test_the_probe_of_an_old_server_gets_an_error():
    async def answer(asked):
        await asked.whole('{"detail":"Bad Request"}', 400)

    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    async with serving(answer) as server, make_upstreams() as upstreams:
        link = await upstreams.lease(spec_at(server.url))
        heard = Heard()
        link.attach(heard)
        link.send(line(3, "server/discover", _meta=meta))
        assert (await heard.answer(3))["error"]["code"] == -32601


async def test_a_server_that_says_nothing_is_left_at_the_end():
    async def answer(asked):
        await asked.gone()

    async with serving(answer) as server:
        async with make_upstreams() as upstreams:
            link = await upstreams.lease(spec_at(server.url))
            link.attach(Heard())
            link.send(line(1, "initialize"))
            while not server.asked:
                await asyncio.sleep(0.01)
        await server.until_quiet()


async def test_a_goodbye_does_not_take_for_ever(monkeypatch):
    monkeypatch.setattr(streamable, "GOODBYE_S", 1.0)

    async def answer(asked):
        if asked.method == "DELETE":
            await asked.gone()
        await polite(html)(asked)

    async with serving(answer) as server:
        async with make_upstreams() as upstreams:
            await opened(upstreams, spec_at(server.url))
        await server.until_quiet()
    assert len(server.of("DELETE")) == 1


META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


async def test_a_subscription_that_is_cut_is_made_again(monkeypatch):
    monkeypatch.setattr(events, "FIRST_S", 0.01)

    async def answer(asked):
        await asked.events()
        await asked.event({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {}})
        await asked.event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {}})
        if asked.number == 0:
            asked.cut()
        await asked.gone()

    async with serving(answer) as server, make_upstreams() as upstreams:
        link, heard = await upstreams.lease(spec_at(server.url)), Heard()
        link.attach(heard)
        link.send(line(5, "subscriptions/listen", _meta=META, notifications={"toolsListChanged": True}))
        await heard.until(lambda: len(heard.lines) == 3)
        methods = [each["method"].rpartition("/")[2] for each in heard.lines]
        assert methods == ["acknowledged", "list_changed", "list_changed"]
        link.send(line(None, "notifications/cancelled", requestId=5))
        await server.asked[1].gone()
        assert not heard.failed
        link.release("done")
    await server.until_quiet()


async def test_a_subscription_that_was_never_made_fails():
    async def answer(asked):
        await asked.events()
        await asked.end()

    async with serving(answer) as server, make_upstreams() as upstreams:
        link, heard = await upstreams.lease(spec_at(server.url)), Heard()
        link.attach(heard)
        link.send(line(5, "subscriptions/listen", _meta=META))
        assert isinstance(await heard.failure(5), CallCutOff)
        link.release("done")
    assert len(server.asked) == 1


@pytest.mark.parametrize("speaks", [True, False])
async def test_a_server_of_2026_only_is_found_out_however_it_refuses_the_handshake(speaks):
    """Then a bridge is put before it; else its refusal is passed on."""

    async def answer(asked):
        if asked.message["method"] == "server/discover" and speaks:
            assert asked.headers["mcp-method"] == "server/discover"
            await asked.result({"supportedVersions": ["2026-07-28"], "capabilities": {}})
        else:
            await asked.whole('{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no _meta"}}', 400)

    async with serving(answer) as server, make_upstreams() as upstreams:
        link, heard = await upstreams.lease(spec_at(server.url)), Heard()
        link.attach(heard)
        link.send(line(1, "initialize"))
        error = (await heard.answer(1))["error"]
        assert refuses_handshake(json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode()) is speaks
        assert error["code"] == (-32022 if speaks else -32602)
        link.release("done")
    assert len(server.asked) == 2


def moved(answer, status, location="/mcp/"):
    """A server whose every address without a slash at its end answers with one that has it."""

    async def redirecting(asked):
        if asked.target.endswith("/"):
            await answer(asked)
        else:
            await asked.whole("", status, f"Location: {location}\r\n")

    return redirecting


@pytest.mark.parametrize("status", [307, 308])
async def test_one_redirect_on_the_same_server_is_followed(status):
    async with serving(moved(polite(good), status)) as server, make_upstreams() as upstreams:
        link, heard = await opened(upstreams, spec_at(server.url, {"Authorization": "Bearer k"}))
        link.send(CALL)
        assert (await heard.answer(7))["result"] == {}
        link.release("done")
        await server.until_quiet()
    first, again = server.asked[:2]
    assert (first.target, again.target, again.body) == ("/mcp", "/mcp/", first.body)
    assert {each.method for each in server.asked if each.target == "/mcp/"} == {"POST", "GET", "DELETE"}
    assert all(each.headers["authorization"] == "Bearer k" for each in server.asked)


@pytest.mark.parametrize("location", ["/mcp", "https://127.0.0.1/mcp/", "http://localhost:1/mcp/", "//[::1/", "\xff/"])
async def test_no_second_redirect_and_none_to_another_server(location):
    async def redirecting(asked):
        await asked.whole("", 307, f"Location: {location}\r\n")

    error = await failed(redirecting)
    assert type(error) is InvalidResponse
    assert "HTTP 307 and names " in str(error)


async def test_one_redirect_is_followed_for_http_sse():
    async def answer(asked):
        if asked.method == "GET":
            await asked.events()
            await asked.chunk("event: endpoint\ndata: /messages\n\n")
            stream.append(asked)
        else:
            await asked.accept()
            if "id" in asked.message:
                result = {"jsonrpc": "2.0", "id": asked.message["id"], "result": HELLO}
                await stream[0].chunk(f"event: message\ndata: {json.dumps(result)}\n\n")

    stream = []
    async with serving(moved(answer, 307, "/sse/")) as server, make_upstreams() as upstreams:
        link, _ = await opened(upstreams, spec_at(server.url, transport="sse"))
        link.release("done")
    assert [each.target for each in server.asked[:2]] == ["/mcp", "/sse/"]


async def test_a_redirect_is_read_from_where_the_request_went():
    """For HTTP+SSE that is where the stream has said, not the address of the stream."""
    gone = "HTTP/1.1 308 X\r\nLocation: two?s=1\r\nContent-Length: 0\r\n\r\n"

    async def answer(asked):
        if asked.method == "GET":
            await asked.events()
            await asked.chunk("event: endpoint\ndata: /deep/messages/one?s=1\n\n")
            stream.append(asked)
        elif asked.target.endswith("/one?s=1"):
            await asked.send(gone)
        else:
            await asked.accept()
            if "id" in asked.message:
                result = {"jsonrpc": "2.0", "id": asked.message["id"], "result": HELLO}
                await stream[0].chunk(f"event: message\ndata: {json.dumps(result)}\n\n")

    stream = []
    async with serving(answer) as server, make_upstreams() as upstreams:
        link, _ = await opened(upstreams, spec_at(server.url, transport="sse"))
        link.release("done")
    assert [each.target for each in server.of("POST")[:2]] == ["/deep/messages/one?s=1", "/deep/messages/two?s=1"]
    assert server.of("POST")[0].body == server.of("POST")[1].body


async def test_a_stream_that_is_resumed_elsewhere_is_not_and_says_where():
    async def answer(asked):
        if asked.method == "GET":
            await asked.whole("", 307, "Location: http://me:s3cret@other.example/mcp?token=s3cret\r\n")
        else:
            await asked.events()
            await asked.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}, "e-1")
            await asked.end()

    async with serving(polite(answer)) as server, make_upstreams() as upstreams:
        link, heard = await opened(upstreams, spec_at(server.url))
        link.send(CALL)
        error = await heard.failure(7)
        link.release("done")
    assert isinstance(error, CallCutOff)
    assert "answered HTTP 307 and names http://other.example/mcp: " in str(error)
    assert "s3cret" not in str(error)


async def test_a_handshake_whose_connection_breaks_is_begun_again():
    """Once, over another connection: nothing has come of it but a session that nobody uses. A call is not."""

    async def answer(asked):
        await (asked.result(HELLO) if asked.number == 1 else cut_head(asked))

    async with serving(answer) as server, make_upstreams() as upstreams:
        first, heard = await begun(upstreams, server)
        assert "result" in await heard.answer(1)
        first.send(CALL)
        assert isinstance(await heard.failure(7), CallCutOff)
        second, heard = await begun(upstreams, server)
        assert isinstance(await heard.failure(1), CallCutOff)
        for link in (first, second):
            link.release("done")
    assert [each.message["method"][:5] for each in server.of("POST")] == ["initi", "initi", "tools", "initi", "initi"]


async def begun(upstreams, server):
    link, heard = await upstreams.lease(spec_at(server.url)), Heard()
    link.attach(heard)
    link.send(line(1, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={}))
    return link, heard


async def test_a_server_of_a_tenant_that_is_over_its_share_of_the_loop_is_read_in_turns(monkeypatch):
    monkeypatch.setattr(loop_share, "PIECE_S", 0.0)
    shares = Shares()

    async def answer(asked):
        await asked.events()
        for _ in range(3):
            await asked.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
        await asked.event({"jsonrpc": "2.0", "id": asked.message["id"], "result": {}})
        await asked.end()

    async with serving(polite(answer)) as server, make_upstreams(shares=shares) as upstreams:
        link, heard = await opened(upstreams, spec_at(server.url))
        assert {tenant for tenant, _ in shares.charges} == {"acme"}
        shares.over = True
        link.send(CALL)
        async with asyncio.timeout(WAIT_S):
            while not shares.turns:
                await asyncio.sleep(0)
        before = len(heard.lines)
        for _ in range(100):
            await asyncio.sleep(0)
        assert (len(heard.lines), shares.turns) == (before, 1)
        shares.gate.set()
        await heard.answer(7)
        assert shares.turns > 1
        link.release("done")
