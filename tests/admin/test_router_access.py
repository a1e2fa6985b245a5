"""Every route that the OpenAPI document lists, asked by those who may not: 401, 404 with the same bytes, 403."""

import re
from datetime import UTC, datetime

import pytest
from starlette.requests import Request

from app.auth.api_keys import key_id
from app.auth.policy import has_scope
from app.domain import Issuer, Principal, Scope
from app.domain.resources.clients import CLIENTS, OAuthClient
from app.domain.resources.guides import GUIDES
from app.errors import StorageUnavailable, Unauthenticated
from app.http.dependencies import authenticate
from app.storage.access.issuers import IssuerRepository
from app.storage.engine import Database
from tests.admin.resources.test_connections import allow, sign_people_in
from tests.admin.rig import Rig, shared_api
from tests.sweeps import over

DOCUMENT = shared_api().openapi()
ROUTES = [(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods]
OF_A_TENANT = [route for route in ROUTES if "{tenant}" in route[1]]
OF_AN_OBJECT = [route for route in OF_A_TENANT if "{" in route[1].replace("{tenant}", "")]
# These exist for everybody and for no tenant; each other path speaks of a tenant, if only of `default`.
OF_THE_PLATFORM = {f"/api/v1/{name}" for name in ("tenants", "nodes", "use", "audit", "activity", "problems")}
# Who may ask needs no scope, and speaks of the caller.
OF_THE_CALLER = {"/api/v1/me", "/api/v1/tenants/{tenant}/me"}
# Everybody has some of their own; what is another's is not found (tests/admin/resources/test_connections.py).
OF_EVERYBODY = {
    f"{start}/{name}"
    for start in ("/api/v1", "/api/v1/tenants/{tenant}")
    for name in ("connections", "connections/{connection}")
}
OF_DEFAULT = [
    route for route in ROUTES if "{tenant}" not in route[1] and route[1] not in OF_THE_PLATFORM | OF_THE_CALLER
]

# One that could exist, for each kind of object.
UNKNOWN = {
    "backend": "unknown",
    "toolset": "unknown",
    "guide": "unknown",
    "recipe": "unknown",
    "key": "AAAAAAAA",
    "issuer": "0123456789abcdef",
    "session": "0123456789ab",
    "process": "0123456789abcdef",
    "inspection": "0123456789abcdef",
    "client": "unknown",
    "connection": "0123456789abcdef",
}


def address(path: str, tenant: str, **objects: str) -> str:
    return path.format(**{**UNKNOWN, **objects}, tenant=tenant)


def _away(*_: object, **__: object) -> None:
    raise StorageUnavailable


def tenant_of(path: str) -> str:
    return "acme" if "{tenant}" in path else "default"


async def one_of_each(rig: Rig, tenant: str) -> dict[str, str]:
    """Objects that the tenant really has."""
    issuer = Issuer("fedcba9876543210", tenant, "https://idp", ("HS256",), (), {}, frozenset(), datetime.now(UTC), b"x")
    if not await IssuerRepository(rig.admin.backends._database).list(tenant):
        await IssuerRepository(rig.admin.backends._database).create(tenant, issuer)
        rig.node.add_session(tenant, "a1b2c3d4e5f6")
        rig.node.add_process(tenant, "a1b2c3d4e5f6a7b8")
        await sign_people_in(rig, tenant)
        await allow(rig, tenant=tenant, id="fedcba9876543210")
        desk = OAuthClient(name="desk", redirect_uris=("https://desk.example/",), changed_at=issuer.created_at)
        await rig.admin.stored.of(CLIENTS).create(tenant, desk)
    key = key_id(await rig.key(tenant, "mcp:connect")) or ""
    running = {"session": "a1b2c3d4e5f6", "process": "a1b2c3d4e5f6a7b8"}
    return {
        "backend": "echo",
        "toolset": "all",
        "guide": "style",
        "recipe": "twice",
        "issuer": issuer.id,
        "client": "desk",
        "connection": "fedcba9876543210",
        **running,
        "key": key,
    }


def test_each_kind_of_object_in_a_path_is_known_here():
    assert {name for _, path in ROUTES for name in re.findall(r"{(\w+)}", path)} == {"tenant", *UNKNOWN}


@over(("method", "path"), ROUTES)
async def test_without_a_credential_every_route_answers_401_before_it_reads_the_body(untouched, method, path):
    for tenant in ("acme", "unknown"):
        for content in (None, b"{", b"[" * 10_000):
            answer = await untouched.ask(method, address(path, tenant), key="", content=content)
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert answer.headers["Content-Type"] == "application/problem+json"
    wrong = await untouched.ask(method, address(path, "acme"), key=untouched.admin.key_maker.make().text)
    assert wrong.status_code == 401
    assert wrong.headers["WWW-Authenticate"] == 'Bearer error="invalid_token"'


@over(("method", "path"), OF_A_TENANT)
async def test_another_tenant_is_answered_like_an_unknown_one_byte_for_byte(untouched, method, path):
    theirs = await one_of_each(untouched, "acme")
    mine = await untouched.key("zenith", "tenant:admin", "metrics:read")
    other = await untouched.ask(method, address(path, "acme", **theirs), {}, key=mine)
    unknown = await untouched.ask(method, address(path, "unknown"), {}, key=mine)
    malformed = await untouched.ask(method, address(path, "UP%00", **dict.fromkeys(UNKNOWN, "%00")), {}, key=mine)
    assert other.status_code == 404
    assert other.content == unknown.content == malformed.content
    assert other.headers == unknown.headers == malformed.headers
    assert untouched.heard == []


@over(("method", "path"), OF_AN_OBJECT)
async def test_an_object_of_another_tenant_is_not_found_under_ones_own_byte_for_byte(untouched, method, path):
    theirs = await one_of_each(untouched, "acme")
    if await _has_echo(untouched):
        await untouched.admin.backends.delete("zenith", "echo")
        await untouched.admin.toolsets.delete("zenith", "all")
        await untouched.admin.stored.of(GUIDES).delete("zenith", "style")
    for key in (untouched.root, await untouched.key("zenith", "tenant:admin")):
        other = await untouched.ask(method, address(path, "zenith", **theirs), {}, key=key)
        unknown = await untouched.ask(method, address(path, "zenith"), {}, key=key)
        odd = await untouched.ask(method, address(path, "zenith", **dict.fromkeys(UNKNOWN, "%00")), {}, key=key)
        assert other.status_code == 404 or (key != untouched.root and other.status_code == 403)
        assert other.content == unknown.content == odd.content
        assert other.headers == unknown.headers == odd.headers
    assert untouched.heard == []


async def _has_echo(rig: Rig) -> bool:
    return bool(await rig.admin.backends.list("zenith", limit=1))


@over(("method", "path"), OF_DEFAULT)
async def test_a_path_without_tenant_speaks_of_the_default_one(untouched, method, path):
    mine = await untouched.key("zenith", "tenant:admin")
    other = await untouched.ask(method, address(path, ""), {}, key=mine)
    unknown = await untouched.ask("GET", "/api/v1/tenants/unknown", key=mine)
    assert (other.status_code, other.content) == (404, unknown.content)


@over(("method", "path"), [route for route in ROUTES if route[1] not in OF_THE_CALLER | OF_EVERYBODY])
async def test_in_ones_own_tenant_too_small_a_scope_is_403_and_says_which_is_needed(untouched, method, path):
    tenant = tenant_of(path)
    answer = await untouched.ask(method, address(path, tenant), {}, key=await untouched.key(tenant, "mcp:connect"))
    assert answer.status_code == 403
    assert answer.json()["reason"] == "insufficient_scope"
    found = re.fullmatch('Bearer error="insufficient_scope", scope="(\\S+)"', answer.headers["WWW-Authenticate"])
    assert found is not None
    needed = found[1]
    # The scope that is named is the one that helps, and no other that does not imply it.
    for scope in Scope:
        held = Principal(tenant, "key", "x", frozenset({scope}))
        key = await untouched.key(tenant, scope)
        refused = (await untouched.ask(method, address(path, tenant), {}, key=key)).status_code == 403
        assert refused is not has_scope(held, tenant, needed), scope


@over(("method", "path"), [route for route in ROUTES if route[0] != "GET" and route[1] not in OF_EVERYBODY])
async def test_reading_is_not_writing(untouched, method, path):
    tenant = tenant_of(path)
    reader = await untouched.key(tenant, "tenant:read", "audit:read", "metrics:read")
    assert (await untouched.ask(method, address(path, tenant), {}, key=reader)).status_code == 403


@over(("method", "path"), [route for route in ROUTES if route[0] != "GET"])
async def test_a_database_that_is_away_is_503_and_nothing_happens(untouched, method, path, monkeypatch):
    key = await untouched.key(tenant_of(path), "mcp:connect")
    for credential in (untouched.root, key):
        if credential == untouched.root:
            await untouched.ask("GET", "/api/v1/nodes")  # who is known already gets past the door
        with monkeypatch.context() as patch:
            for way in ("read", "write", "rows", "row"):
                patch.setattr(Database, way, _away)
            answer = await untouched.ask(method, address(path, tenant_of(path)), {"name": "x"}, key=credential)
        assert answer.status_code in ((503, 422) if credential == untouched.root else (503,))
        if answer.status_code == 503:
            assert answer.json()["reason"] == "storage_unavailable"
            assert int(answer.headers["Retry-After"]) >= 1
    assert untouched.heard == []


@pytest.mark.parametrize("path", ["/api/v1/tenants/acme/backends", "/api/v1/tenants/acme/backends/echo"])
async def test_a_tenant_administrator_reads_backends_and_registers_none(untouched, path):
    admin = await untouched.key("acme", "tenant:admin")
    assert (await untouched.ask("GET", path, key=admin)).status_code == 200
    body = {"command": "/bin/sh"}
    for method, sent in (("POST", {"name": "sh", **body}), ("PATCH", body), ("DELETE", None)):
        assert (await untouched.ask(method, path, sent, key=admin)).status_code in (403, 405)
    assert untouched.heard == []


async def test_a_platform_key_smuggled_into_another_tenant_opens_nothing(untouched):
    forged = await untouched.key("acme", "platform:admin")
    assert (await untouched.ask("GET", "/api/v1/tenants", key=forged)).status_code == 403
    assert (await untouched.ask("GET", "/api/v1/tenants/zenith", key=forged)).status_code == 404


async def test_two_authorization_headers_are_no_credential(untouched):
    value = f"Bearer {untouched.root}".encode()
    scope = {"type": "http", "headers": [(b"authorization", value)] * 2, "app": untouched.app}
    with pytest.raises(Unauthenticated):
        await authenticate(Request(scope))
    assert (await authenticate(Request({**scope, "headers": [(b"authorization", value)]}))).tenant == "default"
