"""Act: an administrative action for the audit trail, with the changes it made, cut to what the trail stores."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert

from app.storage._connections import AsyncConnection
from app.storage._tables import audit

MAX_VALUE = 500  # characters of JSON; of a longer value the beginning is stored, as text
MAX_DETAIL = 1000  # characters
MAX_CHANGES = 8 << 10  # bytes of all changes of one act; the names of members that do not fit are in its detail


@dataclass(frozen=True, slots=True)
class Change:
    """One member, by its path: `limits.sessions`. Values are JSON; None is no value, a secret only a placeholder."""

    member: str
    old: Any
    new: Any


def kept_of(changes: Sequence[Change]) -> dict[str, Any] | None:
    """The changes as the trail stores them: as many as fit, and the number of the others."""
    if not changes:
        return None
    kept, size = list[list[Any]](), 0
    for each in changes:
        row = [each.member, _cut(each.old), _cut(each.new)]
        size += len(json.dumps(row))
        if size > MAX_CHANGES:
            break
        kept.append(row)
    return {"members": kept, "left_out": len(changes) - len(kept)}


def changes_in(kept: Mapping[str, Any] | None) -> tuple[tuple[Change, ...], int]:
    """The inverse of `kept_of`: the stored changes, and the number of the others."""
    if kept is None:
        return (), 0
    return tuple(Change(*row) for row in kept["members"]), kept["left_out"]


def between(old: Mapping[str, Any], new: Mapping[str, Any], also: Iterable[str] = ()) -> tuple[Change, ...]:
    """The differences of two JSON objects, by path. `also` are paths of secrets that differ although their placeholders
    are equal."""
    before, after, unlike = _flat(old), _flat(new), frozenset(also)
    members = dict.fromkeys([*before, *after])
    found = (Change(each, before.get(each), after.get(each)) for each in members)
    return tuple(each for each in found if each.old != each.new or each.member in unlike)


def _flat(members: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found = dict[str, Any]()
    for name, value in members.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _cut(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= MAX_VALUE:
        return value
    return (value if isinstance(value, str) else text)[:MAX_VALUE] + "…"


@dataclass(frozen=True, slots=True)
class Act:
    """Who did what to which object, and what that changed. Holds no secret.

    `tenant` is the one it concerns, `actor` the identity of a principal, `action` a word such as `backend.create`,
    `target` the object's path below its tenant, `request_id` that of the log.
    """

    tenant: str
    actor: tuple[str, str, str]
    action: str
    target: str
    at: datetime
    request_id: str = ""
    detail: str = ""
    changes: tuple[Change, ...] = ()


async def record(connection: AsyncConnection, act: Act) -> None:
    """Writes it in the transaction of the change itself, so that there is never one without the other."""
    actor = dict(zip(("actor_tenant", "actor_issuer", "actor_subject"), act.actor, strict=True))
    values = {**asdict(act), **actor, "detail": act.detail[:MAX_DETAIL], "changes": kept_of(act.changes)}
    del values["actor"]
    await connection.execute(insert(audit).values(values))
