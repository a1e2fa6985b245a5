"""With `pin: block` a tool that is not as a person approved it is neither listed, found nor called, however its server
goes about it, by clients of both eras, alone and through toolsets."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest

from tests.integration.gateway import ROOT, Endpoint, Gateway, running_gateway
from tests.integration.sessionless_wire import SessionlessClient
from tests.integration.wire import RpcError, wire

TURNCOAT = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/turncoat.py")]
WHEN_ASKED = 30.0  # for the catalogue to have asked a backend that was changed
TURNED = (
    "poisoned", "number", "digits", "again", "member_twice", "escaped", "case", "nested", "large",
    "many", "hidden", "alike", "reference",
)  # fmt: skip


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("pin-attacks") / "data") as gateway:
        yield gateway


class Turncoat:
    """A backend whose honest tools are approved, alone (`endpoints[0]`), and in toolsets that list and search."""

    def __init__(self, gateway: Gateway, how: str) -> None:
        self.gateway, self.tenant = gateway, gateway.add_tenant()
        gateway.add_backend(self.tenant, "t", TURNCOAT[0], [*TURNCOAT[1:], "honest"], pin="block")
        self.path = f"/tenants/{self.tenant}/backends/t"
        member = {"backend": "t", "prefix": "", "rename": {"evil": "fine"}, "describe": {"turn": "Turns round."}}
        for name, more in (("all", {}), ("found", {"mode": "search", "always": ["e*", "f*", "s*"]})):
            body = {"name": name, "members": [member], **more}
            gateway.api("POST", f"/tenants/{self.tenant}/toolsets", body)
        looked_at = self.entry()["revision"]
        gateway.api("POST", self.path + "/tools:approve", {"tools": ["say", "turn"], "revision": looked_at})
        gateway.api("PATCH", self.path, {"args": [*TURNCOAT[1:], how]})
        key = gateway.key(self.tenant)
        self.endpoints = [
            Endpoint(gateway, self.tenant, name, f"{gateway.url}/t/{self.tenant}/{name}", key)
            for name in ("t", "all", "found")
        ]

    async def asked(self, looked_at: str) -> None:
        """The catalogue has asked it again."""
        with anyio.fail_after(WHEN_ASKED):
            while self.entry()["looked_at"] == looked_at:
                await anyio.sleep(0.05)

    def entry(self) -> dict[str, Any]:
        (entry,) = self.gateway.api("GET", f"/tenants/{self.tenant}/catalog")["items"]
        return dict(entry)


@asynccontextmanager
async def clients(endpoint: Endpoint) -> AsyncIterator[list[Any]]:
    """One of each era."""
    async with wire(endpoint) as session, httpx2.AsyncClient(timeout=30) as http:
        yield [session, SessionlessClient(http, endpoint, [endpoint.mcp])]


async def listed(client: Any) -> str:
    return str(await client.request("tools/list"))


async def everything_found(client: Any) -> str:
    params: dict[str, Any] = {"name": "find_tools", "arguments": {"query": "evil say id_rsa text", "limit": 20}}
    if isinstance(client, SessionlessClient):
        return str(await client.request("tools/call", **params))
    return str(await client.request("tools/call", params))


async def assert_nothing_evil(turncoat: Turncoat, *, say_is_withheld: bool) -> None:
    for endpoint in turncoat.endpoints:
        async with clients(endpoint) as both:
            for client in both:
                assert "EVIL" not in await listed(client)
                for tool in ("evil", "fine", *(("say",) if say_is_withheld else ())):
                    with pytest.raises(RpcError) as refused:
                        await client.call(tool)
                    assert "EVIL" not in str(refused.value)
                if endpoint.name == "found":
                    assert "EVIL" not in await everything_found(client)
                    with pytest.raises(RpcError):
                        await client.call("call_tool", name="evil")


@pytest.mark.parametrize("how", TURNED)
async def test_what_was_not_approved_is_not_there_however_it_is_written(gateway: Gateway, how: str) -> None:
    turncoat = Turncoat(gateway, how)
    looked_at = turncoat.entry()["looked_at"]
    gateway.api("POST", turncoat.path + ":check")
    await turncoat.asked(looked_at)
    await assert_nothing_evil(turncoat, say_is_withheld=how not in ("alike", "many"))


@pytest.mark.parametrize("how", ["two_faced", "late"])
async def test_what_a_session_is_told_later_is_compared_in_that_session(gateway: Gateway, how: str) -> None:
    turncoat = Turncoat(gateway, how)
    for endpoint in turncoat.endpoints:
        async with wire(endpoint) as session:
            assert "Says a text." in await listed(session) + "Says a text." * (endpoint.name == "found")
            assert await session.call("turn") == "called turn"
            with anyio.fail_after(WHEN_ASKED):
                while "EVIL" not in (text := await listed(session)) and "Says a text." in text:
                    await anyio.sleep(0.05)
            assert "EVIL" not in text
            shown_as = "evil" if endpoint.name == "t" else "fine"
            assert (await session.ask(shown_as)).reason == "tool_withheld"
            assert (await session.ask("say")).reason == "tool_withheld"


async def test_hostile_queries_and_thousands_of_tools_hold_nobody_up(gateway: Gateway) -> None:
    turncoat = Turncoat(gateway, "many")
    looked_at = turncoat.entry()["looked_at"]
    gateway.api("POST", turncoat.path + ":check")
    await turncoat.asked(looked_at)
    path = f"/tenants/{turncoat.tenant}/catalog:search"
    for query in ("\0", "\ud7ff\u202e\x1b[31m", "a" * 1000, "*?[(" * 200, "é " * 500, "'; DROP TABLE catalog; --", " "):
        response = gateway.http.get("/api/v1" + path, params={"query": query, "limit": 50})
        assert response.status_code == 200, response.text
    assert gateway.http.get("/api/v1" + path, params={"query": "a" * 1001}).status_code == 422
    shown = gateway.api("GET", turncoat.path + "/tools?limit=100")
    assert len(shown["items"]) == 100
    assert shown["next_cursor"]
