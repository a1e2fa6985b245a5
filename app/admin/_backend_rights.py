"""Who may register, change, check and remove a backend: the platform, or administrators of its tenant."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from app.admin.context import Access
from app.admin.schemas.backends import BackendPatch
from app.auth.policy import has_scope, is_platform_admin
from app.backends.packages.permitted import is_permitted
from app.backends.packages.recognition import names_package
from app.domain import BackendSpec, Sandbox, Scope, Selection, Tenant
from app.domain.resources.backends import HIDDEN
from app.domain.resources.destinations import not_covered
from app.errors import Forbidden, InvalidRequest
from app.text.credentials import secrets_in

# What administrators of a tenant may change.
_OF_TENANT = {"enabled", "reason", "pin", "pin_minor", "access", *(each.name for each in fields(Selection))}
# And of a backend that is reached by URL: of another one these are a matter of the platform.
_OF_URL = _OF_TENANT | {
    "url", "openapi", "transport", "headers", "connect", "recovery", "calls_per_session", "timeouts",
}  # fmt: skip


def require_may_register(access: Access, url: str | None) -> None:
    """A command is permission to execute code. Raises Forbidden."""
    if url is None and not is_platform_admin(access.principal):
        raise only_the_platform(access)


async def is_only_asked_for(access: Access, spec: BackendSpec) -> bool:
    """Whether this backend is registered as a request, which the platform grants. Raises Forbidden: not even that."""
    if is_platform_admin(access.principal) or spec.url or spec.openapi:
        return False
    if not names_package(spec.command, spec.args):
        raise only_the_platform(access)
    return not is_permitted(await access.admin.tenants.get(access.tenant), spec)


async def is_theirs(access: Access, spec: BackendSpec) -> bool:
    """Whether who asks administers the tenant, and may register this package or image."""
    if spec.url is not None or not has_scope(access.principal, access.tenant, Scope.TENANT_ADMIN):
        return False
    return is_permitted(await access.admin.tenants.get(access.tenant), spec)


async def require_theirs(access: Access, spec: BackendSpec) -> None:
    """Raises Forbidden: it has become more than administrators of the tenant may register."""
    if not is_platform_admin(access.principal) and not await is_theirs(access, spec):
        raise only_the_platform(access, ", as `packages_allow` of the tenant does not let its administrators do that")


def require_given_anew(access: Access, spec: BackendSpec, patch: BackendPatch) -> None:
    """Who changes what is started could have it tell the secrets that it is started with, whoever has given them.

    Raises:
        InvalidRequest: some would be kept.
    """
    changes = patch.model_dump(exclude_unset=True)
    if is_platform_admin(access.principal) or changes.keys().isdisjoint({"command", "args", "env"}):
        return
    env, args = changes.get("env", {}), changes.get("args")
    given = spec.env.keys() if env is None else {name for name, value in env.items() if value != HIDDEN}
    if spec.env.keys() - given:
        raise InvalidRequest(
            "give the values of all its variables again, with such a change, or remove them", field="env"
        )
    if secrets_in(spec.args) and (args is None or any(HIDDEN in each for each in args)):
        raise InvalidRequest(f"give what stands as `{HIDDEN}` again, with such a change", field="args")


def own_scope(access: Access) -> Scope:
    """As what the caller does it: to be asked for again after a wait."""
    return Scope.PLATFORM_ADMIN if is_platform_admin(access.principal) else Scope.TENANT_ADMIN


def require_may_check(access: Access, spec: BackendSpec) -> None:
    """Raises Forbidden: the platform does not want it to be started."""
    if spec.off_by_platform and not is_platform_admin(access.principal):
        raise only_the_platform(access, f", which has switched it off{spec.reason and f': {spec.reason}'}")


async def require_may_allow(access: Access, old: Sandbox, new: Sandbox) -> None:
    """Raises Forbidden: it is more than the platform lets the tenant's own administrators give."""
    if is_platform_admin(access.principal):
        return
    kinds = {old.network_kind, new.network_kind}
    if "allow" not in kinds or kinds & {"web", "host"} or (new.has_web and not old.has_web):
        raise only_the_platform(access)
    more = set(new.allow) - set(old.allow)
    lacking = not_covered(more, (await access.admin.tenants.get(access.tenant)).network_allow) if more else []
    if lacking:
        why = f": the tenant's `network_allow` does not have {', '.join(sorted(lacking))}"
        raise only_the_platform(access, why)


def scope_to_change(spec: BackendSpec, members: Collection[str]) -> Scope:
    """What a change of these members of the backend needs."""
    of_tenant = _OF_TENANT if spec.url is None else _OF_URL
    return Scope.TENANT_ADMIN if of_tenant.issuperset(members) else Scope.PLATFORM_ADMIN


def scope_to_add(spec: BackendSpec, member: str, proposal: Mapping[str, Any], tenant: Tenant) -> Scope:
    """What adding this to a member of the backend needs."""
    network = proposal.get("network")
    allow = network["allow"] if isinstance(network, Mapping) else ()
    if allow and spec.sandbox.network_kind in ("none", "allow") and not not_covered(allow, tenant.network_allow):
        return Scope.TENANT_ADMIN
    return scope_to_change(spec, [member])


def only_the_platform(access: Access, why: str = "") -> Forbidden:
    """To be raised."""
    return Forbidden([Scope.PLATFORM_ADMIN], held=access.principal.scopes, why=why)
