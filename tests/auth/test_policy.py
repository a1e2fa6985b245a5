"""Who may do what, as a table."""

import pytest

from app.auth.policy import has_scope, is_scope, may_connect, may_grant, may_revoke, may_see
from app.domain import Principal

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
