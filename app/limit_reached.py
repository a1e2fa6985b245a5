"""LimitReached: the limit that refused a request, for the answer and for the log.

It tells a tenant its own numbers and those of the node, never another tenant's. Most limits have the name of what
changes them: a member of `limits`, a field of a backend, a setting.
"""

from dataclasses import dataclass
from typing import Literal, Self

Whose = Literal["address", "principal", "session", "tenant", "backend", "node"]
FIXED = "nobody: it is part of the program"


@dataclass(frozen=True, slots=True)
class LimitReached:
    """`of` says what the limit applies to; `used` is None where nothing is held (a rate, a size).

    `raised_by` says who can raise it, and how.
    """

    name: str
    of: Whose
    allowed: float
    used: float | None
    raised_by: str

    @classmethod
    def of_tenant(cls, name: str, tenant: str, allowed: float, used: float | None, *, of: Whose = "tenant") -> Self:
        """A member of the tenant's `limits`."""
        return cls(name, of, allowed, used, f"a platform administrator: PATCH /api/v1/tenants/{tenant}, limits.{name}")

    @classmethod
    def of_backend(
        cls, name: str, key: tuple[str, str], allowed: float, used: float | None, *, of: Whose = "backend"
    ) -> Self:
        """A field of a backend; a session keeps what it was opened with."""
        tenant, backend = key
        where = f"PATCH /api/v1/tenants/{tenant}/backends/{backend}, {name}"
        where += " (for new sessions)" if of == "session" else ""
        return cls(name, of, allowed, used, f"a platform administrator: {where}")

    @classmethod
    def of_node(cls, name: str, setting: str, allowed: float, used: float) -> Self:
        """A setting of the gateway, counted on this node."""
        return cls(name, "node", allowed, used, f"the operator of the gateway: the setting {setting}, or another node")

    def hint(self) -> str:
        """For people, in a sentence."""
        if self.raised_by == FIXED:
            return f"Nobody can raise `{self.name}`: it is part of the program."
        return f"Who can raise `{self.name}`: {self.raised_by}."

    def shown(self) -> dict[str, object]:
        """For an answer."""
        shown = {"name": self.name, "of": self.of, "allowed": self.allowed, "used": self.used}
        return {name: value for name, value in shown.items() if value is not None} | {"raised_by": self.raised_by}

    def facts(self) -> dict[str, object]:
        """For the log."""
        facts = {"limit": self.name, "limit_of": self.of, "allowed": self.allowed, "used": self.used}
        return {name: value for name, value in facts.items() if value is not None}
