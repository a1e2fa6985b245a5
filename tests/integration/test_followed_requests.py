"""A request is found again by its id, at every node that it crossed, refused ones included."""

import json
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest

from app.telemetry.logs import Thinned
from tests.integration.gateway import ECHO, Endpoint, Gateway, until
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.wire import initialize, rpc

pytestmark = pytest.mark.timeout(300)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
JSON = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def lines(*nodes: Gateway) -> list[dict[str, Any]]:
    """What the nodes have logged, and whole lines only."""
    texts = [node.log.read_text() for node in nodes]
    return [
        json.loads(line)
        for text in texts
        for line in text.splitlines(keepends=True)
        if line.startswith("{") and line.endswith("\n")
    ]


def by_id(*nodes: Gateway) -> dict[str, list[dict[str, Any]]]:
    found = defaultdict(list)
    for line in lines(*nodes):
        found[line.get("request", "")].append(line)
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, postgres_database: str) -> Iterator[Nodes]:
    directory: Path = tmp_path_factory.mktemp("followed")
    with running_nodes(directory, postgres_database, 2, ACCESS_LOG="all") as nodes:
        anyio.run(nodes.all_know_each_other)
        yield nodes


@pytest.fixture
def endpoint(two: Nodes) -> Endpoint:
    return two.all[0].endpoint(ECHO)


def opened(url: str, endpoint: Endpoint, **headers: str) -> str:
    answer = httpx2.post(url, json=initialize(), headers={**JSON, **endpoint.headers, **headers}, timeout=30)
    assert answer.status_code == 200, answer.text
    session = answer.headers["mcp-session-id"]
    named = {**JSON, **endpoint.headers, "Mcp-Session-Id": session}
    told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert httpx2.post(url, json=told, headers=named, timeout=30).status_code == 202
    return str(session)


async def test_a_call_is_found_on_both_nodes_it_crossed_by_the_id_that_its_client_saw(
    two: Nodes, endpoint: Endpoint
) -> None:
    here, there = two.urls(endpoint)
    session = opened(here, endpoint)
    trace = f"00-{TRACE}-00f067aa0ba902b7-01"
    headers = {**JSON, **endpoint.headers, "Mcp-Session-Id": session, "traceparent": trace}
    call = rpc("tools/call", 7, {"name": "echo", "arguments": {"text": "x"}})
    answer = httpx2.post(there, json=call, headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    seen = answer.headers["x-request-id"]
    assert len(answer.headers.get_list("x-request-id")) == 1
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-01", answer.headers["traceparent"])
    await until(lambda: len(by_id(*two.all)[seen]) == 2, 30, lambda: by_id(*two.all)[seen])
    owner, sender = (by_id(node)[seen][0] for node in two.all)
    assert owner["node"] != sender["node"]
    assert sender["sent_to"] == owner["node"]
    assert (owner["method"], owner["tool"], owner["outcome"], owner["status"]) == ("tools/call", "echo", "ok", 200)
    assert owner["bytes_out"] == len(answer.content)
    assert owner["bytes_in"] == sender["bytes_in"] == len(answer.request.content)
    for line in (owner, sender):
        assert (line["tenant"], line["trace"]) == (endpoint.tenant, TRACE)
        assert line["backend"] == endpoint.name
        assert line["principal"].startswith("key ")
        assert line["session"] == owner["session"]
        assert session not in json.dumps(line)
        assert line["ms"] >= 0
    await until(lambda: any(each.get("message") == "session opened" for each in lines(two.all[0])), 10)
    (opening,) = [
        line
        for line in lines(two.all[0])
        if line["message"] == "session opened" and line["session"] == owner["session"]
    ]
    assert (opening["revision"], opening["start"], opening["how"]) == ("2025-11-25", "cold", "handshake")
    assert opening["client_name"]
    httpx2.delete(here, headers={**endpoint.headers, "Mcp-Session-Id": session}, timeout=30)

    def endings() -> list[dict[str, Any]]:
        return [
            line
            for line in lines(two.all[0])
            if line["message"] == "session ended" and line["session"] == owner["session"]
        ]

    await until(lambda: len(endings()) == 1, 10)
    (ending,) = endings()
    assert (ending["reason"], ending["calls"]) == ("deleted", 2)
    assert min(ending["bytes_to_backend"], ending["bytes_from_backend"]) > 0


async def test_a_thousand_requests_of_every_kind_are_found_by_their_ids(two: Nodes, endpoint: Endpoint) -> None:
    urls, drawn = two.urls(endpoint), random.Random(7)
    sessions = [opened(url, endpoint) for url in urls for _ in range(3)]
    good = {**JSON, **endpoint.headers}
    call = rpc("tools/call", 1, {"name": "echo", "arguments": {"text": "x"}})

    def ask(client: httpx2.Client) -> httpx2.Response:
        """One request, by lot."""
        url, session = drawn.choice(urls), {"Mcp-Session-Id": drawn.choice(sessions)}
        match drawn.randrange(9):
            case 0:
                return client.post(url, json=call, headers=JSON)
            case 1:
                return client.post(url, json=call, headers={**good, "Authorization": "Bearer tlk_00000000_x"})
            case 2:
                return client.post(url, content=b"{", headers={**good, **session})
            case 3:
                return client.post(url, json=call, headers={**good, "Mcp-Session-Id": "gone"})
            case 4:
                return client.post(url, json=call, headers={**good, **session, "Accept": "text/html"})
            case 5:
                return client.put(url, json=call, headers=good)
            case 6:
                path = drawn.choice(["/api/v1/tenants/nobody", "/api/v1/nothing", "/api/v1/tenants"])
                return client.get(url.split("/t/")[0] + path, headers=endpoint.headers)
            case 7:
                unknown = rpc("tools/call", 1, {"name": "nothing", "arguments": {}})
                return client.post(url, json=unknown, headers={**good, **session})
            case _:
                return client.post(url, json=call, headers={**good, **session})

    seen: dict[str, int] = {}
    with httpx2.Client(timeout=30) as client:
        for _ in range(1000):
            answer = ask(client)
            named = answer.headers["x-request-id"]
            assert named not in seen
            if answer.status_code >= 400 and answer.status_code not in (401, 403, 404, 421):
                body = answer.json()
                assert (body.get("request_id") or body["error"]["data"]["request_id"]) == named
            seen[named] = answer.status_code

    def missing() -> list[str]:
        """The requests without a line of each node that they crossed: nodes write theirs one after the other."""
        found = by_id(*two.all)
        return [each for each in seen if len(found[each]) < 1 + any("sent_to" in line for line in found[each])]

    await until(lambda: not missing(), 30, missing)
    found = by_id(*two.all)
    for named, status in seen.items():
        of_access = [line for line in found[named] if line["logger"] == "access"]
        assert 1 <= len(of_access) <= 2
        assert {line["status"] for line in of_access} == {status}
        assert len(of_access) == 1 + any("sent_to" in line for line in of_access)


async def test_who_left_what_was_read_and_why_it_was_refused(two: Nodes, endpoint: Endpoint) -> None:
    node, (url, _) = two.all[0], two.urls(endpoint)
    session = opened(url, endpoint)
    headers = {**JSON, **endpoint.headers, "Mcp-Session-Id": session}
    api = url.split("/t/")[0] + "/api/v1"
    call = json.dumps(rpc("tools/call", 1, {"name": "echo", "arguments": {"text": "x"}})).encode()
    long = json.dumps(rpc("tools/call", 1, {"name": "sleep", "arguments": {"ms": 5000}})).encode()

    def calls_in_flight() -> int:
        return sum(each["calls"] for each in node.api("GET", f"/tenants/{endpoint.tenant}/sessions")["items"])

    def chunks() -> Iterator[bytes]:
        yield call[:10]
        yield call[10:]

    with httpx2.Client(timeout=30, headers=headers) as client:
        answers = {
            "chunked": client.post(url, content=chunks(), headers={"X-Request-Id": "chunked"}),
            "head": client.head(api + "/tenants", headers={"X-Request-Id": "head"}),
            "nowhere": client.get(api + "/nothing", headers={"X-Request-Id": "nowhere"}),
            "method": client.put(api + "/tenants", headers={"X-Request-Id": "method"}),
            "bad": client.post(api + "/tenants", content=b"{", headers={"X-Request-Id": "bad"}),
            "unknown": client.get(api + "/tenants?nope=1", headers={"X-Request-Id": "unknown"}),
        }
    async with await anyio.connect_tcp(*_address(url)) as stream:
        lines_of_head = [f"POST {urlsplit(url).path} HTTP/1.1", f"host: {urlsplit(url).netloc}", "x-request-id: gone"]
        lines_of_head += [f"{name}: {value}" for name, value in headers.items()] + [f"content-length: {len(long)}"]
        await stream.send("\r\n".join(lines_of_head).encode() + b"\r\n\r\n" + long)
        await until(calls_in_flight, 20)
    await until(lambda: {*answers, "gone"} <= set(by_id(node)), 30)
    found = {name: [line for line in by_id(node)[name] if line["logger"] == "access"] for name in (*answers, "gone")}
    assert {len(of_one) for of_one in found.values()} == {1}
    seen = {name: of_one[0] for name, of_one in found.items()}
    assert (seen["chunked"]["outcome"], seen["chunked"]["bytes_in"]) == ("ok", len(call))
    assert (seen["gone"]["outcome"], seen["gone"]["status"], seen["gone"]["bytes_out"]) == ("left", 200, 0)
    assert seen["head"]["bytes_out"] == 0
    for name in ("nowhere", "method", "bad", "unknown"):
        assert seen[name]["status"] == answers[name].status_code
        assert seen[name]["outcome"] == answers[name].json()["reason"]
        assert seen[name]["detail"]
        assert seen[name]["bytes_out"] == len(answers[name].content)
    assert seen["bad"]["bytes_in"] == 1


def _address(url: str) -> tuple[str, int]:
    return str(urlsplit(url).hostname), urlsplit(url).port or 0


def test_what_a_client_calls_an_id_is_taken_over_or_replaced(two: Nodes, endpoint: Endpoint) -> None:
    url = two.urls(endpoint)[0]
    for given, is_taken in {"mine-1:2.3": True, "x" * 64: True, "x" * 65: False, "a b": False, "é": False}.items():
        headers = [(name.encode(), value.encode("latin-1")) for name, value in {**JSON, "X-Request-Id": given}.items()]
        told = httpx2.post(url, json=rpc("ping"), headers=headers, timeout=30).headers["x-request-id"]
        assert (told == given) is is_taken
    for given in [
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        f"ff-{TRACE}-00f067aa0ba902b7-01",
        f"00-{TRACE}-1-01",
        "x",
    ]:
        trace = httpx2.post(url, json=rpc("ping"), headers={**JSON, "traceparent": given}, timeout=30).headers
        assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-00", trace["traceparent"])
        assert TRACE not in trace["traceparent"]


async def test_a_refusal_is_logged_with_what_was_found_and_floods_are_counted(own_gateway: Gateway) -> None:
    endpoint, began_at = own_gateway.endpoint(ECHO), time.monotonic()
    with httpx2.Client(timeout=30) as client:
        for number in range(200):
            headers = {**JSON, "Authorization": "Bearer tlk_00000000_x", "X-Request-Id": f"wrong-{number}"}
            assert client.post(endpoint.mcp, json=rpc("ping"), headers=headers).status_code in (401, 429)
    seconds = time.monotonic() - began_at

    def refused() -> list[dict[str, Any]]:
        return [line for line in lines(own_gateway) if line["message"].startswith("request refused")]

    def told_of() -> int:
        """How many refusals there are lines of, or that a line has counted."""
        return sum(line.get("more", 1) for line in refused())

    await until(lambda: told_of() == 200, 30, refused)
    assert len(refused()) <= (Thinned.PER_S + 1) * (seconds + 2)  # on an idle machine that is less than a hundred
    first = refused()[0]
    assert (first["reason"], first["status"], first["request"]) == ("unauthenticated", 401, "wrong-0")
    assert "tlk_00000000_x" not in own_gateway.log.read_text()
    metrics = own_gateway.metrics()
    reasons = "unauthenticated", "rate_limited"
    assert sum(metrics.get(f'trunkline_refusals_total{{reason="{each}"}}', 0) for each in reasons) == 200


async def test_what_was_no_request_has_an_id_and_a_line_as_well(own_gateway: Gateway) -> None:
    host, port = urlsplit(own_gateway.url).hostname, urlsplit(own_gateway.url).port
    async with await anyio.connect_tcp(str(host), port or 0) as stream:
        await stream.send(b"NO HTTP AT ALL\r\n\r\n")
        got = await stream.receive()
    named = re.search(rb"x-request-id: ([0-9a-f]{32})\r\n", got)
    assert got.startswith(b"HTTP/1.1 400 ")
    assert named is not None
    await until(lambda: by_id(own_gateway)[named[1].decode()], 30)
    (line,) = by_id(own_gateway)[named[1].decode()]
    assert (line["reason"], line["client"]) == ("malformed_request", "127.0.0.1")


async def test_an_administrators_request_is_found_at_the_node_that_carries_it_out(
    two: Nodes, endpoint: Endpoint
) -> None:
    await two.all_know_each_other()
    here, there = two.urls(endpoint)
    opened(there, endpoint)
    (session,) = two.all[0].api("GET", f"/tenants/{endpoint.tenant}/sessions")["items"]
    address = f"{two.all[0].url}/api/v1/tenants/{endpoint.tenant}/sessions/{session['id']}"
    headers = {"Authorization": f"Bearer {two.all[0].admin_key}", "X-Request-Id": "ends-it"}
    assert httpx2.delete(address, headers=headers, timeout=30).status_code == 204
    assert here != there
    await until(lambda: by_id(two.all[1])["ends-it"], 30)
    (line,) = by_id(two.all[1])["ends-it"]
    assert (line["message"], line["session"]) == ("session ended", session["id"])
