"""`access`: who may use which tools, prompts and resources, by every way on which they can be seen or used, and how
often."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
import httpx2
import jwt
import pytest

from tests.integration.gateway import Endpoint, Gateway, running_gateway, until
from tests.integration.nodes import Nodes
from tests.integration.servers import python_client
from tests.integration.sessionless_wire import SessionlessClient
from tests.integration.toolboxes import TOOLBOX
from tests.integration.wire import RpcError, Wire, answer, wire

SECRET = "correct horse battery staple, all 32 bytes of it"
ISSUER = "https://people.example"
ANALYSTS = {
    "who": {"group": "analysts"},
    "tools": ["say", "co*"],
    "prompts": ["hello"],
    "resources": ["note://red/*", "red://{id}", "red://1*"],
}
EVERY_TOOL = {"ask", "count", "die", "grow", "say", "slow"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("access") / "data") as gateway:
        yield gateway


class House:
    """A tenant with a toolbox, people of an issuer, and a list of who may use what."""

    def __init__(self, gateway: Gateway, access: Sequence[dict[str, Any]], **fields: Any) -> None:
        self.gateway, self.tenant = gateway, gateway.add_tenant()
        claims = {"groups": "groups", "map": {"analysts": [], "others": []}}
        gateway.api(
            "POST",
            f"/tenants/{self.tenant}/issuers",
            {"issuer": ISSUER, "secret": SECRET, "algorithms": ["HS256"], "audience": ["us"], "claims": claims,
             "max_scopes": ["mcp:connect"]},
        )  # fmt: skip
        self.backend = f"/tenants/{self.tenant}/backends/red"
        self.base = gateway.add_backend(
            self.tenant, "red", TOOLBOX[0], [*TOOLBOX[1:], "red"], access=list(access), **fields
        )

    def token(self, *groups: str, person: str = "alice") -> str:
        claims = {"iss": ISSUER, "sub": person, "aud": "us", "scope": "mcp:connect", "groups": list(groups)}
        now = int(time.time())
        return jwt.encode({**claims, "iat": now, "exp": now + 600}, SECRET, algorithm="HS256")

    def at(self, *groups: str, person: str = "alice", name: str = "red") -> Endpoint:
        """The endpoint, for somebody with these groups."""
        base = self.base if name == "red" else f"{self.gateway.url}/t/{self.tenant}/{name}"
        return Endpoint(self.gateway, self.tenant, name, base, self.token(*groups, person=person))

    def allow(self, *entries: dict[str, Any], path: str = "") -> None:
        self.gateway.api("PATCH", path or self.backend, {"access": list(entries)})

    def toolset(self, *members: str, **fields: Any) -> str:
        """With these members; returns its path."""
        for name in members:
            if name != "red":
                self.gateway.add_backend(self.tenant, name, TOOLBOX[0], [*TOOLBOX[1:], name])
        body = {"name": "all", "members": [{"backend": each} for each in members], **fields}
        self.gateway.api("POST", f"/tenants/{self.tenant}/toolsets", body)
        return f"/tenants/{self.tenant}/toolsets/all"


class Seen:
    """What a session can see and use, by every method."""

    def __init__(self, session: Wire, prefix: str = "") -> None:
        self.session, self.prefix = session, prefix

    async def tools(self) -> set[str]:
        return {each["name"] for each in (await self.session.request("tools/list"))["tools"]}

    async def listed(self, method: str, member: str, key: str) -> set[str]:
        return {each[key] for each in (await self.session.request(method))[member]}

    async def refused(self, method: str, **params: Any) -> RpcError | None:
        try:
            await self.session.request(method, params)
        except RpcError as error:
            return error
        return None

    async def may_call(self, tool: str) -> bool:
        error = await self.refused("tools/call", name=self.prefix + tool, arguments={"text": "x"})
        assert error is None or (error.code == -32602 and error.reason != "tool_withheld"), error
        return error is None

    async def may_prompt(self, name: str) -> bool:
        completed = await self.refused(
            "completion/complete",
            ref={"type": "ref/prompt", "name": self.prefix + name},
            argument={"name": "a", "value": ""},
        )
        got = await self.refused("prompts/get", name=self.prefix + name)
        assert (completed is None) == (got is None)
        return got is None

    async def may_read(self, uri: str) -> bool:
        read = await self.refused("resources/read", uri=uri)
        subscribed = await self.refused("resources/subscribe", uri=uri)
        assert (read is None) == (subscribed is None)
        return read is None


@asynccontextmanager
async def seen(endpoint: Endpoint, prefix: str = "") -> AsyncIterator[Seen]:
    async with wire(endpoint) as session:
        yield Seen(session, prefix)


async def everything_of(seen: Seen) -> None:
    """What ANALYSTS lists, and nothing else."""
    assert await seen.tools() == {seen.prefix + each for each in ("say", "count")}
    assert [await seen.may_call(each) for each in ("say", "count", "slow", "grow")] == [True, True, False, False]
    assert await seen.listed("prompts/list", "prompts", "name") == {seen.prefix + "hello"}
    assert await seen.may_prompt("hello")
    # `ui://red/app` is shown by a tool that may be called.
    assert await seen.listed("resources/list", "resources", "uri") == {"note://red/1"}
    readable = {"note://red/1", "ui://red/app", "red://12"}
    assert {each for each in [*readable, "note://all", "red://2"] if await seen.may_read(each)} == readable
    assert await seen.listed("resources/templates/list", "resourceTemplates", "uriTemplate") == {"red://{id}"}


async def nothing_of(seen: Seen) -> None:
    assert await seen.tools() == set()
    assert not any([await seen.may_call(each) for each in EVERY_TOOL - {"die"}])
    assert await seen.listed("prompts/list", "prompts", "name") == set()
    assert not await seen.may_prompt("hello")
    assert await seen.listed("resources/list", "resources", "uri") == set()
    assert not any([await seen.may_read(each) for each in ("note://red/1", "note://all", "red://12", "ui://red/app")])
    assert await seen.listed("resources/templates/list", "resourceTemplates", "uriTemplate") == set()


@pytest.mark.parametrize("isolation", ["session", "shared"])
async def test_only_what_is_listed_for_them_is_there(gateway: Gateway, isolation: str) -> None:
    house = House(gateway, [ANALYSTS, {"who": {"person": "carol"}, "tools": ["slow"]}], isolation=isolation)
    async with seen(house.at("analysts", "unknown")) as analyst, seen(house.at("others", person="bob")) as other:
        await everything_of(analyst)
        await nothing_of(other)
    async with httpx2.AsyncClient(timeout=30) as http:
        said = await Wire(http, house.at("analysts")).open()
        assert said["instructions"] == "Use red."
        assert "instructions" not in await Wire(http, house.at("others")).open()
    async with seen(house.at(person="carol")) as carol, seen(house.at("analysts", person="carol")) as both:
        assert await carol.tools() == {"slow"}
        assert await both.tools() == {"slow", "say", "count"}
    key = Endpoint(gateway, house.tenant, "red", house.base, gateway.key(house.tenant, ["tenant:admin"]))
    async with seen(key) as administrator:  # the list holds for everybody who calls; their catalogue shows all
        await nothing_of(administrator)
    shown = gateway.api("GET", f"/tenants/{house.tenant}/catalog/red")
    assert {each["name"] for each in shown["definitions"]["tools"]} == EVERY_TOOL


async def test_an_open_session_follows_the_list_and_the_groups_of_its_caller(gateway: Gateway) -> None:
    house = House(gateway, [ANALYSTS])
    async with seen(house.at("analysts")) as alice:
        await everything_of(alice)
        house.allow({"who": {"group": "others"}, "tools": ["*"]})
        await until(lambda: _is_refused(house, alice), 10)
        await nothing_of(alice)
        alice.session.headers["Authorization"] = f"Bearer {house.token('others')}"
        assert await alice.tools() == EVERY_TOOL
        assert await alice.may_call("slow")
        alice.session.headers["Authorization"] = f"Bearer {house.token('analysts')}"
        assert not await alice.may_call("slow")
        house.allow()
        await until(lambda: not _is_refused(house, alice), 10)
        assert await alice.may_call("slow")


def _is_refused(house: House, seen: Seen) -> bool:
    body = {
        "jsonrpc": "2.0",
        "id": time.monotonic_ns(),
        "method": "tools/call",
        "params": {"name": "say", "arguments": {}},
    }
    response = httpx2.post(seen.session.url, json=body, headers=seen.session.headers, timeout=30)
    return "error" in response.json()


async def test_a_session_of_before_there_was_a_list_ends(gateway: Gateway) -> None:
    house = House(gateway, [])
    async with seen(house.at("others")) as bob:
        assert await bob.may_call("slow")
        house.allow(ANALYSTS)

        def ended() -> bool:
            found = gateway.api("GET", f"/tenants/{house.tenant}/sessions")["items"]
            return not [each for each in found if each["backend"] == "red"]

        await until(ended, 10)
        error = await bob.refused("tools/call", name="slow", arguments={})
        assert error is not None
        assert error.data["cause"] == "access_changed"


async def test_the_list_of_a_backend_holds_in_toolsets_and_a_toolset_has_its_own(gateway: Gateway) -> None:
    house = House(gateway, [ANALYSTS])
    path = house.toolset("red", "blue")
    async with seen(house.at("analysts", name="all"), "red_") as alice, seen(house.at(name="all"), "red_") as bob:
        blue = {f"blue_{each}" for each in EVERY_TOOL}
        assert await alice.tools() == {"red_say", "red_count"} | blue
        assert await bob.tools() == blue
        house.allow({"who": {"everyone": True}, "tools": ["*_say", "red_slow"]}, path=path)
        await until(lambda: _is_refused(house, Seen(alice.session)), 10)
        assert await alice.tools() == {"red_say", "blue_say"}
        assert await bob.tools() == {"blue_say"}
        assert [await alice.may_call(each) for each in ("say", "slow", "count")] == [True, False, False]
        assert await alice.listed("prompts/list", "prompts", "name") == set()


async def test_neither_a_search_nor_a_recipe_leads_to_what_is_not_listed(gateway: Gateway) -> None:
    house = House(gateway, [ANALYSTS])
    house.toolset("red", "blue", mode="search", learns=False)
    for name, tool in (("allowed", "red_say"), ("denied", "red_slow")):
        steps = [{"id": "one", "tool": tool, "arguments": {"text": "'x'"}}]
        body = {"name": name, "toolset": "all", "description": f"{name} recipe", "steps": steps}
        gateway.api("POST", f"/tenants/{house.tenant}/recipes", body)
    async with (
        seen(house.at("analysts", name="all")) as alice,
        seen(house.at("others", name="all", person="bob")) as bob,
    ):
        for who, recipes, red in ((alice, {"allowed"}, {"red_say", "red_count"}), (bob, set(), set())):
            found = await who.session.request(
                "tools/call", {"name": "find_tools", "arguments": {"query": "red recipe", "limit": 20}}
            )
            names = {each["name"] for each in found["structuredContent"]["tools"]}
            assert {each for each in names if not each.startswith("blue_")} <= recipes | red
            assert recipes <= names
            for name in ("allowed", "denied"):
                assert await who.may_call(name) == (name in recipes)
            hidden = {"name": "call_tool", "arguments": {"name": "red_slow", "arguments": {}}}
            assert await who.refused("tools/call", **hidden) is not None


@pytest.mark.parametrize("backend", ["red", "all"])
async def test_clients_without_sessions_see_the_same(gateway: Gateway, backend: str) -> None:
    house = House(gateway, [ANALYSTS])
    house.toolset("red")
    prefix = "" if backend == "red" else "red_"
    async with httpx2.AsyncClient(timeout=30) as http:
        for groups, tools in (
            (("analysts",), {"say", "count"}),
            (("others",), set()),
            (("analysts",), {"say", "count"}),
        ):
            endpoint = house.at(*groups, name=backend)
            client = SessionlessClient(http, endpoint, [endpoint.mcp])
            listed = await client.request("tools/list")
            assert {each["name"] for each in listed["tools"]} == {prefix + each for each in tools}
            for tool in ("say", "slow"):
                response = await client.post("tools/call", name=prefix + tool, arguments={"text": "x"})
                assert ("result" in response.json()) == (tool in tools)


async def test_clients_of_http_with_sse_see_the_same(gateway: Gateway) -> None:
    house = House(gateway, [ANALYSTS])
    async with python_client(house.at("analysts"), "sse") as client:
        assert {each.name for each in (await client.list_tools()).tools} == {"say", "count"}


# --- how often


LIMITED = {"who": {"everyone": True}, "tools": ["say"], "limits": {"calls_per_day": 5}}


async def called(session: Wire, tool: str = "say") -> httpx2.Response:
    body = {
        "jsonrpc": "2.0",
        "id": next(session.ids),
        "method": "tools/call",
        "params": {"name": tool, "arguments": {}},
    }
    return await session.post(body)


async def test_a_caller_may_call_so_often_and_hears_what_is_left(gateway: Gateway) -> None:
    house = House(gateway, [LIMITED, {"who": {"person": "alice"}, "tools": ["*"]}])
    async with wire(house.at()) as alice, wire(house.at(person="bob")) as bob:
        left = []
        for _ in range(5):
            response = await called(alice)
            assert response.headers["ratelimit-policy"] == '"calls_per_day";q=5;w=86400'
            left.append(response.headers["ratelimit"].split(";")[1])
        assert left == ["r=4", "r=3", "r=2", "r=1", "r=0"]
        refused = await called(alice)
        assert refused.status_code == 429
        assert refused.headers["ratelimit"].startswith('"calls_per_day";r=0;t=')
        assert int(refused.headers["retry-after"]) > 60 or time.time() % 86400 > 86300
        error = refused.json()["error"]["data"]
        assert (error["reason"], error["limit"]["name"], error["limit"]["of"]) == (
            "rate_limited",
            "calls_per_day",
            "principal",
        )
        assert "ratelimit" not in (await called(alice, "slow")).headers  # of the second entry, which limits nothing
        assert (await called(bob)).status_code == 200  # each caller has their own
        house.allow({**LIMITED, "limits": {"calls_per_day": 6}})
        await until(lambda: not _is_refused(house, Seen(alice)), 10)
        assert (await called(alice)).status_code == 429  # what was used stays used


async def test_what_was_used_stays_used_after_a_restart(tmp_path: Path) -> None:
    with running_gateway(tmp_path / "data") as gateway:
        house = House(gateway, [LIMITED])
        async with wire(house.at()) as alice:
            for _ in range(4):
                answer(await called(alice))
    with running_gateway(tmp_path / "data") as again:
        endpoint = house.at()
        endpoint.base = endpoint.base.replace(gateway.url, again.url)
        async with wire(endpoint) as alice:
            assert (await called(alice)).status_code == 200
            await until(lambda: _is_refused(house, Seen(alice)), 10)


async def test_calls_count_over_all_nodes_and_lists_hold_on_all(own_nodes: Nodes) -> None:
    house = House(own_nodes.all[0], [{**LIMITED, "limits": {"calls_per_day": 500}}])
    passed = 0

    async def use_up(session: Wire) -> None:
        nonlocal passed
        for _ in range(400):
            response = await called(session)
            passed += response.status_code == 200

    async with wire(house.at()) as first, wire(house.at()) as second:
        second.url = own_nodes.urls(house.at())[1]
        del second.headers["Mcp-Session-Id"]
        await second.open()  # at the other node
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use_up, first)
            tasks.start_soon(use_up, second)
        assert 500 <= passed <= 510
        house.allow({"who": {"group": "analysts"}, "tools": ["*"]})
        for session in (first, second):
            await until(partial(_is_refused, house, Seen(session)), 10)
            assert await Seen(session).tools() == set()
        first.headers["Authorization"] = f"Bearer {house.token('analysts')}"
        first.url = second.url  # which forwards it to the node that has the session
        assert await Seen(first).tools() == EVERY_TOOL


# --- what administrators see of it


def explained(house: House, tool: str, who: str, **asked: Any) -> dict[str, Any]:
    query = urlencode({"as": who, "tool": tool, **asked}, doseq=True)
    found: dict[str, Any] = house.gateway.api("GET", f"/tenants/{house.tenant}/access:explain?{query}")
    return found


async def test_a_dry_run_says_what_a_call_would(gateway: Gateway) -> None:
    house = House(gateway, [ANALYSTS, {**LIMITED, "who": {"person": "bob"}}])
    house.toolset("red", access=[{"who": {"person": "alice"}, "tools": ["red_s*"]}])
    for who, groups, tool, at in (
        ("alice", ["analysts"], "say", "red"),
        ("alice", ["analysts"], "slow", "red"),
        ("alice", [], "say", "red"),
        ("bob", [], "say", "red"),
        ("alice", ["analysts"], "red_say", "all"),
        ("alice", ["analysts"], "red_count", "all"),
        ("bob", [], "red_say", "all"),
    ):
        (item,) = explained(house, tool, who, group=groups, at=at)["items"]
        async with seen(house.at(*groups, person=who, name=at)) as caller:
            assert await caller.may_call(tool) == item["allowed"], (who, tool, item["why"])
    assert explained(house, "say", "bob")["items"] == [
        {
            "place": "backends/red",
            "allowed": True,
            "why": "backends/red: entry 2, person bob, lists it",
            "limits": ["backends/red: 5 a day"],
        }
    ]
    (refusal,) = explained(house, "slow", "alice", group=["analysts"])["items"]
    assert refusal["why"] == "backends/red: the entries that name them (1, group analysts) do not list slow"


async def test_it_is_shown_how_often_callers_have_called(gateway: Gateway) -> None:
    house = House(gateway, [LIMITED])
    async with wire(house.at(person="bob")) as bob:
        for _ in range(3):
            answer(await called(bob))
        (row,) = gateway.api("GET", f"/tenants/{house.tenant}/callers")["items"]
    facts = (row["subject"], row["issuer"], row["place"], row["entry"], row["day"], row["per_day"], row["per_minute"])
    assert facts == ("bob", ISSUER, "backends/red", "everyone: say", 3, 5, None)
