"""Who may do what, as a table."""

from typing import Any

import pytest

from app.auth.policy import entries_for, has_scope, is_scope, may_connect, may_grant, may_revoke, may_see
from app.domain import CLIENT_ISSUER, KEY_ISSUER, Principal
from app.domain.resources.access import AccessEntry, Who

SCOPES = ("mcp:connect", "mcp:connect:echo", "tenant:read", "tenant:admin", "audit:read", "metrics:read",
          "platform:admin")  # fmt: skip


def holder(*scopes: str, tenant: str = "acme") -> Principal:
    return Principal(tenant, "key", "k1", frozenset(scopes))


@pytest.mark.parametrize(
    ("held", "implied"),
    [
        ("mcp:connect", {"mcp:connect", "mcp:connect:echo"}),
        ("mcp:connect:echo", {"mcp:connect:echo"}),
        ("mcp:connect:other", set()),
        ("tenant:read", {"tenant:read"}),
        ("tenant:admin", {"mcp:connect", "mcp:connect:echo", "tenant:read", "tenant:admin", "audit:read"}),
        ("audit:read", {"audit:read"}),
        ("metrics:read", {"metrics:read"}),
        ("nonsense", set()),
    ],
)
def test_what_a_scope_implies_in_its_own_tenant_and_never_elsewhere(held, implied):
    assert {scope for scope in SCOPES if has_scope(holder(held), "acme", scope)} == implied
    assert not any(has_scope(holder(held), "zenith", scope) for scope in SCOPES)


def test_a_platform_administrator_holds_everything_everywhere():
    admin = holder("platform:admin", tenant="default")
    for tenant in ("default", "acme"):
        assert all(has_scope(admin, tenant, scope) for scope in SCOPES)
        assert may_connect(admin, tenant, "echo")
        assert may_see(admin, tenant)


def test_the_platform_scope_is_worth_nothing_outside_the_default_tenant():
    forged = holder("platform:admin", tenant="acme")
    assert not any(has_scope(forged, tenant, scope) for tenant in ("acme", "default", "zenith") for scope in SCOPES)
    assert not may_see(forged, "default")


def test_connecting_needs_the_backend_in_the_scope():
    one = holder("mcp:connect:echo")
    assert may_connect(one, "acme", "echo")
    assert not may_connect(one, "acme", "echo2")
    assert not may_connect(one, "zenith", "echo")
    assert not may_connect(holder("mcp:connect:echo:x"), "acme", "echo")


@pytest.mark.parametrize("text", ["", "*", "mcp:*", "mcp:connect:", "mcp:connect:*", "mcp:connect:UP", "platform:*",
                                  "platform:root", "tenant:admin ", "MCP:CONNECT", "mcp:connect:a\n"])  # fmt: skip
def test_there_are_no_other_scopes_and_no_wildcards(text):
    assert not is_scope(text)
    assert not may_grant(holder("platform:admin", tenant="default"), "default", [text])


TENANT_ADMIN = holder("tenant:admin")
DEFAULT_ADMIN = holder("tenant:admin", tenant="default")
PLATFORM_ADMIN = holder("platform:admin", tenant="default")


@pytest.mark.parametrize(
    ("who", "tenant", "granted"),
    [
        (PLATFORM_ADMIN, "default", set(SCOPES)),
        (PLATFORM_ADMIN, "acme", set(SCOPES) - {"platform:admin"}),
        (DEFAULT_ADMIN, "default", set(SCOPES) - {"platform:admin", "metrics:read"}),
        (DEFAULT_ADMIN, "acme", set()),
        (TENANT_ADMIN, "acme", set(SCOPES) - {"platform:admin", "metrics:read"}),
        (TENANT_ADMIN, "zenith", set()),
        (TENANT_ADMIN, "default", set()),
        (holder("tenant:admin", "metrics:read"), "acme", set(SCOPES) - {"platform:admin"}),
        (holder("mcp:connect", "tenant:read", "audit:read", "metrics:read"), "acme", set()),
    ],
)
def test_nobody_grants_what_they_do_not_hold(who, tenant, granted):
    assert {scope for scope in SCOPES if may_grant(who, tenant, [scope])} == granted
    assert may_grant(who, tenant, granted) is bool(granted)
    if granted != set(SCOPES):
        assert not may_grant(who, tenant, SCOPES)


def test_a_tenant_administrator_revokes_all_but_platform_keys():
    assert may_revoke(TENANT_ADMIN, "acme", ["metrics:read"])
    assert may_revoke(PLATFORM_ADMIN, "default", ["platform:admin"])
    assert not may_revoke(DEFAULT_ADMIN, "default", ["mcp:connect", "platform:admin"])
    assert not may_revoke(TENANT_ADMIN, "zenith", ["mcp:connect"])
    assert not may_revoke(holder("tenant:read"), "acme", ["mcp:connect"])


ISSUER, OTHER = "https://idp.example", "https://other.example"


def entry(**who: Any) -> AccessEntry:
    return AccessEntry(Who(**who), ("*",))


BOB = Principal("acme", ISSUER, "bob", frozenset(), groups=frozenset({"analysts", "staff"}))


@pytest.mark.parametrize(
    ("who", "named"),
    [
        ({"everyone": True}, True),
        ({"person": "bob"}, True),
        ({"person": "bob", "issuer": ISSUER}, True),
        ({"person": "bob", "issuer": OTHER}, False),
        ({"person": "Bob"}, False),
        ({"person": "analysts"}, False),
        ({"group": "analysts"}, True),
        ({"group": "analysts", "issuer": ISSUER}, True),
        ({"group": "analysts", "issuer": OTHER}, False),
        ({"group": "bob"}, False),
        ({"group": "boss"}, False),
        ({"key": "bob"}, False),
        ({"client": "bob"}, False),
        ({}, False),
    ],
)
def test_whom_an_entry_names_of_the_people_of_an_issuer(who, named):
    assert bool(entries_for(BOB, [entry(**who)])) is named


@pytest.mark.parametrize(("issuer", "kind"), [(KEY_ISSUER, "key"), (CLIENT_ISSUER, "client")])
def test_a_key_and_a_client_are_named_as_such_only(issuer, kind):
    it = Principal("acme", issuer, "bob", frozenset(), groups=frozenset({"analysts"}))
    for who in (
        {"person": "bob"}, {"person": "bob", "issuer": issuer}, {"group": "analysts"},
        {"group": "analysts", "issuer": issuer}, {"client" if kind == "key" else "key": "bob"}, {kind: "eve"}, {},
    ):  # fmt: skip
        assert entries_for(it, [entry(**who)]) == ()
    assert entries_for(it, [entry(**{kind: "bob"}), entry(everyone=True)]) == (
        entry(**{kind: "bob"}),
        entry(everyone=True),
    )


def test_entries_keep_their_order():
    listed = [entry(group="staff"), entry(person="eve"), entry(everyone=True), entry(group="analysts")]
    assert entries_for(BOB, listed) == (listed[0], listed[2], listed[3])
    assert entries_for(BOB, ()) == ()
