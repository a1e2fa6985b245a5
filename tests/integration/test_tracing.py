"""One trace goes from the client through both nodes to the backend, and a collector gets every part of it."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psutil
import pytest
from mcp_clients import SseSession

from tests.collector import Collector, collecting
from tests.integration.gateway import ECHO, ROOT, Gateway, running_gateway, until
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.remote import LOOPBACK, behind
from tests.integration.sessionless_wire import SessionlessClient
from tests.integration.stopwatch import stopwatch
from tests.integration.toolboxes import among_toolboxes
from tests.integration.wire import RpcError, Wire, rpc, wire

pytestmark = pytest.mark.timeout(300)
MIRROR = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/mirror.py")]
PARENT = "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, postgres_database: str, collector: Collector) -> Iterator[Nodes]:
    """Two nodes that begin no traces of their own."""
    directory, settings = tmp_path_factory.mktemp("traced"), {"ACCESS_LOG": "all", "TRACE_SAMPLE": "0"}
    with running_nodes(directory, postgres_database, 2, OTLP_ENDPOINT=collector.url, **settings) as nodes:
        anyio.run(nodes.all_know_each_other)
        nodes.settle()
        yield nodes


@pytest.fixture
def trace() -> str:
    return secrets.token_hex(16)


def parent_of(trace: str, flags: str = "01") -> str:
    return f"00-{trace}-{PARENT}-{flags}"


def trace_and_span(traceparent: str) -> tuple[str, str]:
    _, trace, span, _ = traceparent.split("-")
    return trace, span


async def mirrored(session: Wire, meta: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
    """The `_meta` that the backend has got of a call with this one and these headers."""
    params = {"name": "mirror", "arguments": {}, **({} if meta is None else {"_meta": meta})}
    response = await session.post(rpc("tools/call", next(session.ids), params), **headers)
    return json.loads(response.json()["result"]["content"][0]["text"])  # type: ignore[no-any-return]


@pytest.fixture
async def elsewhere(two: Nodes) -> AsyncIterator[Wire]:
    """A session of the first node, spoken to at the second one."""
    endpoint = two.all[0].endpoint(MIRROR)
    async with wire(endpoint) as session:
        session.url = two.urls(endpoint)[1]
        yield session


@pytest.mark.parametrize("place", ["headers", "message"])
async def test_one_trace_goes_through_both_nodes_to_the_backend(
    two: Nodes, elsewhere: Wire, collector: Collector, trace: str, place: str
) -> None:
    context = {"traceparent": parent_of(trace), "tracestate": "vendor=1", "baggage": "user=x"}
    if place == "headers":
        meta = await mirrored(elsewhere, None, **context)
    else:
        meta = await mirrored(elsewhere, context)
    spans = await collector.wait_for(trace, 3)
    hop, server, client = (
        spans[key] for key in (("client", "forward"), ("server", "tools/call mirror"), ("client", "tools/call mirror"))
    )
    assert hop.parent == PARENT
    assert server.parent == hop.id
    assert client.parent == server.id
    assert trace_and_span(meta["traceparent"]) == (trace, client.id)
    assert (meta["tracestate"], meta["baggage"]) == ("vendor=1", "user=x")
    assert {hop.state, server.state, client.state} == {"vendor=1"}
    assert hop.node != server.node == client.node == hop.about["trunkline.node"]
    assert hop.began <= server.began <= client.began <= client.ended <= server.ended <= hop.ended
    assert {each.about["trunkline.request.id"] for each in (hop, server, client)} == {hop.about["trunkline.request.id"]}


async def test_log_lines_and_the_record_of_the_call_name_the_trace_of_the_message(
    two: Nodes, elsewhere: Wire, collector: Collector, trace: str
) -> None:
    await mirrored(elsewhere, {"traceparent": parent_of(trace)})
    (server, *_) = (each for each in (await collector.wait_for(trace, 3)).values() if each.kind == "server")
    tenant = server.about["trunkline.tenant"]

    def calls() -> list[dict[str, Any]]:
        found = two.all[0].api("GET", f"/tenants/{tenant}/calls")["items"]
        return [each for each in found if each["method"] == "tools/call"]

    await until(calls, 20)  # it is written a moment later
    (call,) = calls()
    assert (call["trace_id"], call["request_id"]) == (trace, server.about["trunkline.request.id"])
    for node in two.all:
        lines = [json.loads(each) for each in node.log.read_text().splitlines() if f'"{trace}"' in each]
        assert {each["request"] for each in lines} == {call["request_id"]}
        assert lines


async def test_the_context_of_the_message_is_the_parent_and_that_of_the_headers_is_linked(
    two: Nodes, collector: Collector, trace: str
) -> None:
    other = secrets.token_hex(16)
    async with wire(two.all[0].endpoint(MIRROR)) as session:
        meta = {"traceparent": parent_of(trace), "com.example/kept": [1]}
        told = await mirrored(session, meta, traceparent=parent_of(other))
    spans = await collector.wait_for(trace, 2)
    server = spans["server", "tools/call mirror"]
    assert server.parent == PARENT
    assert server.links == [(other, PARENT)]
    assert told["com.example/kept"] == [1]
    assert "tracestate" not in told


async def test_what_the_spans_say(two: Nodes, collector: Collector, trace: str) -> None:
    endpoint = two.all[0].endpoint(MIRROR)
    async with wire(endpoint) as session:
        params = {"name": "fail", "arguments": {"password": "hunter2"}}
        await session.post(rpc("tools/call", "an id", params), traceparent=parent_of(trace))
    spans = await collector.wait_for(trace, 2)
    server, client = spans["server", "tools/call fail"], spans["client", "tools/call fail"]
    for span in (server, client):
        assert span.failed
        assert span.about["error.type"] == span.about["rpc.response.status_code"] == "-32601"
        assert span.about["mcp.method.name"] == "tools/call"
        assert span.about["gen_ai.tool.name"] == "fail"
        assert span.about["gen_ai.operation.name"] == "execute_tool"
        assert span.about["trunkline.tenant"] == endpoint.tenant
        assert span.about["trunkline.backend"] == endpoint.name
    assert (server.about["network.transport"], client.about["network.transport"]) == ("tcp", "pipe")
    assert server.about["jsonrpc.request.id"] == "an id"
    assert server.about["mcp.protocol.version"] == "2025-11-25"
    sent = b"".join(collector.raw)
    for secret in (b"hunter2", endpoint.key.encode(), session.session_id.encode()):
        assert secret not in sent


async def test_a_new_session_shows_its_process_and_its_handshake(
    two: Nodes, collector: Collector, trace: str, http: httpx2.AsyncClient
) -> None:
    session = Wire(http, two.all[0].endpoint(MIRROR))
    session.headers["traceparent"] = parent_of(trace)
    await session.open()
    spans = await collector.wait_for(trace, 6)
    server, process = spans["server", "initialize"], spans["internal", "get a process"]
    assert process.parent == spans["client", "initialize"].parent == server.id
    wait, start = spans["internal", "wait for a process"], spans["internal", "start a process"]
    assert wait.parent == start.parent == process.id
    assert process.began <= wait.began <= wait.ended == start.began < start.ended <= process.ended
    assert start.about["trunkline.process.id"] == process.about["trunkline.process.id"]
    assert process.about["trunkline.process.start"] == "cold"
    assert process.about["trunkline.process.id"]
    assert spans["server", "notifications/initialized"].parent == PARENT


async def test_a_client_without_a_session_has_the_same_spans(
    two: Nodes, collector: Collector, trace: str, http: httpx2.AsyncClient
) -> None:
    for words, count in ((MIRROR, 7), ([*MIRROR, "2026"], 6)):
        endpoint, trace = two.all[0].endpoint(words), secrets.token_hex(16)
        client = SessionlessClient(http, endpoint, two.urls(endpoint))
        answer = await client.request(
            "tools/call", at=endpoint.mcp, name="mirror", meta={"traceparent": parent_of(trace)}
        )
        meta = json.loads(answer["content"][0]["text"])
        spans = await collector.wait_for(trace, count)
        server, call = spans["server", "tools/call mirror"], spans["client", "tools/call mirror"]
        assert server.parent == PARENT
        assert server.about["mcp.protocol.version"] == "2026-07-28"
        assert call.parent == server.id
        assert spans["internal", "get a process"].parent == server.id
        assert trace_and_span(meta["traceparent"]) == (trace, call.id)


async def test_a_client_that_is_not_recorded_is_passed_on_and_sends_nothing(
    two: Nodes, collector: Collector, elsewhere: Wire, trace: str
) -> None:
    told = await mirrored(elsewhere, traceparent=parent_of(trace, "00"), tracestate="vendor=1")
    assert told["traceparent"].startswith(f"00-{trace}-")
    assert told["traceparent"].endswith("-00")
    assert told["tracestate"] == "vendor=1"
    given = {"traceparent": parent_of(trace, "00"), "x": 1.0}
    elsewhere.url = elsewhere.url.replace(two.all[1].url, two.all[0].url)
    assert await mirrored(elsewhere, given) == given
    assert await mirrored(elsewhere) == {}
    after = secrets.token_hex(16)
    await mirrored(elsewhere, {"traceparent": parent_of(after)})
    await collector.wait_for(after, 2)
    assert collector.of(trace) == []


async def test_a_refused_call_has_a_span_and_one_without_a_credential_has_none(
    two: Nodes, collector: Collector, trace: str, http: httpx2.AsyncClient
) -> None:
    endpoint = two.all[0].endpoint(MIRROR)
    session = Wire(http, endpoint)
    session.headers["Mcp-Session-Id"] = "unknown"
    response = await session.post(rpc("tools/call", 1, {"name": "x" * 900}), traceparent=parent_of(trace))
    assert response.status_code == 404
    spans = await collector.wait_for(trace, 1)
    (server,) = spans.values()
    assert (server.about["error.type"], server.failed) == ("session_not_found", True)
    assert server.name == "tools/call " + "x" * 128
    session.headers["Authorization"] = "Bearer wrong"
    stranger, after = secrets.token_hex(16), secrets.token_hex(16)
    response = await session.post(rpc("tools/call", 1, {"name": "x"}), traceparent=parent_of(stranger))
    assert response.status_code == 401
    async with wire(endpoint) as good:
        await mirrored(good, traceparent=parent_of(after))
    await collector.wait_for(after, 2)
    assert collector.of(stranger) == []


async def test_traces_that_begin_here_are_those_of_the_answers(tmp_path: Path, collector: Collector) -> None:
    settings = {"OTLP_ENDPOINT": collector.url + "/v1/traces", "OTLP_HEADERS": "authorization=Bearer%20s%2Ct"}
    with running_gateway(tmp_path / "data", Gateway, TRACE_SAMPLE="1", **settings) as gateway:
        async with wire(gateway.endpoint(MIRROR)) as session:
            response = await session.post(rpc("tools/call", 7, {"name": "mirror"}))
            trace, span = trace_and_span(response.headers["traceparent"])
            assert response.headers["traceparent"].endswith("-01")
            meta = json.loads(response.json()["result"]["content"][0]["text"])
        spans = await collector.wait_for(trace, 2)
        server = spans["server", "tools/call mirror"]
        assert (server.id, server.parent) == (span, "")
        assert trace_and_span(meta["traceparent"]) == (trace, spans["client", "tools/call mirror"].id)
        # Other nodes send to it, too.
        paths = {each["path"] for each in collector.requests if each.get("authorization") == "Bearer s,t"}
        assert paths == {"/v1/traces"}
        sent = 'trunkline_trace_spans_total{result="sent"}'
        await until(lambda: gateway.metrics().get(sent, 0) >= 2, 10)  # once the collector has answered


async def test_without_a_collector_nothing_of_a_context_is_touched(session: Wire, gateway: Gateway) -> None:
    async with wire(gateway.endpoint(MIRROR)) as session:
        given = {"traceparent": parent_of("1" * 32), "tracestate": " a = 1 ", "baggage": "é"}
        assert await mirrored(session, given, traceparent=parent_of("2" * 32)) == given
        assert await mirrored(session, traceparent=parent_of("2" * 32), baggage="a=1") == {}


async def test_a_client_that_leaves_is_an_error_of_its_request(
    two: Nodes, collector: Collector, trace: str, http: httpx2.AsyncClient
) -> None:
    endpoint = two.all[0].endpoint(ECHO)
    client = SessionlessClient(http, endpoint, two.urls(endpoint))
    await client.call("echo", at=endpoint.mcp, text="x")
    body, headers = client.message("tools/call", {"name": "sleep", "arguments": {"ms": 30_000}})
    headers["traceparent"] = parent_of(trace)
    with pytest.raises(httpx2.ReadTimeout):
        await http.post(endpoint.mcp, json=body, headers=headers, timeout=4.0)  # calm: the client leaves
    spans = await collector.wait_for(trace, 1)
    assert spans["server", "tools/call sleep"].about["error.type"] == "client_gone"


# --- every kind of backend and client


async def test_a_client_of_the_handshake_era_before_a_server_of_2026(
    two: Nodes, collector: Collector, trace: str
) -> None:
    async with wire(two.all[0].endpoint([*MIRROR, "2026"])) as session:
        told = await mirrored(session, traceparent=parent_of(trace))
    spans = await collector.wait_for(trace, 2)
    assert trace_and_span(told["traceparent"]) == (trace, spans["client", "tools/call mirror"].id)


async def test_sessions_that_share_a_process_keep_their_traces_apart(two: Nodes, collector: Collector) -> None:
    endpoint, traces = two.all[0].endpoint(MIRROR, isolation="shared"), [secrets.token_hex(16) for _ in range(8)]
    async with wire(endpoint) as one, wire(endpoint) as other:
        told: dict[str, dict[str, Any]] = {}

        async def call(session: Wire, trace: str) -> None:
            told[trace] = await mirrored(session, traceparent=parent_of(trace))

        async with anyio.create_task_group() as tasks:
            for number, trace in enumerate(traces):
                tasks.start_soon(call, (one, other)[number % 2], trace)
    for trace in traces:
        spans = await collector.wait_for(trace, 2)
        assert trace_and_span(told[trace]["traceparent"]) == (trace, spans["client", "tools/call mirror"].id)


async def test_http_sse_answers_on_another_request_and_its_span_lasts_until_then(
    two: Nodes, collector: Collector, trace: str
) -> None:
    endpoint = two.all[0].endpoint(MIRROR)
    session = SseSession(endpoint.sse, {**endpoint.headers, "traceparent": parent_of(trace)})
    await session.open()
    answer = await session.request("tools/call", {"name": "mirror", "arguments": {}})
    await session.close()
    spans = await collector.wait_for(trace, 8)
    server, call = spans["server", "tools/call mirror"], spans["client", "tools/call mirror"]
    assert server.parent == PARENT
    assert call.parent == server.id
    assert server.ended >= call.ended
    assert trace_and_span(json.loads(answer["content"][0]["text"])["traceparent"]) == (trace, call.id)  # type: ignore[index]
    assert ("internal", "get a process") in spans


async def test_each_message_of_a_batch_has_a_span_below_that_of_the_batch(
    two: Nodes, collector: Collector, trace: str
) -> None:
    endpoint = two.all[0].endpoint(MIRROR, calls_per_session=2)
    async with wire(endpoint, version="2025-03-26") as session:
        batch: list[Any] = [rpc("tools/call", number, {"name": "mirror", "arguments": {}}) for number in (1, 2)]
        batch += [
            rpc("tools/call", 3, {"name": "fail", "arguments": {}}),
            {"jsonrpc": "2.0", "method": "notifications/x"},
        ]
        answers = (await session.post(json.dumps(batch).encode(), traceparent=parent_of(trace))).json()
    await collector.wait_for(trace, 1 + 4 + 3)
    found = collector.of(trace)
    (whole,) = [each for each in found if each.name == "batch"]
    assert (whole.parent, whole.about["trunkline.batch.size"]) == (PARENT, 4)
    parts = {each.id: each for each in found if each.kind == "server" and each is not whole}
    assert {each.parent for each in parts.values()} == {whole.id}
    assert sorted(each.name for each in parts.values()) == [
        "notifications/x", "tools/call fail", "tools/call mirror", "tools/call mirror",
    ]  # fmt: skip
    assert {each.about.get("jsonrpc.request.id") for each in parts.values()} == {"1", "2", "3", None}
    assert [each.failed for each in parts.values() if each.name == "tools/call fail"] == [True]
    calls = [each for each in found if each.kind == "client"]
    assert len({each.parent for each in calls}) == 3
    assert all(parts[each.parent].name == each.name for each in calls)
    texts = [each["result"]["content"][0]["text"] for each in answers if "result" in each]
    told = {trace_and_span(json.loads(text)["traceparent"])[1] for text in texts}
    assert told == {each.id for each in calls if each.name == "tools/call mirror"}


async def test_initialize_has_the_context_for_the_backend_and_a_later_process_has_not(
    two: Nodes, collector: Collector, trace: str, http: httpx2.AsyncClient
) -> None:
    gateway = two.all[0]
    endpoint = gateway.endpoint(MIRROR, recovery="respawn")
    session = Wire(http, endpoint)
    session.headers["traceparent"] = parent_of(trace)
    await session.open()
    del session.headers["traceparent"]
    spans = await collector.wait_for(trace, 6)

    async def hello() -> dict[str, Any]:
        return json.loads(await session.call("hello"))  # type: ignore[no-any-return]

    told = await hello()
    assert trace_and_span(told["traceparent"]) == (trace, spans["client", "initialize"].id)
    first = gateway.backends()
    for process in first:
        with suppress(psutil.NoSuchProcess):  # one of another test, that was about to end
            process.kill()

    async def is_another() -> bool:
        with suppress(RpcError):
            return await hello() == {}
        return False

    with anyio.fail_after(30):
        while not await is_another():
            await anyio.sleep(0.05)


async def test_a_call_that_wakes_a_parked_session_shows_the_start_of_its_process(
    two: Nodes, collector: Collector, trace: str
) -> None:
    gateway = two.all[0]
    endpoint = gateway.endpoint(MIRROR, recovery="respawn", timeouts={"park_s": 1})
    sessions = f"/tenants/{endpoint.tenant}/sessions"
    async with wire(endpoint) as session:
        await until(lambda: gateway.api("GET", sessions)["items"][0]["process"] is None, 30)
        await mirrored(session, traceparent=parent_of(trace))
    spans = await collector.wait_for(trace, 4)
    server = spans["server", "tools/call mirror"]
    assert spans["internal", "wait for a process"].parent == server.id
    assert spans["internal", "start a process"].parent == server.id


async def test_a_member_of_a_toolset_and_the_steps_of_a_recipe_have_the_trace_of_their_call(
    two: Nodes, collector: Collector, trace: str
) -> None:
    gateway = two.all[0]
    toolset = among_toolboxes(gateway.endpoint(MIRROR))
    steps = [{"id": "a", "tool": "mirror"}, {"id": "b", "tool": "mirror"}]
    recipe = {"name": "cook", "toolset": "all", "steps": steps, "output": "steps"}
    gateway.api("POST", f"/tenants/{toolset.tenant}/recipes", recipe)
    after = secrets.token_hex(16)
    async with wire(toolset) as session:
        told = await mirrored(session, traceparent=parent_of(trace))
        spans = await collector.wait_for(trace, 4)
        assert trace_and_span(told["traceparent"]) == (trace, spans["client", "tools/call mirror"].id)
        start = spans["internal", "start a process"]  # of the member, for this call
        assert start.parent == spans["server", "tools/call mirror"].id
        assert start.about["trunkline.backend"] != spans["server", "tools/call mirror"].about["trunkline.backend"]
        call = rpc("tools/call", 7, {"name": "cook", "arguments": {}})
        answer = await session.post(call, traceparent=parent_of(after))
    spans = await collector.wait_for(after, 2)
    assert answer.text.count(f"00-{after}-{spans['client', 'tools/call cook'].id}-01") >= 2


async def test_a_trace_goes_on_through_a_server_elsewhere(
    tmp_path: Path, two: Nodes, collector: Collector, trace: str
) -> None:
    behind_it = two.all[1].endpoint(MIRROR)
    settings = {"OTLP_ENDPOINT": collector.url, "TRACE_SAMPLE": "0", **LOOPBACK}
    with running_gateway(tmp_path / "front", Gateway, **settings) as front:
        async with wire(behind(front, behind_it)) as session:
            told = await mirrored(session, traceparent=parent_of(trace))
    await collector.wait_for(trace, 4)
    outer, inner = sorted(
        (each for each in collector.of(trace) if each.kind == "server"), key=lambda each: each.parent != PARENT
    )
    calls = {each.parent: each for each in collector.of(trace) if each.kind == "client"}
    assert outer.parent == PARENT
    assert inner.parent == calls[outer.id].id
    assert calls[outer.id].about["network.transport"] == "tcp"
    assert trace_and_span(told["traceparent"]) == (trace, calls[inner.id].id)


# --- a collector that does not do its part, and a gateway without the extra


@pytest.mark.parametrize("fault", ["hangs", "500", "refuses"])
async def test_calls_and_the_end_of_a_node_do_not_wait_for_the_collector(tmp_path: Path, fault: str) -> None:
    with collecting() as broken:
        url = broken.url
        if fault == "hangs":
            broken.holds.clear()
        elif fault == "500":
            broken.status = 500
        else:
            url = "http://127.0.0.1:9"  # nobody listens there
        with running_gateway(tmp_path / "data", Gateway, OTLP_ENDPOINT=url, TRACE_SAMPLE="1") as gateway:
            async with wire(gateway.endpoint(MIRROR)) as session:
                for _ in range(300):
                    assert "traceparent" in await mirrored(session)
                if fault != "500":
                    assert gateway.metrics().get('trunkline_trace_spans_total{result="sent"}', 0) == 0
            async with stopwatch(gateway) as watch:
                await anyio.to_thread.run_sync(gateway.stop)
                assert watch.seconds < 15  # without a collector it takes 2 to 3 s
        assert not broken.spans


def test_without_the_extra_a_node_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    script = "import sys; sys.modules['opentelemetry'] = None; from app import cli; sys.exit(cli.main(['serve']))"
    environment = {
        **os.environ,
        "TRUNKLINE_DATA_DIR": str(tmp_path),
        "TRUNKLINE_OTLP_ENDPOINT": "http://127.0.0.1:4318",
    }
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "TRUNKLINE_OTLP_ENDPOINT" in line
    assert "pip install 'trunkline[otel]'" in line


def _with(**headers: bytes) -> dict[str, Any]:
    return {"headers": [(name.encode(), value) for name, value in headers.items()]}


HOSTILE: dict[str, dict[str, Any]] = {
    "a large baggage": _with(baggage=b"a=" + b"x" * 8000),
    "a larger baggage": _with(baggage=b"a=" + b"x" * 20_000),
    "as large as heads may be": _with(baggage=b"a=" + b"x" * 15_000, tracestate=b"a=" + b"y" * 12_000),
    "bytes": _with(tracestate=b"a=\xff\xfe", baggage=b"\xc3\xa9=\x80"),
    "two of each": {
        "headers": [(b"tracestate", b"a=1"), (b"tracestate", b"b=2"), (b"baggage", b"c"), (b"baggage", b"d")]
    },
    "no state": _with(tracestate=b"no state, at = all,,,==="),
    "a state of many": _with(tracestate=b",".join(b"k%d=1" % number for number in range(80))),
    "an object": {"meta": {"traceparent": {"a": []}, "tracestate": [1], "baggage": 5}},
    "a long text": {"meta": {"traceparent": "0" * 300_000, "tracestate": "x" * 300_000, "baggage": "y" * 300_000}},
    "other characters": {"meta": {"traceparent": "\u0000\u202e\U0001f600" * 10, "tracestate": "\u0000=\u00e9"}},
    "the same trace twice": {"meta": {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-ff"}},
}


@pytest.mark.parametrize("attack", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_a_hostile_context_harms_no_call_on_any_node(
    two: Nodes, elsewhere: Wire, trace: str, attack: dict[str, Any], is_elsewhere: bool
) -> None:
    """It may cost itself. The log has no line of it."""
    if not is_elsewhere:
        elsewhere.url = elsewhere.url.replace(two.all[1].url, two.all[0].url)
    before = [node.log.stat().st_size for node in two.all]
    meta = {"_meta": attack["meta"]} if "meta" in attack else {}
    body = rpc("tools/call", next(elsewhere.ids), {"name": "mirror", "arguments": {}, **meta})
    given = [(name.encode(), value.encode()) for name, value in elsewhere.headers.items()]
    headers = [*given, (b"traceparent", parent_of(trace).encode()), *attack.get("headers", [])]
    async with httpx2.AsyncClient(timeout=30) as http:
        response = await http.post(elsewhere.url, json=body, headers=headers)
    assert response.status_code == 200, response.text
    told = json.loads(response.json()["result"]["content"][0]["text"])
    if "meta" not in attack:
        assert trace_and_span(told["traceparent"])[0] == trace
    for node, size in zip(two.all, before, strict=True):
        assert "opentelemetry" not in node.log.read_bytes()[size:].decode()
