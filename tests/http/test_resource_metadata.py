"""What strangers learn about a tenant's issuers, and how often the database is asked for it."""

from collections.abc import Sequence

import anyio
import httpx2
import pytest
from prometheus_client import CollectorRegistry, Counter
from starlette.types import Receive, Scope, Send

from app.errors import Forbidden, RateLimited, StorageUnavailable, Unauthenticated
from app.http import resource_metadata
from app.http.dependencies import BASE_URL
from app.http.resource_metadata import PREFIX, REMEMBER_S, Remembered, challenge
from app.limits.caller_rates import RateLimiter
from app.node.application import build_api


class Database:
    """Knows the issuer of one tenant, and which were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_away = False

    async def issuers(self, tenant: str) -> Sequence[str]:
        self.asked.append(tenant)
        await anyio.lowlevel.checkpoint()
        if self.is_away:
            raise StorageUnavailable
        return {"acme": ["https://idp.example"], "own": ["/oauth/own", "https://idp.example"]}.get(tenant, [])


class Rig:
    """The memory of one node, by a clock that stands still."""

    def __init__(self) -> None:
        self.database, self.now = Database(), 1000.0
        counter = Counter("limited", "", ["limit"], registry=CollectorRegistry())
        limiter = RateLimiter("resource_metadata", counter, lambda: self.now)
        self.remembered = Remembered(self.database.issuers, limiter, lambda: self.now)


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_however_many_ask_the_database_is_asked_once_in_a_while(rig: Rig) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(rig.remembered.of, "acme", f"192.0.2.{number}")
    assert await rig.remembered.of("acme", "192.0.2.1") == ["https://idp.example"]
    assert rig.database.asked == ["acme"]
    rig.now += REMEMBER_S
    await rig.remembered.of("acme", "192.0.2.1")
    assert rig.database.asked == ["acme", "acme"]


async def test_many_that_ask_for_one_tenant_at_once_cost_their_address_one_question(rig: Rig) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(300):
            tasks.start_soon(rig.remembered.of, "acme", "192.0.2.1")
    for number in range(99):
        await rig.remembered.of(f"made-up-{number}", "192.0.2.1")


async def test_who_asks_for_too_many_tenants_is_slowed_and_nobody_else_nor_for_what_is_known(rig: Rig) -> None:
    await rig.remembered.of("acme", "192.0.2.2")
    for number in range(100):
        await rig.remembered.of(f"made-up-{number}", "192.0.2.1")
    with pytest.raises(RateLimited):
        await rig.remembered.of("one-more", "192.0.2.1")
    assert len(rig.database.asked) == 101
    assert await rig.remembered.of("acme", "192.0.2.1") == ["https://idp.example"]
    assert await rig.remembered.of("another", "192.0.2.2") == []


async def test_so_many_tenants_are_remembered(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_metadata, "MAX_REMEMBERED", 3)
    for number in range(5):
        await rig.remembered.of(f"tenant-{number}", "192.0.2.1")
    assert list(rig.remembered._known) == ["tenant-2", "tenant-3", "tenant-4"]


async def test_a_failure_is_not_remembered(rig: Rig) -> None:
    rig.database.is_away = True
    with pytest.raises(StorageUnavailable):
        await rig.remembered.of("acme", "192.0.2.1")
    rig.database.is_away = False
    assert await rig.remembered.of("acme", "192.0.2.1") == ["https://idp.example"]


BASE, HERE = "https://gw.example.com", "/t/acme/echo/mcp"
WHERE = b'resource_metadata="https://gw.example.com/.well-known/oauth-protected-resource/t/acme/echo/mcp"'


@pytest.mark.parametrize(
    ("was_sent", "can_sign_in", "header"),
    [(True, True, b'Bearer error="invalid_token", %b, scope="mcp:connect"' % WHERE),
     (False, True, b'Bearer %b, scope="mcp:connect"' % WHERE),
     (True, False, b'Bearer error="invalid_token", error_description="the key is not valid", scope="mcp:connect"'),
     (False, False, b'Bearer scope="mcp:connect"')],
)  # fmt: skip
def test_a_refusal_leads_to_an_issuer_where_there_is_one(was_sent: bool, can_sign_in: bool, header: bytes) -> None:
    assert challenge(Unauthenticated(token_was_sent=was_sent), BASE, HERE, can_sign_in=can_sign_in) == header


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/t/acme/echo/mcp/", "/t/acme/echo/mcp/"),
        ("/t/acme/echo/sse", "/t/acme/echo/sse"),
        ("/t/acme/echo/messages", "/t/acme/echo/sse"),
        ("/t/acme/messages/mcp", "/t/acme/messages/mcp"),
        ('/t/acme/a"b/mcp', ""),
        ("/t/acme/echo/mcp\r\nx: y", ""),
        ("/t/acme/echo", ""),
    ],
)
def test_it_leads_to_the_metadata_of_the_address_as_it_was_spelled(path: str, named: str) -> None:
    header = challenge(Unauthenticated(token_was_sent=False), BASE, path, can_sign_in=True)
    where = f'resource_metadata="{BASE}/.well-known/oauth-protected-resource{named}", '
    assert header == f'Bearer {where if named else ""}scope="mcp:connect"'.encode()


async def test_whether_there_is_an_issuer_is_never_a_reason_to_fail(rig: Rig) -> None:
    assert await rig.remembered.has_any("acme", "192.0.2.1")
    assert not await rig.remembered.has_any("unknown", "192.0.2.1")
    assert not await rig.remembered.has_any('a"b', "192.0.2.1")
    assert rig.database.asked == ["acme", "unknown"]
    rig.database.is_away = True
    assert not await rig.remembered.has_any("another", "192.0.2.1")


def test_a_token_without_the_scope_is_told_which_it_needs() -> None:
    header = challenge(Forbidden(["mcp:connect"]), BASE, HERE, can_sign_in=True)
    assert header == b'Bearer error="insufficient_scope", scope="mcp:connect", %b' % WHERE


# --- the route


async def fetched(rig: Rig, path: str, base_url: str = BASE) -> httpx2.Response:
    """What is at this path below PREFIX, which begins behind it."""
    api = build_api()
    api.state.authorization_servers = rig.remembered

    async def below(scope: Scope, receive: Receive, send: Send) -> None:
        bare = scope["path"].rstrip("/") or "/"  # as `Rest` passes it on
        await api({**scope, "path": bare, BASE_URL: base_url}, receive, send)

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(below), base_url=BASE) as http:
        return await http.get(PREFIX + path)


@pytest.mark.parametrize("spelling", ["mcp", "mcp/", "sse", "sse/"])
async def test_a_resource_is_spelled_as_it_was_asked_for(rig: Rig, spelling: str) -> None:
    answer = await fetched(rig, f"/t/acme/echo/{spelling}")
    assert answer.status_code == 200
    assert answer.json() == {
        "resource": f"{BASE}/t/acme/echo/{spelling}",
        "authorization_servers": ["https://idp.example"],
        "scopes_supported": ["mcp:connect"],
        "bearer_methods_supported": ["header"],
        "resource_name": "echo of acme",
    }
    assert (answer.headers["access-control-allow-origin"], answer.headers["cache-control"]) == ("*", "no-store")


@pytest.mark.parametrize("inserted", ["/gate/way", ""])
async def test_the_path_of_the_url_may_be_inserted(rig: Rig, inserted: str) -> None:
    answer = await fetched(rig, f"{inserted}/t/own/echo/mcp", BASE + "/gate/way")
    found = answer.json()
    assert found["resource"] == f"{BASE}/gate/way/t/own/echo/mcp"
    assert found["authorization_servers"] == [f"{BASE}/gate/way/oauth/own", "https://idp.example"]


async def test_a_tenant_without_any_is_answered_like_one_that_does_not_exist(rig: Rig) -> None:
    answer = await fetched(rig, "/t/nobody/echo/mcp")
    assert (answer.status_code, "authorization_servers" in answer.json()) == (200, False)


@pytest.mark.parametrize(
    "path",
    [
        "", "/", "/t/acme/echo", "/t/acme/echo/messages", "/t/acme/echo/mcp/more", "/t/acme/echo/mcp//",
        "/t/UP/echo/mcp", "/t/acme/a%22b/mcp", "/t/ac%0d%0ame/echo/mcp", "/t/acme/%65cho/mcp",
        "/gate/way/t/acme/echo/mcp", "/oauth/acme",
    ],
)  # fmt: skip
async def test_other_forms_are_nothing_and_ask_nobody(rig: Rig, path: str) -> None:
    assert (await fetched(rig, path)).status_code == 404
    assert rig.database.asked == []
