"""What of a tenant's limits is taken, as `GET /api/v1/tenants/{tenant}` shows it beside them."""

from collections.abc import Sequence
from typing import Self

from pydantic import BaseModel, Field

from app.admin.schemas.tenants import TenantAnswer
from app.this_node.limits_use import LimitsUse


class LimitsUseAnswer(BaseModel):
    """What is taken of `limits` now, over all nodes that have answered, as the limits count it."""

    sessions: int
    sessions_per_principal: int = Field(description="Of the principal that has the most.")
    processes: int = Field(description="Of sessions; warm ones are nobody's.")
    in_flight: int
    memory_mb: float = Field(description="Of all its processes, warm ones included; measured every ten seconds.")
    silent_nodes: list[str] = Field(description="Nodes that did not answer within a second: theirs is missing.")

    @classmethod
    def of(cls, use: LimitsUse, silent: Sequence[str]) -> Self:
        """Shows the value."""
        return cls(
            sessions=use.sessions,
            sessions_per_principal=use.sessions_of_one,
            processes=use.processes,
            in_flight=use.in_flight,
            memory_mb=round(use.memory_bytes / (1 << 20), 1),
            silent_nodes=list(silent),
        )


class TenantInUse(TenantAnswer):
    """A tenant, and what it has taken of its limits."""

    use: LimitsUseAnswer
