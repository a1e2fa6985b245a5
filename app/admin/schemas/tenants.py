"""Bodies: tenants and their limits."""

from typing import Annotated

from pydantic import BaseModel, Field

from app.admin.schemas.fields import SILENT, Answer, Name, Strict, SwitchPatch
from app.domain import InspectionMode, Limits, RegistryMode

_LIMITS = Limits()

Count = Annotated[int, Field(ge=0, le=1_000_000)]
SandboxExempt = Annotated[
    bool, Field(description="Its backends need not keep what the platform requires of sandboxes (`SANDBOX=require`).")
]
Registry = Annotated[
    RegistryMode,
    Field(
        description="Who may read the list of its servers under `/registry/{tenant}`: nobody, who has a credential of "
        "the tenant, or everybody."
    ),
]
Inspections = Annotated[
    InspectionMode,
    Field(
        description="Whether the messages of its sessions may be inspected: with payloads, without, or not at all. Its "
        "administrators may only make it stricter."
    ),
]
Rate = Annotated[float, Field(ge=0, le=1_000_000)]


class LimitsBody(Strict):
    """What a tenant may use at once. null: no limit; missing members have their defaults."""

    sessions: Count | None = _LIMITS.sessions
    sessions_per_principal: Count | None = _LIMITS.sessions_per_principal
    processes: Count | None = _LIMITS.processes
    in_flight: Count | None = _LIMITS.in_flight
    requests_per_second: Rate | None = _LIMITS.requests_per_second
    burst: Count | None = _LIMITS.burst
    memory_mb: Count | None = _LIMITS.memory_mb
    spawns_per_minute: Count | None = _LIMITS.spawns_per_minute
    parked_sessions: Count | None = _LIMITS.parked_sessions
    frozen_sessions: Count | None = _LIMITS.frozen_sessions


class TenantBody(Strict):
    """A new tenant."""

    name: Name
    limits: LimitsBody = Field(default_factory=LimitsBody)
    sandbox_exempt: SandboxExempt = False
    registry: Registry = "off"
    inspections: Inspections = "allowed"


class TenantPatch(SwitchPatch):
    """A merge patch: a limit that is null becomes "no limit"; null for `limits` itself restores all defaults."""

    limits: LimitsBody | None = None
    sandbox_exempt: SandboxExempt | None = None
    registry: Registry | None = None
    inspections: Inspections | None = None


class TenantAnswer(Answer):
    """A tenant."""

    name: str
    limits: LimitsBody
    enabled: bool
    reason: str
    sandbox_exempt: bool
    registry: str
    inspections: str
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
