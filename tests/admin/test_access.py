"""Every route that the OpenAPI document lists, asked by those who may not: 401, 404 with the same bytes, 403."""

import pytest
from starlette.requests import Request

from app.auth.api_keys import key_id
from app.errors import Unauthenticated
from app.http.dependencies import authenticate
from tests.admin.rig import build_app

DOCUMENT = build_app().openapi()
ROUTES = [(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods]
OF_A_TENANT = [route for route in ROUTES if "{tenant}" in route[1]]
# Collections of the platform exist for everybody; each other path speaks of a tenant, if only of `default`.
OF_DEFAULT = [route for route in ROUTES if "{tenant}" not in route[1] and route[1] != "/api/v1/tenants"]


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


@pytest.mark.parametrize(("method", "path"), OF_A_TENANT)
async def test_another_tenant_is_answered_like_an_unknown_one_byte_for_byte(untouched, method, path):
    theirs = key_id(await untouched.key("acme", "mcp:connect"))
    mine = await untouched.key("zenith", "tenant:admin", "metrics:read")
    other = await untouched.ask(method, address(path, "acme", theirs), {}, key=mine)
    unknown = await untouched.ask(method, address(path, "unknown"), {}, key=mine)
    malformed = await untouched.ask(method, address(path, "UP%00", "%00"), {}, key=mine)
    assert other.status_code == 404
    assert other.content == unknown.content == malformed.content
    assert other.headers == unknown.headers == malformed.headers
    assert untouched.effects.heard == []


@pytest.mark.parametrize(("method", "path"), OF_DEFAULT)
async def test_a_path_without_tenant_speaks_of_the_default_one(untouched, method, path):
    mine = await untouched.key("zenith", "tenant:admin")
    other = await untouched.ask(method, address(path, ""), {}, key=mine)
    unknown = await untouched.ask("GET", "/api/v1/tenants/unknown", key=mine)
    assert (other.status_code, other.content) == (404, unknown.content)


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_in_ones_own_tenant_too_small_a_scope_is_403_and_says_which_is_needed(untouched, method, path):
    tenant = "default" if "{tenant}" not in path else "acme"
    small = await untouched.key(tenant, "mcp:connect", "audit:read", "metrics:read")
    answer = await untouched.ask(method, address(path, tenant), {}, key=small)
    assert answer.status_code == 403
    assert answer.json()["reason"] == "insufficient_scope"
    needed = answer.headers["WWW-Authenticate"]
    assert needed.startswith('Bearer error="insufficient_scope", scope="')
    assert any(scope in needed for scope in ("tenant:read", "tenant:admin", "platform:admin"))


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if route[0] != "GET"])
async def test_reading_is_not_writing(untouched, method, path):
    tenant = "default" if "{tenant}" not in path else "acme"
    reader = await untouched.key(tenant, "tenant:read")
    assert (await untouched.ask(method, address(path, tenant), {}, key=reader)).status_code == 403


@pytest.mark.parametrize("path", ["/api/v1/tenants/acme/backends", "/api/v1/tenants/acme/backends/echo"])
async def test_a_tenant_administrator_reads_backends_and_registers_none(untouched, path):
    admin = await untouched.key("acme", "tenant:admin")
    assert (await untouched.ask("GET", path, key=admin)).status_code == 200
    body = {"name": "sh", "command": "/bin/sh"}
    for method in ("POST", "PATCH", "DELETE"):
        assert (await untouched.ask(method, path, body, key=admin)).status_code in (403, 405)
    assert untouched.effects.heard == []


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
