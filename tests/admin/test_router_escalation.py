"""Nobody comes by a scope that they do not hold: not by a key, not by an issuer, not by changing one."""

import secrets
from datetime import UTC, datetime

import pytest

from app.auth.policy import has_scope
from app.domain import Issuer, Principal, Scope
from app.storage.access.issuers import IssuerRepository
from tests.admin.rig import Rig

SCOPES = [*Scope, "mcp:connect:echo"]
HOLDERS = [["tenant:admin"], ["tenant:admin", "metrics:read"], ["tenant:admin", "platform:admin"], ["platform:admin"]]
WHO = [(tenant, held) for tenant in ("acme", "default") for held in HOLDERS]
SECRET = "s" * 32


def issuer_body(number: int, scopes: list[str]) -> dict[str, object]:
    return {"issuer": f"https://idp{number}", "algorithms": ["HS256"], "secret": SECRET, "max_scopes": scopes}


def may(tenant: str, held: list[str], scope: str) -> bool:
    principal = Principal(tenant, "key", "x", frozenset(held))
    return has_scope(principal, tenant, Scope.TENANT_ADMIN) and has_scope(principal, tenant, scope)


async def issuer_with(rig: Rig, tenant: str, scope: str) -> str:
    """One that a platform administrator made."""
    record = Issuer(
        secrets.token_hex(8), tenant, f"https://{secrets.token_hex(8)}",
        ("HS256",), (), {"subject": "sub", "scopes": "scope", "tenant": None}, frozenset({scope}), datetime.now(UTC),
        b"sealed",
    )  # fmt: skip
    return (await IssuerRepository(rig.admin.backends._database).create(tenant, record)).id


@pytest.mark.parametrize(("tenant", "held"), WHO)
async def test_by_making_a_key(rig, tenant, held):
    mine = await rig.key(tenant, *held)
    for scope in SCOPES:
        for scopes in ([scope], ["mcp:connect", scope]):
            answer = await rig.ask("POST", f"/api/v1/tenants/{tenant}/keys", {"scopes": scopes}, key=mine)
            assert (answer.status_code == 201) is may(tenant, held, scope), scope
            assert answer.status_code in (201, 403, 422)


@pytest.mark.parametrize(("tenant", "held"), WHO)
async def test_by_making_an_issuer(rig, tenant, held):
    mine = await rig.key(tenant, *held)
    for number, scope in enumerate(SCOPES):
        body = issuer_body(number, ["mcp:connect", scope])
        answer = await rig.ask("POST", f"/api/v1/tenants/{tenant}/issuers", body, key=mine)
        assert (answer.status_code == 201) is may(tenant, held, scope), (scope, answer.text)


@pytest.mark.parametrize(("tenant", "held"), WHO)
async def test_by_changing_an_issuer(rig, tenant, held):
    mine = await rig.key(tenant, *held)
    for scope in SCOPES:
        # Two ways: 1. one's own issuer is given more; 2. one with more is given a secret that one knows.
        own, mighty = await issuer_with(rig, tenant, "mcp:connect"), await issuer_with(rig, tenant, scope)
        for issuer, patch in ((own, {"max_scopes": [scope]}), (mighty, {"secret": "x" * 32})):
            answer = await rig.ask("PATCH", f"/api/v1/tenants/{tenant}/issuers/{issuer}", patch, key=mine)
            assert (answer.status_code == 200) is may(tenant, held, scope), (scope, patch, answer.text)


async def test_by_way_of_a_key_that_one_may_make(rig):
    first = await rig.key("acme", "tenant:admin")
    made = await rig.ask("POST", "/api/v1/tenants/acme/keys", {"scopes": ["tenant:admin"]}, key=first)
    second = made.json()["key"]
    for scopes in (["metrics:read"], ["platform:admin"]):
        answer = await rig.ask("POST", "/api/v1/tenants/acme/keys", {"scopes": scopes}, key=second)
        assert answer.status_code in (403, 422)
    for tenant in ("default", "zenith"):
        answer = await rig.ask("POST", f"/api/v1/tenants/{tenant}/keys", {"scopes": ["mcp:connect"]}, key=second)
        assert answer.status_code == 404
    assert (await rig.ask("POST", "/api/v1/keys", {"scopes": ["mcp:connect"]}, key=second)).status_code == 404


async def test_by_changing_limits_or_commands(rig):
    admin = await rig.key("acme", "tenant:admin")
    for path, body in (("", {"limits": {"processes": None}}), ("/backends/echo", {"command": "/bin/sh"})):
        assert (await rig.ask("PATCH", "/api/v1/tenants/acme" + path, body, key=admin)).status_code == 403
    body = {"name": "sh", "command": "/bin/sh"}
    assert (await rig.ask("POST", "/api/v1/tenants/acme/backends", body, key=admin)).status_code == 403
    assert rig.heard == []


async def test_by_repeating_what_somebody_else_did(rig):
    headers = {"Idempotency-Key": "k1"}
    body = {"scopes": ["platform:admin"]}
    assert (await rig.ask("POST", "/api/v1/keys", body, headers=headers)).status_code == 201
    for held in (["tenant:admin"], ["mcp:connect"]):
        key = await rig.key("default", *held)
        assert (await rig.ask("POST", "/api/v1/keys", body, key=key, headers=headers)).status_code == 403
