"""Compares files with a gateway: which steps make the gateway what the files say, in an order in which they succeed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.admin.schemas.tenants import TenantMembers
from app.cli.files.current import CurrentTenant, object_path, read_tenant, tenant_path
from app.cli.files.differences import Change, changes, merge_patch
from app.cli.files.gateway_file import Wanted, WantedTenant
from app.cli.files.kinds import BACKENDS, IS_THERE, ISSUERS, KINDS, LEFT_ALONE, RECIPES, TOOLSETS, Kind
from app.cli.rest import Rest
from app.domain.resources.backends import HIDDEN
from app.errors import GatewayError

MAKE, CHANGE, REMOVE = "make", "change", "remove"


@dataclass(frozen=True, slots=True)
class Step:
    """One request. `body` has secrets; `changes`, which people see, have not."""

    action: str
    one: str
    tenant: str
    name: str
    method: str
    path: str
    body: Mapping[str, Any] | None = field(default=None, repr=False)
    etag: str = ""
    changes: tuple[Change, ...] = ()
    wanted: Wanted | None = field(default=None, repr=False)

    @property
    def what(self) -> str:
        """For people: `backend acme/time`."""
        return f"tenant {self.tenant}" if self.one == "tenant" else f"{self.one} {self.tenant}/{self.name}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps, and how many objects of the files are as they should be."""

    steps: tuple[Step, ...]
    same: int

    def count(self, action: str) -> int:
        return sum(step.action == action for step in self.steps)


def make_plan(
    rest: Rest, tenants: Sequence[WantedTenant], *, prune: bool, begin: Callable[[str], None] = lambda _: None
) -> Plan:
    """What has to be done. With `prune`, what a section of a file does not name is removed; a section that is not in
    the files is left alone. `begin` is told what is compared next.

    Raises:
        GatewayError: the gateway does not answer, or refuses.
    """
    of_tenants, made, removed, same, compared = list[Step](), list[Step](), list[Step](), 0, 0
    total = sum(len(objects) for wanted in tenants for objects in wanted.sections.values())
    for wanted in tenants:
        begin(f"reading tenant {wanted.name}")
        current = read_tenant(rest, wanted.name, tuple(wanted.sections))
        own = list(_tenant_steps(wanted, current))
        same += not own
        of_tenants += own
        for kind in KINDS:
            objects = wanted.sections.get(kind.section, {})
            there = current.sections.get(kind.section, {})
            for name, one in objects.items():
                compared += 1
                begin(f"comparing {compared} of {total}: {kind.one} {wanted.name}/{name}")
                step = _made(one, wanted.name) if name not in there else _changed(rest, one, wanted.name, there[name])
                same += step is None
                made += [] if step is None else [step]
            if prune:
                gone = [name for name in there if name not in objects]
                removed += [_removed(rest, kind, wanted.name, name, there[name]) for name in gone]
    return Plan((*of_tenants, *_ordered(made, removed)), same)


def _ordered(made: Sequence[Step], removed: Sequence[Step]) -> Iterator[Step]:
    """Makes before removals, kind by kind; but what holds something else, or its name, is removed first: a recipe is of
    a toolset, and a toolset cannot have the name of a backend."""
    new = {
        (step.tenant, step.name) for step in made if step.action == MAKE and step.one in (BACKENDS.one, TOOLSETS.one)
    }

    def is_early(step: Step) -> bool:
        return step.one in (RECIPES.one, TOOLSETS.one) or (step.one == BACKENDS.one and (step.tenant, step.name) in new)

    order = [kind.one for kind in KINDS]
    yield from sorted(filter(is_early, removed), key=lambda step: -order.index(step.one))
    yield from sorted(made, key=lambda step: order.index(step.one))
    yield from (step for step in removed if not is_early(step))


def _tenant_steps(wanted: WantedTenant, current: CurrentTenant) -> Iterator[Step]:
    path, members = tenant_path(wanted.name), dict(wanted.members)
    if members.get("enabled"):
        members.pop("reason", None)
    if not current.exists:
        body = {name: value for name, value in members.items() if name not in LEFT_ALONE}
        shown = tuple(changes(_hollow(TenantMembers().model_dump(mode="json"), body), body))
        yield Step(MAKE, "tenant", wanted.name, "", "POST", "/tenants", {"name": wanted.name, **body}, changes=shown)
        if members.get("enabled", True) is False:
            switch = {name: members[name] for name in LEFT_ALONE if name in members}
            shown = tuple(changes({"enabled": True, "reason": ""}, switch))
            yield Step(CHANGE, "tenant", wanted.name, "", "PATCH", path, switch, changes=shown)
    elif found := changes(current.members, members):
        body = merge_patch(current.members, members)
        yield Step(CHANGE, "tenant", wanted.name, "", "PATCH", path, body, current.etag, tuple(found))


def _made(wanted: Wanted, tenant: str) -> Step:
    kind, defaults = wanted.kind, wanted.kind.defaults()
    shown = {name: value for name, value in wanted.shown.items() if defaults.get(name) != value}
    found = changes(_hollow(defaults, shown), shown, secret=kind.secret_maps)
    path = f"{tenant_path(tenant)}/{kind.section}"
    return Step(MAKE, kind.one, tenant, wanted.name, "POST", path, wanted.body, changes=tuple(found), wanted=wanted)


def _hollow(defaults: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in defaults.items() if name in shown and isinstance(value, dict)}


def _removed(rest: Rest, kind: Kind, tenant: str, name: str, listed: Mapping[str, Any]) -> Step:
    path = object_path(kind, tenant, listed)
    _, etag = rest.tagged(path)
    return Step(REMOVE, kind.one, tenant, name, "DELETE", path, etag=etag)


def _changed(rest: Rest, wanted: Wanted, tenant: str, listed: Mapping[str, Any]) -> Step | None:
    """The change of an object that exists; None if it is as the file says."""
    path = object_path(wanted.kind, tenant, listed)
    if not differences(rest, wanted, path, listed)[0]:
        return None
    # Only the object by itself has a tag. What is planned is planned for this state of it.
    members, etag = rest.tagged(path)
    found, body = differences(rest, wanted, path, members)
    if not found:
        return None
    return Step(CHANGE, wanted.kind.one, tenant, wanted.name, "PATCH", path, body, etag, tuple(found), wanted)


def differences(
    rest: Rest, wanted: Wanted, path: str, current: Mapping[str, Any]
) -> tuple[list[Change], dict[str, Any]]:
    """What differs, and the merge patch against it. Asks the gateway whether secrets are the same."""
    kind, current = wanted.kind, wanted.kind.seen(current)
    compared = {name: value for name, value in wanted.shown.items() if _is_compared(name, wanted, current)}
    found = changes(current, compared, secret=kind.secret_maps)
    plain = {name: value for name, value in compared.items() if name not in kind.secret_maps}
    patch = {
        name: wanted.body[name] if name in kind.secret_parts else value
        for name, value in merge_patch(current, plain).items()
    }
    for name in kind.secret_maps:
        if secret := _secret_patch(wanted, name, _there(current.get(name))):
            patch[name] = secret
    others = _other_secrets(rest, wanted, path, current)
    for name, key in others:
        found.append(Change(f"{name}.{key}" if key else name, HIDDEN, HIDDEN, is_secret=True))
        if key:
            patch.setdefault(name, {})[key] = wanted.body[name][key]
        else:
            patch[name] = wanted.body[name]
    return found, _completed(patch, wanted, current)


def _is_compared(name: str, wanted: Wanted, current: Mapping[str, Any]) -> bool:
    if name == "reason" and wanted.shown.get("enabled") and "enabled" in wanted.named:
        return False  # switching on removes the reason
    if name == "url" and "url" not in wanted.named and "openapi" in wanted.named:
        return False  # where its document says
    if name in LEFT_ALONE:
        return name in wanted.named
    # A gateway that does not know the member yet has what it means by its default; anything else it would refuse.
    return name in current or name in wanted.named


def _secret_patch(wanted: Wanted, member: str, old: Mapping[str, str]) -> dict[str, str | None]:
    """Names that are new, or are shown with another value, with their values, and names that are gone."""
    new, shown = _there(wanted.body.get(member)), wanted.shown.get(member) or {}
    gone: dict[str, str | None] = {name: None for name in old if name not in new}
    return gone | {name: value for name, value in new.items() if old.get(name) != shown[name]}


def _there(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (values or {}).items() if value is not None}


def _other_secrets(rest: Rest, wanted: Wanted, path: str, current: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Secrets that the gateway has with other values, each as (member, key)."""
    asked: dict[str, Any] = {}
    for name in wanted.kind.secret_maps:
        hidden = {key for key, value in (current.get(name) or {}).items() if value == HIDDEN}
        known = {key: value for key, value in _there(wanted.body.get(name)).items() if key in hidden}
        asked |= {name: known} if known else {}
    for name in wanted.kind.secret_parts:
        given = wanted.body.get(name)
        # What is shown alike may have another secret; where a mark stands for it in the file, too, it stays.
        if given and given != wanted.shown[name] and wanted.shown[name] == current.get(name):
            asked[name] = given
    if wanted.kind is ISSUERS and wanted.body.get("secret") is not None:
        if not _has_secret(current):
            return [("secret", "")]
        asked["secret"] = wanted.body["secret"]
    if (secret := _client_secret(wanted)) is not None and (current.get(wanted.kind.signs_in) or {}).get(IS_THERE):
        asked[wanted.kind.signs_in] = {"client_secret": secret}
    if not asked:
        return []
    different = set(rest.compare(path, asked))
    known_names = {
        f"{name}.{key}": (name, key)
        for name in (*wanted.kind.secret_maps, wanted.kind.signs_in)
        for key in asked.get(name, ())
    }
    known_names |= {name: (name, "") for name in ("secret", *wanted.kind.secret_parts) if name in asked}
    if not different <= set(known_names):
        raise GatewayError(f"{rest.url} compares members that were not asked for")
    return [known_names[name] for name in known_names if name in different]


def _completed(patch: dict[str, Any], wanted: Wanted, current: Mapping[str, Any]) -> dict[str, Any]:
    """The patch, with what the gateway wants to be told again, or in other words."""
    patch |= {name: wanted.body[name] for name in wanted.kind.documents if patch.get(name) is not None}
    if wanted.kind is BACKENDS and ("url" in patch or {"ca", "proxy"} & (patch.get("connect") or {}).keys()):
        # Their values are for the host of the old URL, and whoever was believed to be it.
        for member in ("headers", "connect"):
            if given := _there(wanted.body.get(member)):
                patch[member] = {**(patch.get(member) or {}), **given}
    if wanted.kind.signs_in:
        _tell_client_secret(patch, wanted)
    if wanted.kind is ISSUERS and wanted.body.get("secret") is None and _has_secret(current) and patch:
        patch["secret"] = None
    return patch


def _tell_client_secret(patch: dict[str, Any], wanted: Wanted) -> None:
    """In the place of whether there is one; and again for another provider."""
    client = dict(patch.get(wanted.kind.signs_in) or {})
    secret, is_other = _client_secret(wanted), IS_THERE in client
    client.pop(IS_THERE, None)
    if is_other or (secret is not None and "discovery_url" in patch):
        patch[wanted.kind.signs_in] = {**client, "client_secret": secret}


def _client_secret(wanted: Wanted) -> str | None:
    client = wanted.body.get(wanted.kind.signs_in)
    return client.get("client_secret") if isinstance(client, Mapping) else None


def _has_secret(issuer: Mapping[str, Any]) -> bool:
    return issuer.get("jwks_url") is None and issuer.get("discovery_url") is None
