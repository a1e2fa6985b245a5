"""Writes what a gateway has as a file that `apply` accepts. Secrets, which no gateway shows, become references that are
to be filled in."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from app.admin.schemas.tenants import TenantMembers
from app.cli.files import references
from app.cli.files.current import CurrentTenant
from app.cli.files.kinds import IS_THERE, KINDS, LEFT_ALONE, Kind
from app.domain.resources.backends import HIDDEN
from app.text.strict_yaml import written

_ABOUT = """# What a gateway has, for `trunkline apply`.
"""
_SECRETS = """# It does not show its secrets. Set these variables where the file is applied, or write other references:
"""


class Exported:
    """A file in the making. `variables` are those that its references name, in order."""

    def __init__(self) -> None:
        self.variables: list[str] = []
        self._tenants: dict[str, Any] = {}

    def add(self, tenant: CurrentTenant) -> None:
        """Adds a tenant with everything that it has."""
        defaults = TenantMembers().model_dump(mode="json", exclude=set(LEFT_ALONE))
        own = {name: _differing(tenant.members.get(name, usual), usual) for name, usual in defaults.items()}
        own |= _switch(tenant.members)
        for kind in KINDS:
            objects = tenant.sections.get(kind.section, {})
            own[kind.section] = {name: self._object(kind, tenant.name, name, objects[name]) for name in sorted(objects)}
        self._tenants[tenant.name] = own

    def text(self) -> str:
        """The file."""
        head = _ABOUT
        if self.variables:
            head += _SECRETS + "".join(f"#   {name}\n" for name in self.variables)
        return head + written({"version": 1, "tenants": self._tenants})

    def _object(self, kind: Kind, tenant: str, name: str, current: Mapping[str, Any]) -> dict[str, Any]:
        defaults = kind.defaults()
        found = {
            member: _differing(current[member], defaults.get(member)) if kind.is_filled(member) else current[member]
            for member in kind.members
            if member in current
            and member not in (*LEFT_ALONE, *kind.secret_maps)
            and current[member] is not None
            and (member not in defaults or current[member] != defaults[member])
        }
        if "members" in found:
            found["members"] = [_short(member) for member in found["members"]]
        found |= _switch(current)
        if client := kind.seen(found).get(kind.signs_in):
            found[kind.signs_in] = client
        if kind.has_references:
            found = {member: references.changed(value, references.escaped) for member, value in found.items()}
        for member in kind.secret_parts:
            if member in found:
                found[member] = references.changed(found[member], partial(self._with_references, tenant, name, member))
        for member in kind.secret_maps:
            if values := {key: value for key, value in (current.get(member) or {}).items() if value is not None}:
                found[member] = {
                    key: self._reference(tenant, name, key) if values[key] == HIDDEN else values[key]
                    for key in sorted(values)
                }
        if kind.secrets and current.get("jwks_url") is None and current.get("discovery_url") is None:
            found["secret"] = self._reference(tenant, name, "secret")
        if (found.get(kind.signs_in) or {}).pop(IS_THERE, False):
            found[kind.signs_in]["client_secret"] = self._reference(tenant, name, "client_secret")
        return found

    def _with_references(self, tenant: str, name: str, member: str, text: str) -> str:
        """The text, with a reference for each secret that it is shown without."""
        first, *others = text.split(HIDDEN)
        return first + "".join(self._reference(tenant, name, member) + each for each in others)

    def _reference(self, *words: str) -> str:
        # Different words can make the same name; two secrets must not become one.
        wanted = name = references.variable_name(*words)
        number = 2
        while name in self.variables:
            name, number = f"{wanted}_{number}", number + 1
        self.variables.append(name)
        return f"${{env:{name}}}"


def export(tenants: Sequence[CurrentTenant]) -> Exported:
    """The file of these tenants."""
    exported = Exported()
    for tenant in tenants:
        exported.add(tenant)
    return exported


def _switch(members: Mapping[str, Any]) -> dict[str, Any]:
    if members.get("enabled", True):
        return {}
    return {"enabled": False} | ({"reason": members["reason"]} if members.get("reason") else {})


def _differing(value: Any, default: Any) -> Any:
    """The value, without members that are those of the default."""
    if not (isinstance(value, dict) and isinstance(default, dict)):
        return value
    return {
        name: _differing(each, default.get(name))
        for name, each in value.items()
        if name not in default or default[name] != each
    }


def _short(member: Mapping[str, Any]) -> dict[str, Any]:
    """A member of a toolset, without what it has not."""
    return {name: value for name, value in member.items() if value or name in ("backend", "prefix")}
