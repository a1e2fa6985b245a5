"""What a principal may do. Pure, and the only module that knows which scope implies which."""

from collections.abc import Iterable

from app.domain import CLIENT_ISSUER, DEFAULT_TENANT, KEY_ISSUER, Principal, Scope, is_name
from app.domain.resources.access import AccessEntry, Who

CONNECT_ONE = Scope.CONNECT + ":"  # `mcp:connect:<backend>`
_PLATFORM = "platform:"
_CONNECT: str = Scope.CONNECT.value  # attributes of an Enum are slow to look up in Python 3.11
_SCOPES = frozenset(Scope)

# What `tenant:admin` implies. Not METRICS_READ: a node's metrics are about all tenants.
_TENANT_SCOPES = frozenset({Scope.CONNECT, Scope.TENANT_ADMIN, Scope.TENANT_READ, Scope.AUDIT_READ})


def is_scope(text: str) -> bool:
    """Whether this is a scope. There are no wildcards."""
    return text in _SCOPES or (text.startswith(CONNECT_ONE) and is_name(text.removeprefix(CONNECT_ONE)))


def is_platform_scope(scope: str) -> bool:
    """Whether the scope reaches beyond one tenant, so that only credentials of the default tenant can hold it."""
    return scope.startswith(_PLATFORM)


def is_platform_admin(principal: Principal) -> bool:
    """Whether everything is allowed. The scope counts only in the default tenant."""
    return Scope.PLATFORM_ADMIN in principal.scopes and principal.tenant == DEFAULT_TENANT


def may_see(principal: Principal, tenant: str) -> bool:
    """Whether the tenant exists for this principal; if not, it gets the answer for an unknown tenant."""
    return principal.tenant == tenant or is_platform_admin(principal)


def has_scope(principal: Principal, tenant: str, scope: str) -> bool:
    """Whether the principal has the scope in this tenant, directly or by implication.

    Four cases: a platform administrator has every scope everywhere; nobody else has any in another tenant;
    `mcp:connect` implies each `mcp:connect:<backend>`; `tenant:admin` implies the scopes within the tenant.
    """
    if is_platform_admin(principal):
        return True
    if principal.tenant != tenant or is_platform_scope(scope):
        return False
    general = Scope.CONNECT if scope.startswith(CONNECT_ONE) else scope
    if scope in principal.scopes or general in principal.scopes:
        return True
    return Scope.TENANT_ADMIN in principal.scopes and general in _TENANT_SCOPES


def may_connect(principal: Principal, tenant: str, backend: str) -> bool:
    """Whether the principal may open sessions with this backend. On the message path, so the usual case is first."""
    if principal.tenant == tenant and _CONNECT in principal.scopes:
        return True
    return has_scope(principal, tenant, CONNECT_ONE + backend)


def entries_for(principal: Principal, access: Iterable[AccessEntry]) -> tuple[AccessEntry, ...]:
    """The entries of an `access` that name the principal, in their order."""
    return tuple(each for each in access if _names(each.who, principal))


def _names(who: Who, principal: Principal) -> bool:
    if who.everyone:
        return True
    if principal.issuer in (KEY_ISSUER, CLIENT_ISSUER):
        named = who.key if principal.issuer == KEY_ISSUER else who.client
        return named is not None and named == principal.subject
    if who.issuer is not None and who.issuer != principal.issuer:
        return False
    return who.person == principal.subject if who.person is not None else who.group in principal.groups


def may_grant(principal: Principal, tenant: str, scopes: Iterable[str]) -> bool:
    """Whether the principal may create a credential of this tenant with these scopes: only scopes that it has itself,
    and platform scopes only in the default tenant."""
    return has_scope(principal, tenant, Scope.TENANT_ADMIN) and all(
        is_scope(scope)
        and has_scope(principal, tenant, scope)
        and (tenant == DEFAULT_TENANT or not is_platform_scope(scope))
        for scope in scopes
    )


def may_switch(principal: Principal, tenant: str, *, off_by_platform: bool) -> bool:
    """Whether the principal may switch something of the tenant off or on. What the platform has switched off, only the
    platform may switch on."""
    return has_scope(principal, tenant, Scope.TENANT_ADMIN) and (not off_by_platform or is_platform_admin(principal))


def may_revoke(principal: Principal, tenant: str, scopes: Iterable[str]) -> bool:
    """Whether the principal may revoke a credential with these scopes; only the platform may revoke platform scopes."""
    return has_scope(principal, tenant, Scope.TENANT_ADMIN) and (
        is_platform_admin(principal) or not any(map(is_platform_scope, scopes))
    )
