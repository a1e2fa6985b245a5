"""What a check proposes, as one merge patch of the backend; and a larger limit for one that was reached. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from app.backends.checks._missed import Missed
from app.domain import BackendSpec
from app.domain.resources.members import plain
from app.processes.endings import RAISING

_TENANT_MEMORY = "tenant_memory"
_ENOUGH = "No larger limit is proposed: a server that needs more than that is seldom right. "


class _Limit(NamedTuple):
    """A member of `limits`, what it counts, and the largest that is proposed: a program that takes all it gets is not
    given more and more."""

    member: str
    words: str
    most: float


_LIMITS = {
    "memory": _Limit("memory_mb", "MiB of memory", 8192),
    "pids": _Limit("pids", "processes and threads", 2048),
    "files": _Limit("files", "open files", 65536),
    "disk": _Limit("disk_mb", "MiB of files", 8192),
    "cpu": _Limit("cpu", "cores", 8),
}


def missed_limit(limit: str, spec: BackendSpec, count: int = 1) -> Missed | None:
    """A limit that the process had reached, if it is one of those that can be raised. How much more it needs is not
    known, so twice as much is proposed."""
    if limit == _TENANT_MEMORY:
        return Missed("limit", "the memory of all processes of its tenant", None, count, None, note=RAISING[limit])
    known = _LIMITS.get(limit)
    now = None if known is None else getattr(spec.limits, known.member)
    if known is None or now is None:
        return None
    what = f"{now:g} {known.words}"
    if 2 * now > known.most:
        return Missed("limit", what, None, count, None, note=_ENOUGH + RAISING[limit])
    return Missed("limit", what, None, count, {known.member: 2 * now})


def member_of(missed: Missed) -> str:
    """The member of the backend to which its proposal is to be added."""
    return "limits" if missed.kind == "limit" else "sandbox"


def patch_of(spec: BackendSpec, missed: Iterable[Missed]) -> dict[str, Any]:
    """A merge patch (RFC 7396) that adds these proposals; empty if the backend has all of them.

    Without `network: host`, which opens everything to the process: a person decides that for itself.
    """
    now: dict[str, Any] = {"sandbox": plain(spec.sandbox), "limits": plain(spec.limits)}
    wanted = now
    for each in missed:
        if each.proposal is not None and not opens_all(each.proposal):
            wanted = _joined(wanted, {member_of(each): each.proposal})
    changed = {part: _changed(now[part], wanted[part]) for part in now}
    return {part: members for part, members in changed.items() if members}


def opens_all(proposal: Mapping[str, Any]) -> bool:
    return proposal.get("network") == "host"


def _changed(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in wanted.items() if value != now.get(name)}


def _joined(now: Any, added: Any) -> Any:
    """Lists have both, objects the members of both; of anything else what is added. A network in words and one that
    lists where to are both kept: the list may have the web besides."""
    if isinstance(now, Mapping) and isinstance(added, Mapping):
        return {**now, **{name: _joined(now.get(name), each) for name, each in added.items()}}
    if isinstance(now, list) and isinstance(added, list):
        return list(dict.fromkeys([*now, *added]))
    if isinstance(added, Mapping) and now == "web":
        return {**added, "web": True}
    return {**now, "web": True} if isinstance(now, Mapping) and added == "web" else added
