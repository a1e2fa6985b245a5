"""A tenant, a backend, a key or a principal is switched off at one of two nodes: everything of it ends at both within a
second, and its clients hear that it is off, and why."""

import copy
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import jwt
import pytest

from tests.integration.gateway import ECHO, Endpoint, Gateway, stdin_of, until
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.sessionless_wire import SessionlessClient
from tests.integration.wire import Wire, error_of, events, initialize, rpc
from tests.postgres import new_database

SOON_S = 1.0  # the promise; a busy machine is given ten times as long, and the time is printed
WITHOUT_REDIS_S = 2.0
BUSY = 10
KINDS = ("tenant", "backend", "key", "principal")
SECRET = "correct horse battery staple, all 32 bytes of it"
IDP = "https://idp.example"
WHY = "moved to another building; ask Kim"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres_database: str) -> Iterator[Nodes]:
    with running_nodes(tmp_path_factory.mktemp("nodes"), postgres_database, 2) as nodes:
        anyio.run(nodes.all_know_each_other)
        yield nodes


def token(subject: str) -> str:
    now = int(time.time())
    claims = {"iss": IDP, "sub": subject, "aud": "us", "iat": now, "exp": now + 600, "scope": "mcp:connect"}
    return jwt.encode(claims, SECRET, "HS256")


def holding(endpoint: Endpoint, credential: str) -> Endpoint:
    other = copy.copy(endpoint)
    other.key = credential
    return other


@dataclass
class Case:
    """Whoever is to be cut off, somebody like him who is not, and where the switch is."""

    mine: Endpoint
    bystander: Endpoint
    path: str
    whom: dict[str, str]

    def switch(self, node: Gateway, **members: Any) -> None:
        """The PATCH."""
        node.api("PATCH", self.path, {**self.whom, **members})


def a_case(nodes: Nodes, kind: str, **fields: str) -> Case:
    node = nodes.all[0]
    mine = node.endpoint(ECHO, warm=1, **fields)
    tenant = f"/tenants/{mine.tenant}"
    if kind == "principal":
        issuer = {"issuer": IDP, "algorithms": ["HS256"], "secret": SECRET, "audience": ["us"]}
        node.api("POST", f"{tenant}/issuers", issuer)
        alice, bob = holding(mine, token("alice/ä")), holding(mine, token("bob"))
        return Case(alice, bob, f"{tenant}/principals", {"issuer": IDP, "subject": "alice/ä"})
    if kind == "key":
        other = holding(mine, node.key(mine.tenant))
        return Case(mine, other, f"{tenant}/keys/{mine.key.split('_')[1]}", {})
    other = node.endpoint(ECHO, tenant=mine.tenant if kind == "backend" else None)
    return Case(mine, other, f"{tenant}/backends/{mine.name}" if kind == "backend" else tenant, {})


@asynccontextmanager
async def connected(nodes: Nodes, case: Case) -> AsyncIterator[tuple[list[Wire], list[Wire]]]:
    """A session of the case's client at each node, and one of the bystander's."""
    async with httpx2.AsyncClient(timeout=60) as http:
        sessions = []
        for endpoint in (case.mine, case.bystander):
            opened = []
            for url in nodes.urls(endpoint):
                session = Wire(http, endpoint)
                session.url = url
                await session.open()
                opened.append(session)
            sessions.append(opened)
        yield sessions[0], sessions[1]


def sleeping(sessions: list[Wire]) -> list[tuple[Wire, str]]:
    """Calls at the node that has the session, and at the other, which sends them on."""
    return [(session, each.url) for session in sessions for each in sessions]


async def has_calls(nodes: Nodes, case: Case, count: int) -> None:
    path = f"/tenants/{case.mine.tenant}/sessions"
    await until(lambda: sum(each["calls"] for each in nodes.all[0].api("GET", path)["items"]) == count, 20)


def is_off(response: httpx2.Response) -> bool:
    assert response.status_code == 403, (response.status_code, response.text)
    assert "www-authenticate" not in response.headers
    error = error_of(response)
    assert error.reason == "disabled"
    assert WHY in str(error)
    assert "outcome" not in error.data
    return True


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_switched_off_ends_at_both_nodes_within_a_second_and_says_so(nodes: Nodes, kind: str) -> None:
    case, here = a_case(nodes, kind), nodes.all[0]
    async with connected(nodes, case) as (mine, others), AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(session.stream("GET")) for session in mine]
        sessionless = SessionlessClient(mine[0].http, case.mine, nodes.urls(case.mine))
        process = (await sessionless.whoami())["process"]
        sleep: dict[str, Any] = {"name": "sleep", "arguments": {"ms": 40_000}}
        answers = list[tuple[float, httpx2.Response]]()

        async def call(session: Wire, url: str, number: int) -> None:
            answer = await session.http.post(url, json=rpc("tools/call", number, sleep), headers=session.headers)
            answers.append((time.monotonic(), answer))

        async def sessionless_call() -> None:
            answer = await sessionless.post("tools/call", **sleep)
            answers.append((time.monotonic(), answer))

        ended = list[float]()

        async def read(stream: httpx2.Response) -> None:
            await stream.aread()
            ended.append(time.monotonic())

        async with anyio.create_task_group() as tasks:
            for number, (session, url) in enumerate(sleeping(mine)):
                tasks.start_soon(call, session, url, 100 + number)
            tasks.start_soon(sessionless_call)
            for stream in streams:
                tasks.start_soon(read, stream)
            await has_calls(nodes, case, 5)
            await anyio.to_thread.run_sync(lambda: case.switch(here, enabled=False, reason=WHY))
            began = time.monotonic()
            with anyio.fail_after(SOON_S * BUSY):
                while len(answers) < 5 or len(ended) < 2:
                    await anyio.sleep(0.01)
        took = max(at for at, _ in answers) - began, max(ended) - began
        print(f"\n{kind}: calls ended {took[0] * 1000:.0f} ms, streams {took[1] * 1000:.0f} ms after the answer")
        for _, answer in answers:  # they were under way: nobody knows what has become of them
            error = error_of(answer)
            assert (answer.status_code, error.reason, error.data["outcome"]) == (200, "disabled", "unknown")
            assert WHY in str(error)
        # Nothing new, at either node, in no way.
        for session, url in sleeping(mine):
            assert is_off(await session.http.post(url, json=rpc("ping"), headers=session.headers))
            fresh = {name: value for name, value in session.headers.items() if not name.lower().startswith("mcp-")}
            assert is_off(await session.http.post(url, json=initialize(), headers=fresh))
            assert is_off(await session.http.get(url.removesuffix("/mcp") + "/sse", headers=fresh))
            assert is_off(await sessionless.post("tools/call", at=url, name="whoami", arguments={}))
            assert is_off(await sessionless.post("server/discover", at=url))
        for session in others:
            assert await session.call("echo", text="still here") == "still here"
        await until(lambda: process not in {stdin_of(each.pid) for each in nodes.backends()}, SOON_S * BUSY)
        await until(lambda: not sessions_of(here, case), SOON_S * BUSY)
        if kind in ("tenant", "backend"):  # nothing is kept warm
            left = 2 if kind == "backend" else 0
            await until(lambda: len(processes_of(here, case)) == left, 20, lambda: processes_of(here, case))
        # A stranger hears what it hears of a backend that there is not.
        stranger = {**mine[0].headers, "Authorization": f"Bearer {here.endpoint(ECHO).key}"}
        del stranger["Mcp-Session-Id"]
        url = mine[0].url
        told = [await mine[0].http.post(at, json=initialize(), headers=stranger) for at in (url, url + "x")]
        assert told[0].status_code == 404 or kind in ("key", "principal")
        assert (told[0].status_code, told[0].json()["error"]["data"]) == (404, {"reason": "backend_not_found"})
        # And on again, at the other node.
        await anyio.to_thread.run_sync(lambda: case.switch(nodes.all[1], enabled=True))
        for session in mine:
            await comes_back(session)
        if kind in ("tenant", "backend"):
            await until(lambda: warm_of(here, case) == 2, 20, lambda: processes_of(here, case))


def sessions_of(node: Gateway, case: Case) -> list[Any]:
    """Those of the one who was cut off."""
    found = node.api("GET", f"/tenants/{case.mine.tenant}/sessions")["items"]
    if case.path.endswith("/principals"):
        return [each for each in found if each["subject"] == case.whom["subject"]]
    if "/keys/" in case.path:
        return [each for each in found if case.path.endswith(each["subject"])]
    return [each for each in found if each["backend"] == case.mine.name]


def processes_of(node: Gateway, case: Case) -> list[Any]:
    return list(node.api("GET", f"/tenants/{case.mine.tenant}/processes")["items"])


def warm_of(node: Gateway, case: Case) -> int:
    found = processes_of(node, case)
    return sum(each["backend"] == case.mine.name and each["state"] == "warm" for each in found)


async def comes_back(session: Wire) -> None:
    """Until a session can be opened again."""
    del session.headers["Mcp-Session-Id"], session.headers["MCP-Protocol-Version"]
    with anyio.fail_after(SOON_S * BUSY):
        while (await session.post(initialize())).status_code != 200:
            await anyio.sleep(0.01)
    await session.open()
    assert await session.call("echo", text="again") == "again"
    await session.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_without_redis_it_takes_two_seconds(
    tmp_path: Path, postgres_url: str, postgres_template: str, kind: str
) -> None:
    with new_database(postgres_url, postgres_template) as url, running_nodes(tmp_path, url, 2) as nodes:
        await nodes.all_know_each_other()
        case = a_case(nodes, kind)
        async with connected(nodes, case) as (mine, _):
            nodes.redis.kill()
            await anyio.to_thread.run_sync(lambda: case.switch(nodes.all[0], enabled=False, reason=WHY))
            began = time.monotonic()
            for session in mine:
                with anyio.fail_after(WITHOUT_REDIS_S * 3):
                    while (answer := await session.post(rpc("ping"))).status_code != 403:
                        await anyio.sleep(0.02)
                assert is_off(answer)
            print(f"\n{kind}: at both nodes {time.monotonic() - began:.2f} s after the answer, without Redis")
            await anyio.to_thread.run_sync(nodes.redis.start)


async def test_a_node_that_starts_keeps_nothing_warm_of_a_tenant_that_is_off(nodes: Nodes) -> None:
    case = a_case(nodes, "tenant")
    await until(lambda: warm_of(nodes.all[0], case) == 2, 20)
    case.switch(nodes.all[1], enabled=False)
    await until(lambda: not processes_of(nodes.all[0], case), 20)
    # What the platform changes meanwhile starts nothing either.
    nodes.all[0].api("PATCH", f"{case.path}/backends/{case.mine.name}", {"warm": 2})
    nodes.all[0].api("POST", f"{case.path}/backends/{case.mine.name}:restart", expect=204)
    nodes.all[0].terminate()
    assert await anyio.to_thread.run_sync(nodes.all[0].process.wait, 40) == 0
    await anyio.to_thread.run_sync(nodes.replace, nodes.all[0])
    await nodes.all_know_each_other()
    assert processes_of(nodes.all[0], case) == []
    case.switch(nodes.all[1], enabled=True)
    await until(lambda: warm_of(nodes.all[0], case) == 4, 20, lambda: processes_of(nodes.all[0], case))


@pytest.mark.parametrize("kind", ["tenant", "backend"])
@pytest.mark.parametrize("fields", [{"isolation": "shared"}, {"recovery": "respawn"}], ids=["shared", "respawn"])
async def test_processes_without_state_stop_too(nodes: Nodes, kind: str, fields: dict[str, str]) -> None:
    case, here = a_case(nodes, kind, **fields), nodes.all[0]
    async with connected(nodes, case) as (mine, _):
        sessionless = SessionlessClient(mine[0].http, case.mine, nodes.urls(case.mine))
        for url in nodes.urls(case.mine):
            assert (await sessionless.post("server/discover", at=url)).status_code == 200

        def running() -> list[Any]:
            return [each for each in processes_of(here, case) if each["backend"] == case.mine.name]

        assert running()
        await anyio.to_thread.run_sync(lambda: case.switch(here, enabled=False, reason=WHY))
        await until(lambda: not running(), 20, running)
        for session in mine:
            assert is_off(await session.post(rpc("ping")))
        await anyio.to_thread.run_sync(lambda: case.switch(here, enabled=True))
        for session in mine:
            await comes_back(session)


async def test_a_client_of_the_old_transport_hears_it_on_its_stream(nodes: Nodes) -> None:
    case, here = a_case(nodes, "backend"), nodes.all[0]
    url = nodes.urls(case.mine)[1].removesuffix("/mcp") + "/sse"
    async with httpx2.AsyncClient(timeout=30) as http, http.stream("GET", url, headers=case.mine.headers) as stream:
        assert stream.status_code == 200
        heard = events(stream)
        messages = url.split("/t/")[0] + (await anext(heard)).data
        headers = {**case.mine.headers, "Content-Type": "application/json"}
        assert (await http.post(messages, json=initialize("2024-11-05"), headers=headers)).status_code == 202
        await anext(heard)
        call = rpc("tools/call", 7, {"name": "sleep", "arguments": {"ms": 40_000}})
        assert (await http.post(messages, json=call, headers=headers)).status_code == 202
        await has_calls(nodes, case, 1)
        await anyio.to_thread.run_sync(lambda: case.switch(here, enabled=False, reason=WHY))
        with anyio.fail_after(SOON_S * BUSY):
            said = [event.message async for event in heard]
        assert [(each["id"], each["error"]["data"]["reason"]) for each in said] == [(7, "disabled")]
        assert is_off(await http.post(messages, json=call, headers=headers))
