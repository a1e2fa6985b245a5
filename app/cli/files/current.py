"""What a gateway has now of the tenants that files name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.cli.files.kinds import KINDS, Kind
from app.cli.rest import Refused, Rest, segment
from app.errors import GatewayError

MOST = 100_000
NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class CurrentTenant:
    """One tenant: its own members, and its objects by section and name, as lists show them. `exists` is False for one
    that is still to be made."""

    name: str
    exists: bool
    members: Mapping[str, Any] = field(default_factory=dict)
    etag: str = ""
    sections: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)


def tenant_path(tenant: str) -> str:
    """The path of a tenant."""
    return f"/tenants/{segment(tenant)}"


def object_path(kind: Kind, tenant: str, members: Mapping[str, Any]) -> str:
    """The path of an object that the gateway shows."""
    identifier = members.get("id" if kind.named_by == "issuer" else "name")
    if not isinstance(identifier, str):
        raise GatewayError("the gateway's answer has an object without a name")
    return f"{tenant_path(tenant)}/{kind.section}/{segment(identifier)}"


def read_tenant(rest: Rest, name: str, sections: tuple[str, ...]) -> CurrentTenant:
    """The tenant with these sections.

    Raises:
        GatewayError: the gateway does not answer, or refuses.
    """
    try:
        members, etag = rest.tagged(tenant_path(name))
    except Refused as refusal:
        if refusal.status == NOT_FOUND:
            return CurrentTenant(name, exists=False)
        raise
    found = {kind.section: read_section(rest, kind, name) for kind in KINDS if kind.section in sections}
    return CurrentTenant(name, True, members, etag, found)


def read_section(rest: Rest, kind: Kind, tenant: str) -> dict[str, Mapping[str, Any]]:
    """The tenant's own objects of one kind, by name."""
    rows, _ = rest.items(f"{tenant_path(tenant)}/{kind.section}", query={}, most=MOST)
    own = [row for row in rows if row.get("tenant", tenant) == tenant]  # the platform's issuers are listed too
    if not all(isinstance(row.get(kind.named_by), str) for row in own):
        raise GatewayError(f"{rest.url} lists {kind.section} without names: it is not a gateway")
    if not kind.list_is_whole:
        own = [rest.ask("GET", object_path(kind, tenant, row)) for row in own]
    return {row[kind.named_by]: row for row in own}


def tenant_names(rest: Rest) -> list[str]:
    """All tenants; for platform administrators."""
    rows, _ = rest.items("/tenants", query={}, most=MOST)
    return [str(row.get("name")) for row in rows]
