"""Act: something that was done to the configuration, to a credential or to what runs; and how it is written down."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.storage.changes import Change, kept_of
from app.storage.tables import audit

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
