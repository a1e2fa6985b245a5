"""One identity provider of the platform for several tenants: on a real gateway, and on nodes that pass requests on."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest

from tests.integration.gateway import ECHO, Endpoint, Gateway, running_gateway, until
from tests.integration.nodes import Nodes
from tests.integration.roaming import RoamingWire
from tests.integration.servers import python_client, text_of
from tests.integration.test_jwt import SECRET, Idp, holding, post
from tests.integration.test_jwt import token as jwt_of
from tests.integration.test_nodes_agree import SOON_S, answered_everywhere
from tests.integration.wire import Wire

AUDIENCE = "api://gateway"
PING = {"jsonrpc": "2.0", "id": 7, "method": "ping"}

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def idp() -> Iterator[Idp]:
    """One of each test: a name belongs to one issuer of the platform."""
    idp = Idp()
    yield idp
    idp.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("platform") / "data", OUTBOUND_ALLOW="127.0.0.0/8") as gateway:
        yield gateway


def serve(gateway: Gateway, idp: Idp, *tenants: str, **more: Any) -> str:
    """Makes it an issuer of the platform for these tenants, whose groups are called `team-` and their name."""
    entries = {f"team-{name}": name for name in tenants}
    body = {
        "issuer": idp.url, "algorithms": ["RS256"], "jwks_url": idp.url + "/jwks", "audience": [AUDIENCE],
        "max_scopes": ["mcp:connect", "tenant:admin"],
        "tenants": {"claim": "realm_access.roles", "map": entries}, **more,
    }  # fmt: skip
    made = gateway.api("POST", "/issuers", {name: value for name, value in body.items() if value is not ...})
    assert made["warnings"] == []
    return f"/issuers/{made['id']}"


def token(idp: Idp, *tenants: str, algorithm: str = "RS256", **claims: Any) -> str:
    roles = {"roles": [f"team-{name}" for name in tenants] + ["offline_access"]}
    return jwt_of(idp, AUDIENCE, algorithm, realm_access=roles, **claims)


async def test_one_provider_opens_to_each_team_its_own_tenant(gateway: Gateway, idp: Idp) -> None:
    red, blue, third = (gateway.endpoint(ECHO) for _ in range(3))
    serve(gateway, idp, red.tenant, blue.tenant)
    mine = token(idp, red.tenant)
    async with python_client(holding(red, mine), "streamable") as client:
        assert text_of(await client.call_tool("echo", {"text": "hello"})) == "hello"
    for _ in range(2):  # the second time from memory
        assert [post(each.mcp, mine).status_code for each in (red, blue, third)] == [200, 401, 401]
        both = token(idp, red.tenant, blue.tenant)
        assert [post(each.mcp, both).status_code for each in (red, blue, third)] == [200, 200, 401]
        for nobody in (token(idp), token(idp, third.tenant), token(idp, "default")):
            assert {post(each.mcp, nobody).status_code for each in (red, blue, third)} == {401}
    assert httpx2.get(f"{gateway.url}/api/v1/tenants", headers={"Authorization": f"Bearer {mine}"}).status_code == 401


async def test_the_same_person_in_two_tenants_is_two(gateway: Gateway, idp: Idp) -> None:
    red, blue = gateway.endpoint(ECHO), gateway.endpoint(ECHO)
    serve(gateway, idp, red.tenant, blue.tenant)
    both = token(idp, red.tenant, blue.tenant)
    async with httpx2.AsyncClient(timeout=30) as http:
        session = Wire(http, red, key=both)
        await session.open()
        assert (await session.post(PING)).status_code == 200
        session.url = blue.mcp
        assert (await session.post(PING)).status_code == 404
        for path, count in ((red, 1), (blue, 0)):
            listed = gateway.api("GET", f"/tenants/{path.tenant}/sessions")["items"]
            assert [each["subject"] for each in listed] == ["alice"] * count


async def test_a_team_that_is_taken_off_the_list_is_out_at_once_and_the_others_stay(gateway: Gateway, idp: Idp) -> None:
    red, blue = gateway.endpoint(ECHO), gateway.endpoint(ECHO)
    issuer = serve(gateway, idp, red.tenant, blue.tenant)
    async with httpx2.AsyncClient(timeout=30) as http:
        sessions = [Wire(http, each, key=token(idp, each.tenant)) for each in (red, blue)]
        for session in sessions:
            await session.open()
        gateway.api("PATCH", issuer, {"tenants": {"map": {f"team-{red.tenant}": None}}})
        assert [(await each.post(PING)).status_code for each in sessions] == [401, 200]
        again = gateway.api("PATCH", issuer, {"tenants": {"map": {f"team-{red.tenant}": red.tenant}}})
        assert len(again["tenants"]["map"]) == 2
        assert (await sessions[0].post(PING)).status_code == 404  # ended, not only refused
        assert (await sessions[1].post(PING)).status_code == 200
        gateway.api("DELETE", f"/tenants/{red.tenant}", expect=204)
        gateway.add_tenant(red.tenant)
        assert post(red.mcp, token(idp, red.tenant)).status_code == 401
        gateway.api("DELETE", issuer, expect=204)
        assert (await sessions[1].post(PING)).status_code == 401


async def test_a_value_makes_an_administrator_of_its_own_tenant_only(gateway: Gateway, idp: Idp) -> None:
    red, blue = gateway.endpoint(ECHO), gateway.endpoint(ECHO)
    issuer = serve(gateway, idp, red.tenant, blue.tenant)
    boss = {"team-boss": {"tenant": red.tenant, "scopes": ["tenant:admin"]}}
    gateway.api("PATCH", issuer, {"tenants": {"map": boss}})
    admin = token(idp, "boss", blue.tenant)
    here, there = f"/tenants/{red.tenant}", f"/tenants/{blue.tenant}"
    gateway.api("POST", f"{here}/keys", {"scopes": ["mcp:connect"]}, key=admin, expect=201)
    gateway.api("GET", f"{there}/keys", key=admin, expect=403)
    gateway.api("GET", "/tenants", key=admin, expect=401)
    seen = gateway.api("GET", f"{here}{issuer}", key=admin)
    assert blue.tenant not in str(seen)
    gateway.api("PATCH", f"{here}{issuer}", {"audience": ["x"]}, key=admin, expect=403)
    gateway.api("DELETE", f"{here}{issuer}", key=admin, expect=403)
    own = {"issuer": idp.url, "algorithms": ["HS256"], "secret": SECRET, "audience": [AUDIENCE]}
    gateway.api("POST", f"{here}/issuers", own, key=admin, expect=409)
    checked = gateway.api("POST", f"{here}{issuer}:check", {"token": admin}, key=admin, expect=200)
    assert (checked["ok"], checked["granted_scopes"]) == (True, ["mcp:connect", "tenant:admin"])


async def test_the_metadata_name_it_where_it_opens_something(gateway: Gateway, idp: Idp) -> None:
    red, blue = gateway.endpoint(ECHO), gateway.endpoint(ECHO)
    serve(gateway, idp, red.tenant)
    urls = [f"{gateway.url}/.well-known/oauth-protected-resource/t/{each.tenant}/b/mcp" for each in (red, blue)]
    assert [httpx2.get(url).json().get("authorization_servers") for url in urls] == [[idp.url], None]


# --- several nodes


@asynccontextmanager
async def at_each_node(nodes: Nodes, endpoint: Endpoint, key: str) -> AsyncIterator[list[RoamingWire]]:
    """A session at each node, whose requests then go to any of them."""
    async with httpx2.AsyncClient(timeout=30) as http:
        sessions = []
        for url in nodes.urls(endpoint):
            session = RoamingWire(http, holding(endpoint, key), [url])
            await session.open()
            session.nodes = nodes.urls(endpoint)
            sessions.append(session)
        yield sessions


async def test_a_change_of_the_list_counts_at_every_node_within_a_second_also_for_what_is_passed_on(
    nodes: Nodes, idp: Idp
) -> None:
    node = nodes.all[0]
    red, blue = node.endpoint(ECHO), node.endpoint(ECHO)
    secret = {"algorithms": ["HS256"], "secret": SECRET, "jwks_url": ...}
    issuer = serve(node, idp, red.tenant, blue.tenant, **secret)
    keys = [token(idp, each.tenant, algorithm="HS256") for each in (red, blue)]
    async with AsyncExitStack() as stack:
        mine, theirs = [
            await stack.enter_async_context(at_each_node(nodes, each, key))
            for each, key in zip((red, blue), keys, strict=True)
        ]
        for session in [*mine, *theirs] * 3:  # each by way of others as well
            assert (await session.post(PING)).status_code == 200
        for url in nodes.urls(blue):
            assert post(url, keys[0]).status_code == 401
        nodes.all[1].api("PATCH", issuer, {"tenants": {"map": {f"team-{red.tenant}": None}}})
        assert await answered_everywhere(mine, 401, at=nodes) < SOON_S
        for session in [*mine, *theirs] * 3:
            assert (await session.post(PING)).status_code == (401 if session in mine else 200)
        for url in nodes.urls(red):
            assert post(url, keys[0]).status_code == 401
        await until(lambda: not node.api("GET", f"/tenants/{red.tenant}/sessions")["items"], 10)
        began = time.monotonic()
        nodes.all[1].api("DELETE", issuer, expect=204)
        assert await answered_everywhere(theirs, 401, at=nodes) < SOON_S
        await until(lambda: not node.api("GET", f"/tenants/{blue.tenant}/sessions")["items"], 10)
        print(f"\nover everywhere after {time.monotonic() - began:.2f} s")
