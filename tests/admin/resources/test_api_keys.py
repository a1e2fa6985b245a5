"""…/keys"""

from datetime import UTC, datetime, timedelta

import pytest

from app.auth.api_keys import key_id
from app.cluster.node_status.views import AddressUse
from app.domain import KEY_ISSUER
from app.errors import Unauthenticated

PATH = "/api/v1/tenants/acme/keys"
NOWHERE: dict[str, list[str]] = {"used_from": [], "silent_nodes": []}
SCOPES = ["mcp:connect", "mcp:connect:echo", "tenant:read", "tenant:admin", "audit:read", "metrics:read",
          "platform:admin"]  # fmt: skip


async def test_a_new_key_is_shown_once_works_and_expires_after_ninety_days(rig):
    answer = await rig.ask("POST", PATH, {"name": "bench", "scopes": ["tenant:read", "mcp:connect"]})
    assert answer.status_code == 201
    assert answer.headers["Cache-Control"] == "no-store"
    shown = answer.json()
    key = shown.pop("key")
    assert shown["id"] == key_id(key)
    assert (shown["tenant"], shown["name"], shown["scopes"]) == ("acme", "bench", ["mcp:connect", "tenant:read"])
    life = datetime.fromisoformat(shown["expires_at"]) - datetime.fromisoformat(shown["created_at"])
    assert life == timedelta(days=90)
    assert (await rig.ask("GET", answer.headers["Location"], key=key)).json() == shown | NOWHERE
    listed = (await rig.ask("GET", PATH, key=key)).json()["items"]
    assert shown in listed
    assert key not in str(listed)


async def test_revoked_is_refused_at_once_stays_in_the_list_and_the_node_knows(rig):
    key = await rig.key("acme", "tenant:read")
    path = f"{PATH}/{key_id(key)}"
    assert (await rig.ask("GET", path, key=key)).json()["revoked_at"] is None
    for _ in range(2):
        assert (await rig.ask("DELETE", path)).status_code == 204
    assert (await rig.ask("GET", path, key=key)).status_code == 401
    with pytest.raises(Unauthenticated):
        await rig.admin.authenticator.authenticate(f"Bearer {key}".encode())
    assert (await rig.ask("GET", path)).json()["revoked_at"] is not None
    assert set(rig.heard) == {("principal", "acme", "key", key_id(key))}


@pytest.mark.parametrize(
    ("tenant", "held", "granted"),
    [
        ("acme", ["tenant:admin"], SCOPES[:5]),
        ("acme", ["tenant:admin", "metrics:read"], SCOPES[:6]),
        ("default", ["tenant:admin"], SCOPES[:5]),
        ("default", ["platform:admin"], SCOPES),
    ],
)
async def test_nobody_grants_what_they_do_not_hold(untouched, tenant, held, granted):
    granter = await untouched.key(tenant, *held)
    for scope in SCOPES:
        answer = await untouched.ask("POST", f"/api/v1/tenants/{tenant}/keys", {"scopes": [scope]}, key=granter)
        refused = 422 if scope == "platform:admin" and tenant != "default" else 403
        assert answer.status_code == (201 if scope in granted else refused), scope
    mixed = await untouched.ask("POST", f"/api/v1/tenants/{tenant}/keys", {"scopes": SCOPES}, key=granter)
    assert mixed.status_code == (201 if granted == SCOPES else 422 if tenant != "default" else 403)


async def test_a_platform_administrator_makes_no_platform_keys_elsewhere(rig):
    answer = await rig.ask("POST", PATH, {"scopes": ["platform:admin"]})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "#/scopes"
    assert (await rig.ask("POST", "/api/v1/keys", {"scopes": ["platform:admin"]})).status_code == 201


async def test_a_tenant_administrator_of_default_cannot_revoke_a_platform_key(rig):
    admin = await rig.key("default", "tenant:admin")
    path = f"/api/v1/keys/{key_id(rig.root)}"
    assert (await rig.ask("DELETE", path, key=admin)).status_code == 403
    assert (await rig.ask("GET", path)).status_code == 200


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "#/scopes"),
        ({"scopes": []}, "#/scopes"),
        ({"scopes": ["mcp:*"]}, "#/scopes/0"),
        ({"scopes": ["mcp:connect:UP"]}, "#/scopes/0"),
        ({"scopes": ["tenant:read"] * 33}, "#/scopes"),
        ({"scopes": "tenant:read"}, "#/scopes"),
        ({"scopes": ["tenant:read"], "name": "a\nb"}, "#/name"),
        ({"scopes": ["tenant:read"], "name": "a" * 201}, "#/name"),
        ({"scopes": ["tenant:read"], "expires_at": "2020-01-01T00:00:00Z"}, "#/expires_at"),
        ({"scopes": ["tenant:read"], "expires_at": "2030-01-01T00:00:00"}, "#/expires_at"),
        ({"scopes": ["tenant:read"], "expires_at": "9999-12-31T23:59:59-12:00"}, "#/expires_at"),
        ({"scopes": ["tenant:read"], "expires_at": "0001-01-01T00:00:00+14:00"}, "#/expires_at"),
        ({"scopes": ["tenant:read"], "expires_at": 1893456000}, "#/expires_at"),
        ({"scopes": ["tenant:read"], "tenant": "zenith"}, "#/tenant"),
    ],
)
async def test_a_body_that_does_not_fit_is_422_and_says_where(untouched, body, pointer):
    answer = await untouched.ask("POST", PATH, body)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


async def test_an_expiry_can_be_chosen_or_left_away(rig):
    soon = datetime.now(UTC) + timedelta(days=1)
    for text, expected in ((soon.isoformat(), soon), (None, None)):
        answer = (await rig.ask("POST", PATH, {"scopes": ["tenant:read"], "expires_at": text})).json()
        assert (answer["expires_at"] and datetime.fromisoformat(answer["expires_at"])) == expected


async def test_last_use_is_shown_once_it_is_written_down(rig):
    key = await rig.key("acme", "tenant:read")
    await rig.ask("GET", PATH, key=key)
    await rig.admin.authenticator.flush_last_used()
    answer = (await rig.ask("GET", f"{PATH}/{key_id(key)}")).json()
    assert datetime.now(UTC) - datetime.fromisoformat(answer["last_used_at"]) < timedelta(minutes=1)


async def test_from_where_a_key_was_used_is_shown_the_last_use_first_and_changes_no_tag(rig):
    key, other = await rig.key("acme", "tenant:read"), await rig.key("acme", "mcp:connect")
    path, holder = f"{PATH}/{key_id(key)}", ("acme", KEY_ISSUER, key_id(key) or "")
    tag = (await rig.ask("GET", path, key=key)).headers["ETag"]
    began = datetime(2026, 1, 1, tzinfo=UTC)
    rig.node.came[holder] = [
        AddressUse(f"10.0.{number // 250}.{number % 250}", number, began, began + timedelta(seconds=number), "n1")
        for number in range(300)
    ]
    rig.node.silent = ["n2"]
    answer = await rig.ask("GET", path, key=key)
    shown = answer.json()
    assert answer.headers["ETag"] == tag
    assert shown["silent_nodes"] == ["n2"]
    assert [use["requests"] for use in shown["used_from"]] == list(range(299, 99, -1))
    assert shown["used_from"][0] == {
        "address": "10.0.1.49", "requests": 299, "first_at": "2026-01-01T00:00:00Z", "last_at": "2026-01-01T00:04:59Z",
        "node": "n1",
    }  # fmt: skip
    assert (await rig.ask("GET", f"{PATH}/{key_id(other)}", key=key)).json()["used_from"] == []
    assert all("used_from" not in item for item in (await rig.ask("GET", PATH, key=key)).json()["items"])
    assert (await rig.ask("GET", path, key=other)).status_code == 403


async def test_a_request_is_noted_with_the_address_that_it_came_from(rig):
    key = await rig.key("acme", "tenant:read")
    for _ in range(3):
        await rig.ask("GET", PATH, key=key, client=("192.0.2.7", 1))
    assert (await rig.ask("GET", PATH, key=key + "x", client=("198.51.100.7", 1))).status_code == 401
    uses = rig.admin.authenticator.uses.of(("acme", KEY_ISSUER, key_id(key)))
    assert {address: use.requests for address, use in uses.items()} == {"192.0.2.7": 3}
