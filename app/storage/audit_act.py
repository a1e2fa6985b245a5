"""Act: something that was done to the configuration, to a credential or to what runs; what of an object it changed; and
how much of that is written down."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.storage.tables import audit

MAX_VALUE = 500  # characters of JSON; of a longer value its beginning is kept, as text
MAX_CHANGES = 8 << 10  # of all that is kept of one act; names of members that do not fit stand in its detail


@dataclass(frozen=True, slots=True)
class Change:
    """One member, by its path: `limits.sessions`. Values are JSON's; None is nothing, and a secret is a mark."""

    member: str
    old: Any
    new: Any


def kept_of(changes: Sequence[Change]) -> dict[str, Any] | None:
    """What the trail keeps: as many as fit, and how many did not."""
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
    """The same, read back: the changes, and how many did not fit."""
    if kept is None:
        return (), 0
    return tuple(Change(*row) for row in kept["members"]), kept["left_out"]


def between(old: Mapping[str, Any], new: Mapping[str, Any], also: Iterable[str] = ()) -> tuple[Change, ...]:
    """What differs between two objects as JSON. Members of members have paths of their own; `also` are paths of what
    differs behind marks that look alike."""
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


MAX_DETAIL = 1000


@dataclass(frozen=True, slots=True)
class Act:
    """Who did what to which object, and what was otherwise before. Holds no secret.

    `tenant` is the one it concerns, `actor` the identity of a principal; `action` is a word such as
    `backend.create`, `target` the object's path below its tenant, `request_id` that of the log.
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
    """Writes it down in the transaction of the change itself: neither is there without the other."""
    actor_tenant, issuer, subject = act.actor
    values = {
        "at": act.at,
        "tenant": act.tenant,
        "actor_tenant": actor_tenant,
        "actor_issuer": issuer,
        "actor_subject": subject,
        "action": act.action,
        "target": act.target,
        "request_id": act.request_id,
        "detail": act.detail[:MAX_DETAIL],
        "changes": kept_of(act.changes),
    }
    await connection.execute(insert(audit).values(values))
