"""Every route that the OpenAPI document lists, asked by those who may not: 401, 404 with the same bytes, 403."""

from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request

from app.auth.api_keys import key_id
from app.errors import Unauthenticated
from app.http.dependencies import authenticate
from tests.admin.rig import Rig, build_app, open_rig

DOCUMENT = build_app().openapi()
ROUTES = [(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods]
OF_A_TENANT = [route for route in ROUTES if "{tenant}" in route[1]]
# Collections of the platform exist for everybody; each other path speaks of a tenant, if only of `default`.
OF_DEFAULT = [route for route in ROUTES if "{tenant}" not in route[1] and route[1] != "/api/v1/tenants"]


@pytest.fixture(scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """One API for all of this file: nobody here may change anything."""
    async with open_rig(tmp_path_factory.mktemp("access")) as rig:
        yield rig


def address(path: str, tenant: str, key: str | None = "AAAAAAAA") -> str:
    return path.format(tenant=tenant, backend="echo", key=key)


def test_the_document_lists_the_contract():
    assert DOCUMENT["openapi"].startswith("3.1")
    members = {"": {"POST", "GET"}, "/{backend}": {"GET", "PATCH", "DELETE"}}
    keys = {"": {"POST", "GET"}, "/{key}": {"GET", "DELETE"}}
    expected = {("POST", "/tenants"), ("GET", "/tenants")} | {
        (method, "/tenants/{tenant}") for method in ("GET", "PATCH", "DELETE")
    }
    for prefix in ("", "/tenants/{tenant}"):
        expected |= {(method, f"{prefix}/backends{path}") for path, methods in members.items() for method in methods}
        expected |= {(method, f"{prefix}/keys{path}") for path, methods in keys.items() for method in methods}
    assert {(method, path.removeprefix("/api/v1")) for method, path in ROUTES} == expected


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_without_a_credential_every_route_answers_401_before_it_reads_the_body(rig, method, path):
    for tenant in ("acme", "unknown"):
        for content in (None, b"{", b"[" * 10_000):
            answer = await rig.ask(method, address(path, tenant), key="", content=content)
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert answer.headers["Content-Type"] == "application/problem+json"
    wrong = await rig.ask(method, address(path, "acme"), key=rig.admin.key_maker.make().text)
    assert wrong.status_code == 401
    assert wrong.headers["WWW-Authenticate"] == 'Bearer error="invalid_token"'


@pytest.mark.parametrize(("method", "path"), OF_A_TENANT)
async def test_another_tenant_is_answered_like_an_unknown_one_byte_for_byte(rig, method, path):
    theirs = key_id(await rig.key("acme", "mcp:connect"))
    mine = await rig.key("zenith", "tenant:admin", "metrics:read")
    other = await rig.ask(method, address(path, "acme", theirs), {}, key=mine)
    unknown = await rig.ask(method, address(path, "unknown"), {}, key=mine)
    malformed = await rig.ask(method, address(path, "UP%00", "%00"), {}, key=mine)
    assert other.status_code == 404
    assert other.content == unknown.content == malformed.content
    assert other.headers == unknown.headers == malformed.headers
    assert rig.effects.heard == []


@pytest.mark.parametrize(("method", "path"), OF_DEFAULT)
async def test_a_path_without_tenant_speaks_of_the_default_one(rig, method, path):
    mine = await rig.key("zenith", "tenant:admin")
    other = await rig.ask(method, address(path, ""), {}, key=mine)
    unknown = await rig.ask("GET", "/api/v1/tenants/unknown", key=mine)
    assert (other.status_code, other.content) == (404, unknown.content)


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_in_ones_own_tenant_too_small_a_scope_is_403_and_says_which_is_needed(rig, method, path):
    tenant = "default" if "{tenant}" not in path else "acme"
    small = await rig.key(tenant, "mcp:connect", "audit:read", "metrics:read")
    answer = await rig.ask(method, address(path, tenant), {}, key=small)
    assert answer.status_code == 403
    assert answer.json()["reason"] == "insufficient_scope"
    needed = answer.headers["WWW-Authenticate"]
    assert needed.startswith('Bearer error="insufficient_scope", scope="')
    assert any(scope in needed for scope in ("tenant:read", "tenant:admin", "platform:admin"))


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if route[0] != "GET"])
async def test_reading_is_not_writing(rig, method, path):
    tenant = "default" if "{tenant}" not in path else "acme"
    reader = await rig.key(tenant, "tenant:read")
    assert (await rig.ask(method, address(path, tenant), {}, key=reader)).status_code == 403


@pytest.mark.parametrize("path", ["/api/v1/tenants/acme/backends", "/api/v1/tenants/acme/backends/echo"])
async def test_a_tenant_administrator_reads_backends_and_registers_none(rig, path):
    admin = await rig.key("acme", "tenant:admin")
    assert (await rig.ask("GET", path, key=admin)).status_code == 200
    body = {"name": "sh", "command": "/bin/sh"}
    for method in ("POST", "PATCH", "DELETE"):
        assert (await rig.ask(method, path, body, key=admin)).status_code in (403, 405)
    assert rig.effects.heard == []


async def test_a_platform_key_smuggled_into_another_tenant_opens_nothing(rig):
    forged = await rig.key("acme", "platform:admin")
    assert (await rig.ask("GET", "/api/v1/tenants", key=forged)).status_code == 403
    assert (await rig.ask("GET", "/api/v1/tenants/zenith", key=forged)).status_code == 404


async def test_two_authorization_headers_are_no_credential(rig):
    value = f"Bearer {rig.root}".encode()
    scope = {"type": "http", "headers": [(b"authorization", value)] * 2, "app": rig.app}
    with pytest.raises(Unauthenticated):
        await authenticate(Request(scope))
    assert (await authenticate(Request({**scope, "headers": [(b"authorization", value)]}))).tenant == "default"
