"""The bodies about tenants and their limits."""

from dataclasses import asdict
from typing import Annotated, Self

from pydantic import BaseModel, Field

from app.admin.schemas.fields import Name, Reason, Strict
from app.domain import Limits, Tenant

_LIMITS = Limits()

Count = Annotated[int, Field(ge=0, le=1_000_000)]
Rate = Annotated[float, Field(ge=0, le=1_000_000)]


class LimitsBody(Strict):
    """What a tenant may use at once. null is no limit; what is left out has its default."""

    sessions: Count | None = _LIMITS.sessions
    sessions_per_principal: Count | None = _LIMITS.sessions_per_principal
    processes: Count | None = _LIMITS.processes
    in_flight: Count | None = _LIMITS.in_flight
    requests_per_second: Rate | None = _LIMITS.requests_per_second
    burst: Count | None = _LIMITS.burst
    memory_mb: Count | None = _LIMITS.memory_mb
    spawns_per_minute: Count | None = _LIMITS.spawns_per_minute

    def limits(self) -> Limits:
        """The value."""
        return Limits(**self.model_dump())


class TenantBody(Strict):
    """A new tenant."""

    name: Name
    limits: LimitsBody = Field(default_factory=LimitsBody)


class TenantPatch(Strict):
    """A merge patch: a limit that is null becomes "no limit"; `limits` itself null brings all defaults back."""

    limits: LimitsBody | None = None
    enabled: bool | None = None
    reason: Reason | None = None


class TenantAnswer(BaseModel):
    """A tenant."""

    name: str
    limits: LimitsBody
    enabled: bool
    reason: str
    version: int

    @classmethod
    def of(cls, tenant: Tenant) -> Self:
        """Shows the value."""
        return cls(**asdict(tenant))
