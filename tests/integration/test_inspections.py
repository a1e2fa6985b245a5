"""The messages of a session, as an administrator sees them: both sides, matched, masked, and only while it is open."""

import json
import sys
import time
from collections.abc import Iterator

import anyio
import httpx2
import jwt
import pytest

from tests.console.browser import Browser
from tests.integration.gateway import ECHO, ROOT, Gateway, running_gateway, until
from tests.integration.inspected import CALL, Inspected, session_of, shape, trail
from tests.integration.parked import is_parked, opened, parking, states
from tests.integration.sessionless_wire import SessionlessClient
from tests.integration.toolboxes import toolboxes
from tests.integration.wire import RpcError, events, rpc, wire

ERAS = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/eras.py")]
SECRET = "s3cret-of-the-server"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("inspections") / "data") as gateway:
        yield gateway


async def test_a_call_is_seen_on_both_sides_and_matched(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO, env={"TOKEN_OF_SERVER": SECRET})
    async with wire(endpoint) as session:
        await session.call("echo", text="before")
        seen = Inspected(endpoint)
        await session.call("echo", text=f"hello {SECRET}")
        asked, sent, heard, told = messages = seen.messages()
        assert shape(messages) == CALL
        assert [each["number"] for each in messages] == [1, 2, 3, 4]
        assert [each["pair"] for each in messages] == [2, 1, 4, 3]
        assert [each["answers"] for each in messages] == [None, None, 2, 1]
        assert {each["tool"] for each in messages} == {"echo"}
        assert (asked["id"], sent["id"]) == (told["id"], heard["id"])
        assert 0 < heard["took_ms"] <= told["took_ms"]
        assert "hello" in told["payload"]
        assert SECRET not in json.dumps(messages)
        assert endpoint.key not in json.dumps(messages)
        assert {each["secrets"] for each in messages} == {1}
        with pytest.raises(RpcError):
            await session.request("no/such")
        assert [each["kind"] for each in seen.messages()] == ["request", "request", "error", "error"]
        gateway.api("DELETE", seen.path)
        await session.call("echo", text="after")
        assert seen.now()["ending"] == "closed"
        assert seen.messages() == []


async def test_without_payloads_only_what_and_when_is_kept(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO)
    async with wire(endpoint) as session:
        seen = Inspected(endpoint, payloads=False)
        await session.call("echo", text="words")
        messages = seen.messages()
        assert shape(messages) == CALL
        assert {each["payload"] for each in messages} == {None}
        assert all(each["size"] > 40 for each in messages)
        assert "words" not in json.dumps(messages)


async def test_a_question_and_its_answer_are_seen(gateway: Gateway) -> None:
    endpoint = gateway.endpoint([*ERAS, "batching"])
    async with wire(endpoint, version="2025-03-26", capabilities={"roots": {}}) as session:
        seen = Inspected(endpoint)
        call = rpc("tools/call", 7, {"name": "ask", "arguments": {}, "_meta": {"progressToken": "t"}})
        with anyio.fail_after(20):
            async with session.stream("POST", call) as response:
                async for event in events(response):
                    if event.data and event.message.get("method") == "roots/list":
                        roots = {"roots": [{"uri": "file:///mine"}]}
                        await session.post({"jsonrpc": "2.0", "id": event.message["id"], "result": roots})
        messages = {each["number"]: each for each in seen.messages()}
        asked = [each for each in messages.values() if each["method"] == "roots/list" and each["kind"] == "request"]
        answered = [each for each in messages.values() if each["method"] == "roots/list" and each["kind"] == "result"]
        assert [(each["side"], each["direction"]) for each in asked] == [
            ("backend", "to_client"),
            ("client", "to_client"),
        ]
        assert [(each["side"], each["direction"]) for each in answered] == [
            ("client", "to_server"),
            ("backend", "to_server"),
        ]
        assert answered[0]["pair"] == answered[1]["number"]
        assert asked[0]["pair"] == asked[1]["number"]  # it came in a batch, behind a log message
        logged = [each for each in messages.values() if each["method"] == "notifications/message"]
        assert [each["pair"] for each in logged] == [logged[1]["number"], logged[0]["number"]]
        assert messages[answered[0]["answers"]]["side"] == "client"


async def test_the_bridge_is_seen_from_both_sides(gateway: Gateway) -> None:
    endpoint = gateway.endpoint([*ERAS, "sessionless"])
    async with wire(endpoint) as session:
        seen = Inspected(endpoint)
        await session.call("heard")
        messages = seen.messages()
        assert shape(messages) == CALL
        assert [each["pair"] for each in messages] == [2, 1, 4, 3]
        assert "protocolVersion" not in messages[0]["payload"]
        assert "io.modelcontextprotocol/protocolVersion" in messages[1]["payload"]


async def test_a_client_without_a_session_is_seen_in_its_own_words(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    endpoint = gateway.endpoint([*ERAS, "legacy"])
    client = SessionlessClient(http, endpoint, [endpoint.mcp])
    await client.call("heard")
    seen = Inspected(endpoint)
    await client.call("heard")
    messages = [each for each in seen.messages() if each["method"] == "tools/call"]
    assert shape(messages) == CALL
    assert [each["pair"] for each in messages] == [
        messages[1]["number"], messages[0]["number"], messages[3]["number"], messages[2]["number"],
    ]  # fmt: skip
    assert "io.modelcontextprotocol/protocolVersion" in messages[0]["payload"]
    assert "io.modelcontextprotocol/protocolVersion" not in messages[1]["payload"]


async def test_the_members_of_a_toolset_are_named(gateway: Gateway) -> None:
    toolset = toolboxes(gateway, "red", "blue", env={"MY_KEY": SECRET})
    async with wire(toolset) as session:
        seen = Inspected(toolset)
        assert await session.call("blue_say", text=f"hi {SECRET}") == f"blue: hi {SECRET}"
        await session.call("red_say", text="hi")
        messages = [each for each in seen.messages() if each["method"] == "tools/call"]
        assert [(each["side"], each["member"], each["tool"]) for each in messages] == [
            ("client", "", "blue_say"), ("backend", "blue", "say"),
            ("backend", "blue", "say"), ("client", "", "blue_say"),
            ("client", "", "red_say"), ("backend", "red", "say"),
            ("backend", "red", "say"), ("client", "", "red_say"),
        ]  # fmt: skip
        for index in (0, 4):
            asked, sent, heard, told = messages[index : index + 4]
            assert (asked["pair"], heard["pair"]) == (sent["number"], told["number"])
        assert SECRET not in json.dumps(messages[1:])


async def test_it_ends_with_its_session_and_what_it_saw_stays_for_a_while(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO)
    async with wire(endpoint) as session:
        seen = Inspected(endpoint)
        await session.call("echo", text="last words")
    await until(lambda: seen.now()["ending"] == "session_ended", 20)
    assert "last words" in json.dumps(seen.messages())
    await until(lambda: "inspection.close" in trail(endpoint), 20)


async def test_it_ends_with_the_credential_of_its_opener(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO)
    made = gateway.api("POST", f"/tenants/{endpoint.tenant}/keys", {"scopes": ["tenant:admin"]})
    async with wire(endpoint) as session:
        path = f"/tenants/{endpoint.tenant}/inspections"
        body = {"session": session_of(endpoint), "reason": "why not", "payloads": True}
        opened = gateway.api("POST", path, body, key=made["key"])
        assert opened["subject"] == made["id"]
        await session.call("echo", text="x")
        gateway.api("DELETE", f"/tenants/{endpoint.tenant}/keys/{made['id']}")
        now = gateway.api("GET", f"{path}/{opened['id']}")
        assert (now["ending"], now["kept"]) == ("revoked", 0)


async def test_it_ends_when_its_opener_is_switched_off_or_loses_the_role(gateway: Gateway) -> None:
    endpoint, now = gateway.endpoint(ECHO), int(time.time())
    tenant, secret = f"/tenants/{endpoint.tenant}", "s" * 40
    issuer = {"issuer": "https://idp.example", "algorithms": ["HS256"], "secret": secret, "audience": ["rest"]}
    trusted = gateway.api("POST", f"{tenant}/issuers", {**issuer, "max_scopes": ["tenant:admin"]})
    claims = {
        "iss": "https://idp.example",
        "sub": "alice",
        "aud": "rest",
        "iat": now,
        "exp": now + 600,
        "scope": "tenant:admin",
    }
    token = jwt.encode(claims, secret, "HS256")
    made = gateway.api("POST", f"{tenant}/keys", {"scopes": ["tenant:admin"]})
    body = {"backend": endpoint.name, "reason": "x"}
    opened = gateway.api("POST", f"{tenant}/inspections", body, key=token)
    assert (opened["issuer"], opened["subject"]) == ("https://idp.example", "alice")
    gateway.api("PATCH", f"{tenant}/issuers/{trusted['id']}", {"max_scopes": ["tenant:read"]})
    assert gateway.api("GET", f"{tenant}/inspections/{opened['id']}")["ending"] == "revoked"
    gateway.api("POST", f"{tenant}/inspections", body, key=token, expect=403)
    opened = gateway.api("POST", f"{tenant}/inspections", body, key=made["key"])
    gateway.api("PATCH", f"{tenant}/keys/{made['id']}", {"enabled": False, "reason": "left"})
    assert gateway.api("GET", f"{tenant}/inspections/{opened['id']}")["ending"] == "revoked"


async def test_a_tenant_that_forbids_them_ends_them(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO)
    administrator = gateway.key(endpoint.tenant, ["tenant:admin"])
    async with wire(endpoint) as session:
        seen = Inspected(endpoint)
        await session.call("echo", text="x")
        (problem,) = gateway.api("GET", f"/tenants/{endpoint.tenant}/problems", key=administrator)["items"]
        assert problem["kind"] == "inspection_open"
        assert "a test looks" in problem["words"]
        tenant = f"/tenants/{endpoint.tenant}"
        gateway.api("PATCH", tenant, {"inspections": "metadata"}, key=administrator)
        assert (seen.now()["ending"], seen.now()["kept"]) == ("forbidden", 0)
        assert gateway.api("GET", f"{tenant}/problems", key=administrator)["items"] == []
        refused = gateway.api("POST", f"{tenant}/inspections", {"session": session_of(endpoint), "reason": "x",
                              "payloads": True}, expect=409)  # fmt: skip
        assert "without payloads" in refused["detail"]
        Inspected(endpoint, payloads=False)
        gateway.api("PATCH", tenant, {"inspections": "forbidden"}, key=administrator)
        refused = gateway.api(
            "POST", f"{tenant}/inspections", {"session": session_of(endpoint), "reason": "x"}, expect=409
        )
        assert "forbids" in refused["detail"]
        gateway.api("PATCH", tenant, {"inspections": "metadata"}, key=administrator, expect=403)
        gateway.api("PATCH", tenant, {"inspections": "allowed"})


OPENING = [
    ("client", "to_server", "request", "initialize"),
    ("backend", "to_server", "request", "initialize"),
    ("backend", "to_client", "result", "initialize"),
    ("client", "to_client", "result", "initialize"),
    ("client", "to_server", "notification", "notifications/initialized"),
    ("backend", "to_server", "notification", "notifications/initialized"),
]


async def test_the_next_sessions_of_a_backend_are_seen_from_their_first_message_on(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO, env={"TOKEN_OF_SERVER": SECRET})
    async with wire(endpoint) as before:
        seen = Inspected(endpoint, backend=endpoint.name)
        assert (seen.about["session"], seen.about["backend"], seen.about["sessions"]) == (None, endpoint.name, 0)
        gateway.api("POST", seen.path.rpartition("/")[0], {"backend": endpoint.name, "reason": "x"}, expect=409)
        async with wire(endpoint) as one, wire(endpoint) as other:
            await before.call("echo", text="nobody sees it")
            await one.call("echo", text=f"one {SECRET}")
            await other.call("echo", text=f"other {SECRET}")
            messages = seen.messages()
            assert SECRET not in json.dumps(messages)
            assert "nobody" not in json.dumps(messages)
            by_session = {
                each["session"]: [m for m in messages if m["session"] == each["session"]] for each in messages
            }
            assert len(by_session) == 2
            for theirs in by_session.values():
                assert shape(theirs) == [*OPENING, *CALL]
                assert all(each["pair"] for each in theirs)
            assert [each["number"] for each in messages] == list(range(1, 21))
            busy = {"session": messages[0]["session"], "reason": "x"}
            refused = gateway.api("POST", seen.path.rpartition("/")[0], busy, expect=409)
            assert seen.about["id"] in refused["detail"]
        now = seen.now()
        assert (now["ending"], now["sessions"], now["missed"]) == (None, 2, 0)
        gateway.api("DELETE", seen.path)
        async with wire(endpoint) as late:
            await late.call("echo", text="x")
        assert seen.now()["last"] == now["last"]
    found = gateway.api("GET", f"/tenants/{endpoint.tenant}/audit?target=inspections/{seen.about['id']}")["items"]
    assert found[-1]["detail"] == f"next sessions of {endpoint.name}, with payloads, 15 min: a test looks"


async def test_the_next_sessions_of_a_toolset_are_seen_with_its_members(gateway: Gateway) -> None:
    toolset = toolboxes(gateway, "red", "blue", env={"MY_KEY": SECRET})
    seen = Inspected(toolset, backend=toolset.name)
    async with wire(toolset) as session:
        await session.call("blue_say", text=f"hi {SECRET}")
        messages = seen.messages()
        assert shape(messages)[0] == OPENING[0]
        calls = [each for each in messages if each["method"] == "tools/call"]
        assert [(each["side"], each["member"]) for each in calls] == [
            ("client", ""), ("backend", "blue"), ("backend", "blue"), ("client", ""),
        ]  # fmt: skip
        assert SECRET not in json.dumps(calls[1:])


async def test_the_next_sessions_are_seen_behind_a_bridge_and_for_clients_without_a_session(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    new, old = gateway.endpoint([*ERAS, "sessionless"]), gateway.endpoint([*ERAS, "legacy"])
    seen = Inspected(new, backend=new.name)
    async with wire(new) as session:
        await session.call("heard")
        messages = [each for each in seen.messages() if each["method"] == "tools/call"]
        assert shape(messages) == CALL
        assert [each["pair"] for each in messages] == [
            messages[1]["number"], messages[0]["number"], messages[3]["number"], messages[2]["number"],
        ]  # fmt: skip
        assert "io.modelcontextprotocol/protocolVersion" in messages[1]["payload"]
    seen = Inspected(old, backend=old.name)
    client = SessionlessClient(http, old, [old.mcp])
    await client.call("heard")
    messages = [each for each in seen.messages() if each["method"] == "tools/call"]
    assert shape(messages) == CALL
    assert "io.modelcontextprotocol/protocolVersion" in messages[0]["payload"]


async def test_secrets_that_a_backend_gets_later_are_masked_too(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO, env={"TOKEN_OF_SERVER": SECRET})
    seen, later = Inspected(endpoint, backend=endpoint.name), "another-one-of-the-server"
    async with wire(endpoint) as session:
        await session.call("echo", text="x")
    gateway.api("PATCH", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}", {"env": {"TOKEN_OF_SERVER": later}})
    async with wire(endpoint) as session:
        await session.call("echo", text=f"{SECRET} {later}")
        assert "tools/call" in json.dumps(messages := seen.messages())
        assert SECRET not in json.dumps(messages)
        assert later not in json.dumps(messages)


async def test_the_messages_of_a_batch_are_matched(gateway: Gateway) -> None:
    endpoint = gateway.endpoint([*ERAS, "batching"])
    async with wire(endpoint, version="2025-03-26") as session:
        seen = Inspected(endpoint)
        batch = [rpc("tools/call", number, {"name": "heard", "arguments": {}}) for number in (7, 8, 9)]
        answer = await session.post(batch)
        assert {each["id"] for each in answer.json()} == {7, 8, 9}
        messages = {each["number"]: each for each in seen.messages()}
        results = [each for each in messages.values() if each["kind"] in ("result", "error")]
        assert len(results) == 6
        for each in messages.values():
            other = messages[each["pair"]]
            assert (other["pair"], other["side"] != each["side"]) == (each["number"], True)
            assert other["direction"] == each["direction"]
        assert all(messages[each["answers"]]["side"] == each["side"] for each in results)


async def test_a_parked_session_is_inspected_without_waking_it(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    endpoint = parking(gateway)
    async with opened(http, endpoint) as session:
        await is_parked(endpoint)
        seen = Inspected(endpoint)
        assert (states(endpoint), seen.messages()) == (["parked"], [])
        await session.call("whoami")
        calls = [each for each in seen.messages() if each["method"] == "tools/call"]
        assert shape(calls) == CALL
        assert all(each["pair"] for each in calls)


async def test_the_console_s_cookie_is_no_way_around_what_a_key_may(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO)
    path = f"/api/v1/tenants/{endpoint.tenant}/inspections"
    administrator = gateway.api("POST", f"/tenants/{endpoint.tenant}/keys", {"scopes": ["tenant:admin"]})
    with Browser(gateway) as one, Browser(gateway) as other:
        one.sign_in(administrator["key"])
        other.sign_in(gateway.key(endpoint.tenant, ["tenant:read"]))
        async with wire(endpoint) as session:
            body = {"session": session_of(endpoint), "reason": "why", "payloads": True}
            assert one.http.post(f"/console/-{path}", json=body, headers=one.from_here).status_code == 403
            assert other.rest("POST", path, body).status_code == 403
            opened_id = one.rest("POST", path, body).json()["id"]
            await session.call("echo", text="secret words")
            file = f"/console/-{path}/{opened_id}/messages?format=jsonl"
            assert "secret words" in one.http.get(file).text
            lines = [json.loads(line) for line in other.http.get(file).text.splitlines()]
            assert ([each["payload"] for each in lines], other.rest("DELETE", f"{path}/{opened_id}").status_code) == (
                [None] * 4, 403,
            )  # fmt: skip
            gateway.api("DELETE", f"/tenants/{endpoint.tenant}/keys/{administrator['id']}")
            assert one.http.get(file).status_code == 401
            assert gateway.http.get(f"{path}/{opened_id}").json()["ending"] == "revoked"
            assert other.http.get(file).text == ""


async def test_a_small_memory_keeps_the_newest(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_gateway(tmp_path_factory.mktemp("small") / "data", INSPECTION_MEMORY_MB="1") as gateway:
        endpoint = gateway.endpoint(ECHO)
        async with wire(endpoint) as session:
            seen = Inspected(endpoint)
            # On a busy machine there is no time to mask every payload: such a message takes no memory to speak of.
            calls = 0
            while not seen.now()["dropped"]:
                assert calls < 500
                await session.call("echo", text=f"{calls} " + "x" * 4000)
                calls += 1
            now, messages = seen.now(), seen.messages()
            assert now["last"] == 4 * calls
            assert now["dropped"] == now["last"] - now["kept"]
            assert [each["number"] for each in messages] == list(range(now["dropped"] + 1, now["last"] + 1))
            assert 0 < sum(len(each["payload"] or "") for each in messages) < (1 << 20) / 8
            assert gateway.metrics()["trunkline_inspection_messages_dropped_total"] == now["dropped"]
            assert gateway.metrics()["trunkline_inspections_open"] == 1


async def test_a_flood_in_one_session_holds_up_nobody_else(gateway: Gateway) -> None:
    endpoint, neighbour = gateway.endpoint(ECHO), gateway.endpoint(ECHO)
    # One takes a fifth of what may be used for one message; all of them take many times what an inspection may use.
    large = {"name": "echo", "arguments": {"text": "x", "v": ["password=x "] * 3_000}}
    async with wire(endpoint) as session, wire(neighbour) as other:
        seen = Inspected(endpoint)
        with anyio.fail_after(90):
            async with anyio.create_task_group() as tasks:
                for number in range(60):
                    tasks.start_soon(session.post, rpc("tools/call", 100 + number, large))
                assert await other.call("echo", text="x") == "x"
        messages = seen.messages()
        assert any(each["payload"] is None and each["is_cut"] for each in messages)
        assert any(each["payload"] is not None for each in messages)
        assert seen.now()["last"] >= 2 * 60  # some may be refused: the process has too much to read
