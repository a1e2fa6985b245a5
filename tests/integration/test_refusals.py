"""Requests that are wrong in one way: each gets its exact status, its reason, and no more than its time."""

import sys
import time
import uuid

import anyio
import httpx2
import pytest

from tests.integration.gateway import ROOT, Endpoint, Gateway
from tests.integration.servers import TRANSPORTS, Transport
from tests.integration.sessionless_wire import SessionlessClient
from tests.integration.wire import Wire, answer, events, in_time, initialize, rpc, wire

SERVER = [sys.executable, "-I", "-S", str(ROOT / "tests/conformance/stdio_backend.py"), "--era"]

# --- the headers


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_another_media_type_is_a_415(session: Wire, media_type: str) -> None:
    with in_time():
        response = await session.post(rpc("ping"), Content_Type=media_type)
    assert response.status_code == 415


async def test_a_compressed_body_is_a_415(session: Wire) -> None:
    with in_time():
        response = await session.post(rpc("ping"), Content_Encoding="gzip")
    assert response.status_code == 415


async def test_json_with_a_charset_is_fine(session: Wire) -> None:
    response = await session.post(rpc("ping"), Content_Type="Application/JSON; charset=utf-8")
    assert response.status_code == 200


@pytest.mark.parametrize("accept", ["text/html", "image/png, text/plain;q=0.5", "application/json;q=0"])
async def test_an_accept_header_that_takes_neither_json_nor_events_is_a_406(session: Wire, accept: str) -> None:
    with in_time():
        response = await session.post(rpc("ping"), Accept=accept)
    assert response.status_code == 406


@pytest.mark.parametrize(
    "accept",
    ["application/json", "text/event-stream", "*/*", "application/*", "text/event-stream, application/json;q=0.9"],
)
async def test_an_accept_header_that_takes_either_is_served(session: Wire, accept: str) -> None:
    assert answer(await session.post(rpc("tools/list"), Accept=accept))["tools"]


async def test_an_unknown_protocol_version_header_is_a_400(session: Wire) -> None:
    with in_time():
        response = await session.post(rpc("ping"), MCP_Protocol_Version="1999-01-01")
    assert response.status_code == 400


@pytest.mark.parametrize("version", ["2025-11-25, 2025-11-25", "2025-06-18", "2025-03-26"])
async def test_a_doubled_or_older_protocol_version_header_is_taken(session: Wire, version: str) -> None:
    assert (await session.post(rpc("ping"), MCP_Protocol_Version=version)).status_code == 200


async def test_a_missing_protocol_version_header_means_the_sessions_own(session: Wire) -> None:
    del session.headers["MCP-Protocol-Version"]
    assert (await session.post(rpc("ping"))).status_code == 200


async def test_a_foreign_host_header_is_a_421(session: Wire) -> None:
    with in_time():
        response = await session.post(rpc("ping"), Host="evil.example.com")
    assert response.status_code == 421


@pytest.mark.parametrize("path", ["", "/api/v1/tenants", "/metrics"])
async def test_a_foreign_name_in_the_target_is_one_in_host(gateway: Gateway, session: Wire, path: str) -> None:
    """RFC 9112 §3.2.2: the authority of an absolute target takes the place of Host."""
    path = path or session.url.removeprefix(gateway.url)
    statuses = {}
    for name in ("evil.example.com", gateway.host):
        target = {"target": f"http://{name}{path}".encode()}
        with in_time():
            response = await session.http.request("PUT", gateway.url, headers=session.headers, extensions=target)
        statuses[name] = response.status_code
    assert statuses.pop("evil.example.com") == 421
    assert 421 not in statuses.values()


async def test_an_absolute_target_is_served_by_the_name_in_it(gateway: Gateway, session: Wire) -> None:
    path = session.url.removeprefix(gateway.url)
    response = await session.http.post(
        gateway.url,
        json=rpc("tools/list"),
        headers={**session.headers, "Host": "evil.example.com"},
        extensions={"target": f"http://{gateway.host}{path}".encode()},
    )
    assert answer(response)["tools"]


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_a_foreign_origin_is_a_403(session: Wire, method: str) -> None:
    headers = {**session.headers, "Origin": "http://evil.example.com"}
    with in_time():
        response = await session.http.request(method, session.url, headers=headers)
    assert response.status_code == 403


# --- who is asking


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer wrong", "Basic dXNlcjpwYXNz", "Bearer tlk_aaaaaaaa_" + "a" * 43 + "bbbbbb"],
)
async def test_no_valid_key_is_a_401_with_a_challenge(
    echo: Endpoint, http: httpx2.AsyncClient, transport: Transport, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    with in_time():
        if transport == "sse":
            response = await http.get(echo.sse, headers=headers)
        else:
            response = await http.post(echo.mcp, json=initialize(), headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")


async def test_a_key_in_the_query_string_is_no_key(echo: Endpoint, http: httpx2.AsyncClient) -> None:
    response = await http.post(f"{echo.mcp}?access_token={echo.key}&key={echo.key}", json=initialize())
    assert response.status_code == 401


async def test_a_key_without_the_scope_is_a_403(gateway: Gateway, echo: Endpoint, http: httpx2.AsyncClient) -> None:
    for scopes in (["tenant:read"], ["mcp:connect:another"]):
        headers = {"Authorization": f"Bearer {gateway.key(echo.tenant, scopes)}"}
        with in_time():
            response = await http.post(echo.mcp, json=initialize(), headers=headers)
        assert response.status_code == 403
        assert "insufficient_scope" in response.headers["www-authenticate"]


async def test_a_key_of_another_tenant_sees_what_is_not_there(
    gateway: Gateway, echo: Endpoint, http: httpx2.AsyncClient
) -> None:
    stranger = gateway.key(gateway.add_tenant())
    headers = {"Authorization": f"Bearer {stranger}"}
    theirs = await http.post(echo.mcp, json=initialize(), headers=headers)
    absent = await http.post(f"{gateway.url}/t/nobody/nothing/mcp", json=initialize(), headers=headers)
    assert theirs.status_code == absent.status_code
    assert theirs.status_code in (401, 404)
    assert theirs.content == absent.content


# --- what is asked for


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
async def test_an_unknown_backend_is_a_404(
    gateway: Gateway, echo: Endpoint, http: httpx2.AsyncClient, path: str
) -> None:
    url = f"{gateway.url}/t/{echo.tenant}/no-such-backend{path}"
    with in_time():
        if path == "/sse":
            response = await http.get(url, headers=echo.headers)
        else:
            response = await http.post(url, json=initialize(), headers=echo.headers)
    assert response.status_code == 404


async def test_an_unknown_session_is_a_404(session: Wire) -> None:
    unknown = "A" * len(session.session_id)
    with in_time():
        assert (await session.post(rpc("ping"), Mcp_Session_Id=unknown)).status_code == 404
        assert (await session.close(Mcp_Session_Id=unknown)).status_code == 404
        async with session.stream("GET", Mcp_Session_Id=unknown) as stream:
            assert stream.status_code == 404


async def test_a_missing_session_id_is_a_400(session: Wire) -> None:
    del session.headers["Mcp-Session-Id"]
    with in_time():
        assert (await session.post(rpc("ping"))).status_code == 400
    session.headers["Mcp-Session-Id"] = session.session_id


async def test_a_session_of_someone_else_is_as_unknown_as_one_that_never_was(gateway: Gateway, session: Wire) -> None:
    tenant = session.url.split("/t/")[1].split("/")[0]
    thief = {**session.headers, "Authorization": f"Bearer {gateway.key(tenant)}"}
    for method, body in (("POST", rpc("ping")), ("GET", None), ("DELETE", None)):
        stolen = await session.http.request(method, session.url, json=body, headers=thief)
        unknown = await session.http.request(
            method, session.url, json=body, headers={**thief, "Mcp-Session-Id": "A" * len(session.session_id)}
        )
        assert (stolen.status_code, stolen.content) == (404, unknown.content), method
        assert _without_date(stolen) == _without_date(unknown)
    assert await session.call("echo", text="unharmed") == "unharmed"


def _without_date(response: httpx2.Response) -> dict[str, str]:
    changing = {"date", "x-request-id", "traceparent"}
    return {name: value for name, value in response.headers.items() if name not in changing}


async def test_an_sse_session_takes_posts_of_its_owner_only(
    gateway: Gateway, echo: Endpoint, http: httpx2.AsyncClient
) -> None:
    async with http.stream("GET", echo.sse, headers=echo.headers) as stream:
        lines = stream.aiter_lines()
        async for line in lines:
            if line.startswith("data:"):
                break
        path = line.removeprefix("data:").strip()
        assert path.startswith(f"/t/{echo.tenant}/{echo.name}/messages?sessionId=")
        thief = {"Authorization": f"Bearer {gateway.key(echo.tenant)}"}
        stolen = await http.post(gateway.url + path, json=initialize(), headers=thief)
        unknown = await http.post(gateway.url + path[:-8] + "AAAAAAAA", json=initialize(), headers=thief)
        assert (stolen.status_code, stolen.content) == (404, unknown.content)
        mine = await http.post(gateway.url + path, json=initialize(), headers=echo.headers)
        assert mine.status_code == 202


@pytest.mark.parametrize("method", ["PUT", "PATCH", "HEAD", "TRACE"])
async def test_other_methods_are_a_405_that_names_the_allowed_ones(session: Wire, method: str) -> None:
    with in_time():
        response = await session.http.request(method, session.url, headers=session.headers)
    assert response.status_code == 405
    assert {each.strip() for each in response.headers["allow"].split(",")} >= {"GET", "POST", "DELETE"}


async def test_a_post_to_the_sse_address_is_a_405(echo: Endpoint, http: httpx2.AsyncClient) -> None:
    """Clients that try Streamable HTTP first take this for an older server and fall back."""
    with in_time():
        response = await http.post(echo.sse, json=initialize(), headers=echo.headers)
    assert response.status_code == 405
    assert "GET" in response.headers["allow"]


async def test_a_get_without_a_session_is_refused_at_once(session: Wire) -> None:
    headers = {name: value for name, value in session.headers.items() if name != "Mcp-Session-Id"}
    with in_time():
        response = await session.http.get(session.url, headers=headers)
    assert response.status_code in (400, 405)
    if response.status_code == 405:
        assert "POST" in response.headers["allow"]


async def test_a_second_get_stream_of_one_session_takes_the_place_of_the_first(session: Wire) -> None:
    """Whose connection may be dead without our knowing."""
    async with session.stream("GET") as first:
        assert first.status_code == 200
        with in_time():
            async with session.stream("GET") as second:
                assert second.status_code == 200
                assert [event.data async for event in events(first) if event.data] == []  # it ends


async def test_a_get_that_takes_no_events_is_a_406(session: Wire) -> None:
    with in_time():
        async with session.stream("GET", Accept="application/json") as stream:
            assert stream.status_code == 406


@pytest.mark.parametrize("era", ["legacy", "sessionless"])
async def test_a_subscription_that_takes_no_events_is_a_406(
    gateway: Gateway, http: httpx2.AsyncClient, era: str
) -> None:
    """Whether the gateway would serve it or the backend: nothing of it could ever be told."""
    endpoint = gateway.endpoint([*SERVER, era])
    client = SessionlessClient(http, endpoint, [endpoint.mcp])
    only_json, wanted = {"Accept": "application/json"}, {"toolsListChanged": True}
    with anyio.fail_after(30):  # the server starts
        response = await client.post("subscriptions/listen", more=only_json, notifications=wanted)
    assert response.status_code == 406
    assert response.json()["error"]["data"]["reason"] == "not_acceptable"


@pytest.mark.parametrize("accept", ["*/*", "application/json, text/event-stream", "text/html"])
async def test_a_delete_ends_the_session_whatever_it_accepts_and_the_next_is_a_404(echo: Endpoint, accept: str) -> None:
    async with wire(echo) as session:
        first = await session.close(Accept=accept)
        assert first.status_code in (200, 204)
        assert (await session.close(Accept=accept)).status_code == 404
        assert (await session.post(rpc("ping"))).status_code == 404


@pytest.mark.parametrize("slash", ["", "/"])
async def test_addresses_answer_with_and_without_a_trailing_slash(
    echo: Endpoint, http: httpx2.AsyncClient, slash: str
) -> None:
    response = await http.post(echo.mcp + slash, json=initialize(), headers=echo.headers)
    assert answer(response)["serverInfo"]["name"] == "echo-backend"
    async with http.stream("GET", echo.sse + slash, headers=echo.headers) as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("slash", ["%2f", "%2F"])
async def test_an_encoded_slash_divides_nothing(
    gateway: Gateway, echo: Endpoint, http: httpx2.AsyncClient, slash: str
) -> None:
    tenant, backend = echo.tenant, echo.name
    for path in (
        f"t/{tenant}{slash}{backend}/mcp",
        f"t/{tenant}/{backend}{slash}mcp",
        f"t/{tenant}/{backend}/mcp{slash}",
        f"t/{tenant}/{backend}%5cmcp",
        f"t{slash}{tenant}/{backend}/mcp",
        f"t/{tenant}{slash}/{backend}/mcp",
        f"t/{slash}/{tenant}/{backend}/mcp",
    ):
        with in_time():
            response = await http.post(f"{gateway.url}/{path}", json=initialize(), headers=echo.headers)
        assert response.status_code == 404, path
    for path in (f"livez{slash}", f"metrics{slash}", f"api{slash}v1/tenants", f"api/v1/tenants{slash}{tenant}"):
        response = await http.get(f"{gateway.url}/{path}", headers={"Authorization": f"Bearer {gateway.admin_key}"})
        assert response.status_code == 404, path


@pytest.mark.parametrize("character", ["%00", "%0a", "%7f", "%C2%85"])
async def test_a_character_that_no_name_has_is_looked_for_nowhere(
    echo: Endpoint, http: httpx2.AsyncClient, character: str
) -> None:
    """PostgreSQL takes no NUL, and would answer with an error of its own."""
    for url in (echo.mcp.replace(echo.name, "a" + character), echo.mcp.replace(echo.tenant, character)):
        with in_time():
            response = await http.post(url, json=initialize(), headers=echo.headers)
        assert (response.status_code, response.json()["error"]["data"]["reason"]) == (404, "not_found")


async def test_what_is_encoded_without_need_is_what_it_stands_for(echo: Endpoint, http: httpx2.AsyncClient) -> None:
    url = echo.mcp.replace(echo.name, f"%{ord(echo.name[0]):x}{echo.name[1:]}")
    assert answer(await http.post(url, json=initialize(), headers=echo.headers))


# --- initialize


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_handshake_revision_is_negotiated(echo: Endpoint, http: httpx2.AsyncClient, version: str) -> None:
    session = Wire(http, echo)
    result = await session.open(version)
    assert result["protocolVersion"] == version
    assert await session.call("echo", text=version) == version
    assert (await session.close()).status_code in (200, 204)


async def test_an_unknown_revision_is_answered_with_a_known_one(echo: Endpoint, http: httpx2.AsyncClient) -> None:
    session = Wire(http, echo)
    result = answer(await session.post(initialize("2099-01-01")))
    assert result["protocolVersion"] in ("2025-06-18", "2025-11-25")


async def test_a_session_id_has_at_least_128_random_bits_and_visible_characters(
    echo: Endpoint, http: httpx2.AsyncClient
) -> None:
    ids = set()
    for _ in range(5):
        session = Wire(http, echo)
        await session.open()
        ids.add(session.session_id)
        await session.close()
    assert len(ids) == 5
    assert all(len(each) >= 32 and all(0x21 <= ord(char) <= 0x7E for char in each) for each in ids)


async def test_answers_carry_no_traceback_path_or_library(session: Wire) -> None:
    for response in (
        await session.post(b"{"),
        await session.post(rpc("ping"), Mcp_Session_Id="x"),
        await session.post(rpc("ping"), Content_Type="text/plain"),
        await session.http.get(session.url + "/../../../etc/passwd", headers=session.headers),
    ):
        for word in ("Traceback", "/app/", "site-packages", "starlette", "uvicorn"):
            assert word not in response.text
        assert "uvicorn" not in response.headers.get("server", "")


def warnings(gateway: Gateway) -> list[str]:
    """What is logged above INFO, and what is no line of ours. Other tests have left sessions and processes, of which
    the gateway may tell just now."""
    lines = [line for line in gateway.log.read_text().splitlines() if '"level":"info"' not in line]
    return [line for line in lines if '"logger":"app.' not in line or "pgrade" in line or "protocol" in line]


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
async def test_who_offers_another_protocol_is_served_as_ever_without_a_warning(
    gateway: Gateway, session: Wire, protocol: str
) -> None:
    """Java's HttpClient offers h2c with every request."""
    before = warnings(gateway)
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": protocol, "HTTP2-Settings": "AAEAAEAAAAIAAAAB"}
    session.headers |= offer
    assert (await session.http.get(gateway.url + "/livez", headers=offer)).status_code == 200
    assert answer(await session.post(rpc("tools/list")))["tools"]
    assert await session.call("echo", text="x" * 100_000) == "x" * 100_000
    assert (await session.http.post(gateway.url + "/t/default/x/mcp", headers=offer)).status_code == 401
    assert warnings(gateway) == before


async def test_who_asks_for_tenants_without_end_fills_no_log(
    gateway: Gateway, echo: Endpoint, http: httpx2.AsyncClient
) -> None:
    made_up, count, began = f"none-{uuid.uuid4().hex[:8]}", 150, time.monotonic()
    for number in range(count):
        path = f"{made_up}-{number}"
        answer = await http.get(f"{gateway.url}/t/{path}/b/mcp", headers=echo.headers)
        assert answer.status_code == 404
        answer = await http.get(f"{gateway.url}/api/v1/tenants/{path}", headers=echo.headers)
        assert answer.status_code == 404
    told = [line for line in gateway.log.read_text().splitlines() if made_up in line]
    seconds = time.monotonic() - began
    # Of 300; for each of two reasons 20 a second, and a line for those that are left out.
    assert 0 < len(told) <= 2 * 21 * (seconds + 2), (len(told), seconds)
