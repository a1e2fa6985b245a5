"""A client of one era in front of a server of the other, and two of the same, by hand and over real sockets."""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.integration.gateway import ROOT, Endpoint, Gateway, may_write
from tests.integration.sessionless_wire import SessionlessClient, another_key
from tests.integration.toolboxes import among_toolboxes
from tests.integration.wire import Wire, answer, error_of, events, rpc, wire

SERVER = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/eras.py")]
TASKS = "io.modelcontextprotocol/tasks"
APPS = {"io.example/apps": {"mimeTypes": ["text/html"]}}


def server_of(gateway: Gateway, era: str, **fields: Any) -> Endpoint:
    return gateway.endpoint([*SERVER, era], **fields)


# --- servers that know no question but `initialize`


@pytest.mark.parametrize("is_member", [False, True])
async def test_a_server_that_ends_at_any_other_first_message_works_for_clients_of_2026_07_28_and_for_older_ones(
    gateway: Gateway, http: httpx2.AsyncClient, is_member: bool
) -> None:
    endpoint = gateway.endpoint([sys.executable, "-I", "-S", str(ROOT / "tests/servers/wants_initialize.py")])
    endpoint = among_toolboxes(endpoint) if is_member else endpoint
    callers = [another_key(endpoint) for _ in range(5)]
    clients = [SessionlessClient(http, each, [each.mcp]) for each in callers]
    was_open = gateway.metrics()["trunkline_breaker_open"]
    async with anyio.create_task_group() as tasks:
        for client in clients:
            tasks.start_soon(client.call, "say")
    async with wire(endpoint) as session:
        assert await session.call("say") == "said"
    assert gateway.metrics()["trunkline_breaker_open"] == was_open


# --- capabilities

MINE = {"experimental": {"mine": {"cut": "\ud83d", "big": 10**30}}, "extensions": {**APPS, TASKS: {}}}
OURS = {"experimental": MINE["experimental"], "extensions": APPS}  # of tasks each era has its own idea
THEIRS = {"tools": {}, "logging": {}, "experimental": {"theirs": {"n": 1}}, "extensions": APPS}


@pytest.mark.parametrize("era", ["legacy", "sessionless"])
async def test_a_handshake_client_and_its_server_know_of_each_others_extensions(gateway: Gateway, era: str) -> None:
    async with wire(server_of(gateway, era), capabilities=MINE) as session:
        heard = json.loads(await session.call("heard"))
        assert heard == (MINE if era == "legacy" else OURS)
        another = Wire(session.http, server_of(gateway, era))
        offered = (await another.open(capabilities=MINE))["capabilities"]
        await another.close()
        assert offered["extensions"] == ({**APPS, TASKS: {}} if era == "legacy" else APPS)
        assert offered["experimental"] == THEIRS["experimental"]


@pytest.mark.parametrize("era", ["legacy", "sessionless"])
async def test_a_sessionless_client_and_its_server_know_of_each_others_extensions(
    gateway: Gateway, http: httpx2.AsyncClient, era: str
) -> None:
    endpoint = server_of(gateway, era)
    client = SessionlessClient(http, endpoint, [endpoint.mcp], MINE)
    assert json.loads(await client.call("heard")) == (OURS if era == "legacy" else MINE)
    offered = (await client.request("server/discover"))["capabilities"]
    assert offered == {**THEIRS, "extensions": APPS if era == "legacy" else {**APPS, TASKS: {}}}


# --- the tools


@pytest.mark.parametrize("era", ["legacy", "sessionless"])
async def test_a_call_does_not_wait_for_a_list_of_the_tools(
    gateway: Gateway, http: httpx2.AsyncClient, era: str
) -> None:
    endpoint = server_of(gateway, era)  # which never answers `tools/list`
    client = SessionlessClient(http, endpoint, [endpoint.mcp])
    with anyio.fail_after(20):
        assert await client.call("heard") == await client.call("heard") == "{}"


# --- batches of servers at 2025-03-26

ROOTS = {"roots": [{"uri": "file:///mine"}]}


@pytest.mark.parametrize("fields", [{}, {"recovery": "respawn"}], ids=["session", "respawn"])
async def test_a_batch_of_a_server_is_its_messages(gateway: Gateway, fields: dict[str, Any]) -> None:
    async with wire(
        server_of(gateway, "batching", **fields), version="2025-03-26", capabilities={"roots": {}}
    ) as session:
        call = rpc("tools/call", 7, {"name": "ask", "arguments": {}, "_meta": {"progressToken": "t"}})
        with anyio.fail_after(20):
            async with session.stream("POST", call) as response:
                messages = (event.message async for event in events(response) if event.data)
                assert (await anext(messages))["params"]["data"] == "asks"
                question = await anext(messages)
                assert question["method"] == "roots/list"
                await session.post({"jsonrpc": "2.0", "id": question["id"], "result": ROOTS})
                assert (await anext(messages))["params"] == {"progressToken": "t", "progress": 1}
                assert (await anext(messages))["result"]["content"][0]["text"] == "file:///mine"


async def test_a_batch_of_a_server_reaches_a_sessionless_client_too(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    endpoint = server_of(gateway, "batching")
    client = SessionlessClient(http, endpoint, [endpoint.mcp], {"roots": {}})
    call: dict[str, Any] = {"name": "ask", "arguments": {}}
    with anyio.fail_after(20):
        asked = await client.request("tools/call", meta={"progressToken": "t"}, **call)
        (key,) = asked["inputRequests"]
        answers = {"inputResponses": {key: ROOTS}, "requestState": asked["requestState"]}
        result = await client.request("tools/call", **call, **answers)
    assert result["content"][0]["text"] == "file:///mine"


# --- forms

DECLARED = [
    pytest.param({"url": {}}, False, id="url"),
    pytest.param({}, True, id="nothing more"),
    pytest.param({"form": {}, "url": {}}, True, id="both"),
]
FILLED = {"action": "accept", "content": {"name": "Ada"}}


@pytest.mark.parametrize(("modes", "is_asked"), DECLARED)
async def test_a_sessionless_client_is_asked_to_fill_in_a_form_if_it_can(
    gateway: Gateway, http: httpx2.AsyncClient, modes: Any, *, is_asked: bool
) -> None:
    endpoint = server_of(gateway, "legacy")
    client = SessionlessClient(http, endpoint, [endpoint.mcp], {"elicitation": modes})
    call: dict[str, Any] = {"name": "form", "arguments": {}}
    with anyio.fail_after(20):
        if not is_asked:
            response = await client.post("tools/call", **call)
            error = error_of(response)
            assert (response.status_code, error.code) == (400, -32021)
            assert error.data["requiredCapabilities"] == {"elicitation": {"form": {}}}
            return
        asked = await client.request("tools/call", **call)
        answers = {
            "inputResponses": dict.fromkeys(asked["inputRequests"], FILLED),
            "requestState": asked["requestState"],
        }
        result = await client.request("tools/call", **call, **answers)
    assert result["content"][0]["text"] == "accept"


@pytest.mark.parametrize(("modes", "is_asked"), DECLARED)
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
async def test_a_handshake_client_is_asked_to_fill_in_a_form_if_it_can(
    gateway: Gateway, modes: Any, version: str, *, is_asked: bool
) -> None:
    """Before 2025-11-25 there were forms only."""
    endpoint = server_of(gateway, "sessionless")
    async with wire(endpoint, version=version, capabilities={"elicitation": modes}) as session:
        call = rpc("tools/call", 7, {"name": "form", "arguments": {}})
        with anyio.fail_after(20):
            async with session.stream("POST", call) as response:
                if not is_asked and version == "2025-11-25":
                    await response.aread()
                    assert "does not support" in str(error_of(response))
                    return
                messages = (event.message async for event in events(response) if event.data)
                question = await anext(messages)
                await session.post({"jsonrpc": "2.0", "id": question["id"], "result": FILLED})
                assert (await anext(messages))["result"]["content"][0]["text"] == "accept"


# --- a revision that nobody knows but client and server


async def test_a_session_goes_on_in_the_revision_that_its_server_has_chosen(gateway: Gateway) -> None:
    async with wire(server_of(gateway, "2025-09-09")) as session:
        session.headers["MCP-Protocol-Version"] = "2025-09-09"
        assert await session.call("heard") == "{}"
        assert (await session.post({"jsonrpc": "2.0", "method": "notifications/theirs"})).status_code == 202
        async with session.stream("GET") as response:
            assert response.status_code == 200
        session.headers["MCP-Protocol-Version"] = "2025-09-10"
        with anyio.fail_after(20):
            both = await session.post(rpc("ping")), await session.http.get(session.url, headers=session.headers)
        for refused in both:
            error = error_of(refused)
            assert (refused.status_code, error.code, error.data["requested"]) == (400, -32022, "2025-09-10")
        session.headers["MCP-Protocol-Version"] = "2026-07-28"
        assert error_of(await session.post(rpc("ping"))).code == -32602  # no envelope


# --- a request that is written in another way when it comes again

WRITTEN = (
    '{"id": 9007199254740993, "n": 1, "x": 0.5, "big": 1e+23, "text": "\\u00e9/", "none": null,'
    ' "deep": {"a": [1, {}], "b": true}}'
)
REWRITTEN = (
    '{"deep":{"b":true,"a":[1.0,{ }]},"none":null,"text":"é\\/","big":100000000000000000000000,'
    '"x":5.0E-1,"n":1e0,"id":9007199254740993}'
)


@pytest.mark.parametrize(
    ("again", "reason"),
    [
        (REWRITTEN, None),
        (WRITTEN.replace("9007199254740993", "9007199254740992"), "state_invalid"),
        (WRITTEN.replace("true", "1"), "state_invalid"),
        (WRITTEN.replace("0.5", '"0.5"'), "state_invalid"),
        (WRITTEN.replace("null", "{}"), "state_invalid"),
    ],
)
async def test_a_state_is_good_for_the_same_request_however_it_is_written(
    gateway: Gateway, http: httpx2.AsyncClient, again: str, reason: str | None
) -> None:
    endpoint = server_of(gateway, "legacy")
    client = SessionlessClient(http, endpoint, [endpoint.mcp], {"elicitation": {}})

    async def post(arguments: str, **more: Any) -> httpx2.Response:
        body, headers = client.message("tools/call", {"name": "form", "arguments": "ARGUMENTS", **more})
        content = json.dumps(body).replace('"ARGUMENTS"', arguments).encode()
        return await http.post(endpoint.mcp, content=content, headers=headers)

    asked = answer(await post(WRITTEN))
    answers = dict.fromkeys(asked["inputRequests"], FILLED)
    retry = await post(again, inputResponses=answers, requestState=asked["requestState"])
    if reason is None:
        assert answer(retry)["content"][0]["text"] == "accept"
    else:
        assert (retry.status_code, error_of(retry).reason) == (400, reason)


async def test_a_question_about_a_resource_says_nothing_of_how_long_it_may_be_kept(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    endpoint = server_of(gateway, "legacy")
    client = SessionlessClient(http, endpoint, [endpoint.mcp], {"elicitation": {}})
    asked = await client.request("resources/read", uri="test://a")
    assert asked.keys() == {"resultType", "inputRequests", "requestState", "_meta"}
    answers = {"inputResponses": dict.fromkeys(asked["inputRequests"], FILLED), "requestState": asked["requestState"]}
    result = await client.request("resources/read", uri="test://a", **answers)
    assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 0, "private")


# --- a server that is upgraded


@pytest.mark.parametrize(("before", "after"), [("legacy", "sessionless"), ("sessionless", "legacy")])
async def test_a_server_of_another_era_than_before_is_spoken_to_in_its_own(
    gateway: Gateway, http: httpx2.AsyncClient, tmp_path: Path, before: str, after: str
) -> None:
    """As `npx …@latest` may be from one start to the next."""
    era = tmp_path / "era"
    endpoint = gateway.endpoint([*SERVER, "as", str(era)])
    heard = {"legacy": OURS, "sessionless": MINE}
    for now in (before, after):
        era.write_text(now)
        mine = another_key(endpoint)  # so that there is another process
        client = SessionlessClient(http, mine, [mine.mcp], MINE)
        for _ in range(2):
            assert json.loads(await client.call("heard")) == heard[now]


# --- a server that wants to be asked again


async def test_a_server_that_wants_to_be_asked_again_has_time_until_then(gateway: Gateway, tmp_path: Path) -> None:
    """Without a pause ten rounds are over before anybody could do anything about it."""
    asked, until = tmp_path / "asked", tmp_path / "until"
    endpoint = server_of(gateway, "sessionless", sandbox=may_write(tmp_path))
    async with wire(endpoint) as session, anyio.create_task_group() as tasks:

        async def go() -> None:
            while not asked.exists():
                await anyio.sleep(0.01)
            assert await session.call("heard") == "{}"
            until.touch()

        tasks.start_soon(go)
        assert await session.call("later", asked=str(asked), until=str(until)) == "now"


# --- a process that ends with its answer


@pytest.mark.parametrize("era", ["legacy", "sessionless"])
async def test_an_answer_can_be_fetched_though_the_process_has_ended(
    gateway: Gateway, http: httpx2.AsyncClient, tmp_path: Path, era: str
) -> None:
    endpoint = server_of(gateway, era, sandbox=may_write(tmp_path))
    session = Wire(http, endpoint)
    await session.open()
    call = rpc("tools/call", 7, {"name": "last", "arguments": {"after": str(tmp_path / "cut")}})
    async with session.stream("POST", call, Accept="text/event-stream") as response:
        place = (await anext(events(response))).id
    assert place is not None
    (tmp_path / "cut").touch()
    with anyio.fail_after(20):
        while (await session.post(rpc("ping"))).status_code != 404:
            await anyio.sleep(0.01)
    for _ in range(2):
        resumed = await session.http.get(session.url, headers={**session.headers, "Last-Event-ID": place})
        assert answer(resumed)["content"][0]["text"] == "last words"
    for wrong in ({}, {"Last-Event-ID": place.split("-")[0] + "-9"}, {"Last-Event-ID": "0123456789ab-0"}):
        assert (await session.http.get(session.url, headers={**session.headers, **wrong})).status_code == 404
    theirs = {**session.headers, **another_key(endpoint).headers, "Last-Event-ID": place}
    assert (await session.http.get(session.url, headers=theirs)).status_code == 404


# --- log messages


@pytest.mark.parametrize("era", ["legacy", "sessionless"])
@pytest.mark.parametrize(("parked", "asking"), [(None, "info"), ("error", "debug"), ("info", None), ("debug", "error")])
async def test_a_log_message_reaches_the_call_that_wants_it_and_no_other(
    gateway: Gateway, http: httpx2.AsyncClient, era: str, parked: str | None, asking: str | None
) -> None:
    endpoint = server_of(gateway, era)
    client = SessionlessClient(http, endpoint, [endpoint.mcp])
    answers: dict[str, httpx2.Response] = {}

    async def call(tool: str, level: str | None) -> None:
        meta = {} if level is None else {"io.modelcontextprotocol/logLevel": level}
        answers[tool] = await client.post("tools/call", name=tool, arguments={}, meta=meta)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, "park", parked)
            while json.loads(await client.call("is_parked")) == []:
                await anyio.sleep(0.01)
            await call("release", asking)
    assert {answer(each)["content"][0]["text"] for each in answers.values()} == {"released"}
    heard = {tool for tool, response in answers.items() if "notifications/message" in response.text}
    assert heard == {tool for tool, level in {"park": parked, "release": asking}.items() if level in ("debug", "info")}
