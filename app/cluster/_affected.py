"""Affected: what a row of the audit trail is about, by name. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from app.domain import KEY_ISSUER
from app.storage.audit import Act


class Kind(StrEnum):
    """What it names."""

    BACKEND = "backend"  # tenant, name; toolsets are backends to everybody but administrators
    RESTART = "restart"  # tenant, backend
    TENANT = "tenant"  # tenant
    TENANT_GONE = "tenant gone"  # tenant; another one may have its name already
    PRINCIPAL = "principal"  # tenant, issuer, subject; keys too
    ISSUER = "issuer"  # tenant, issuer
    GRANTS = "grants"  # tenant
    WRITINGS = "writings"  # tenant
    EVERYTHING = "everything"


@dataclass(frozen=True, slots=True)
class Affected:
    """Says only where to look: nodes compare what is stored with what they run."""

    kind: Kind
    about: tuple[str, ...] = ()


EVERYTHING = Affected(Kind.EVERYTHING)


def affected_by(act: Act) -> Affected | None:
    """None if the act does not concern the nodes."""
    _, _, name = act.target.partition("/")
    match act.action.split("."):
        case ["backend", "restart"]:
            return Affected(Kind.RESTART, (act.tenant, name))
        case ["backend" | "toolset", "create" | "change" | "update" | "delete"] | ["tool", "approve" | "reject"]:
            return Affected(Kind.BACKEND, (act.tenant, name))
        case ["tenant", "change"]:
            return Affected(Kind.TENANT, (act.tenant,))
        case ["tenant", "delete"]:
            return Affected(Kind.TENANT_GONE, (act.tenant,))
        case ["key", "change" | "revoke"]:
            return Affected(Kind.PRINCIPAL, (act.tenant, KEY_ISSUER, name))
        case ["principal", "change"]:
            issuer, _, subject = act.detail.partition(" ")
            return Affected(Kind.PRINCIPAL, (act.tenant, issuer, subject))
        case ["issuer", "create" | "change" | "delete"]:
            return Affected(Kind.ISSUER, (act.tenant, act.detail))
        case ["connection", "end"] | ["client", "change" | "delete"]:
            return Affected(Kind.GRANTS, (act.tenant,))
        case ["guide" | "recipe", "create" | "change" | "delete"]:
            return Affected(Kind.WRITINGS, (act.tenant,))
    return None
