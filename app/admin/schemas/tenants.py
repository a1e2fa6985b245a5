"""Bodies: tenants and their limits."""

from typing import Any, ClassVar

from pydantic import BaseModel, Field

from app.admin.schemas.declared import DeclaredBody, part, patches, sends, shows
from app.admin.schemas.fields import SILENT, Answer, Strict, SwitchPatch
from app.domain import Limits, SignIn, Tenant
from app.domain.resources.members import declared_members, only

_SWITCH = ("enabled", "reason")
_OWN = [each for each in declared_members(Tenant) if each.name not in _SWITCH]


@part(Limits)
class LimitsBody(Strict):
    """What a tenant may use at once. null: no limit; missing members have their defaults."""


@part(SignIn)
class TenantSignInBody(Strict):
    """Who may connect by the address alone."""


@patches(TenantSignInBody)
class TenantSignInPatch(Strict):
    """A merge patch."""


@sends(_OWN)
class TenantBody(DeclaredBody):
    """A new tenant."""

    model: ClassVar[type[Any]] = Tenant


@patches(TenantBody)
class TenantPatch(SwitchPatch):
    """A merge patch: a limit that is null becomes "no limit"; null for `limits` itself restores all defaults,
    null for `sign_in` removes the authorization server of the tenant."""

    sign_in: TenantSignInPatch | None = None


@sends([*(each for each in _OWN if each.name != "name"), *only(Tenant, *_SWITCH)])
class TenantMembers(Strict):
    """A tenant's own members. One that the file does not name is left alone."""


@shows(TenantSignInBody, of_tenant=False)
class TenantSignInAnswer(Answer):
    """Who may connect by the address alone."""


class TenantAnswer(Answer):
    """A tenant."""

    name: str
    limits: LimitsBody
    enabled: bool
    reason: str
    sandbox_exempt: bool
    registry: str
    inspections: str
    network_allow: list[str]
    packages_allow: list[str]
    sign_in: TenantSignInAnswer | None
    version: int


class LimitsUseAnswer(BaseModel):
    """How much of each limit is used now, on all nodes that have answered."""

    sessions: int
    sessions_per_principal: int = Field(description="Of the principal that has the most.")
    processes: int = Field(description="Of sessions, without warm ones.")
    in_flight: int
    memory_mb: float = Field(
        description="Of all processes, including warm ones; measured every ten seconds or more often."
    )
    spawns_per_minute: int = Field(description="Processes started within the last minute, warm ones included.")
    parked_sessions: int = Field(description="Of the sessions. The limit holds on each node.")
    frozen_sessions: int = Field(description="Of the sessions. The limit holds on each node.")
    silent_nodes: list[str] = Field(description=SILENT)


class TenantInUse(TenantAnswer):
    """A tenant, and how much of its limits it uses."""

    use: LimitsUseAnswer
