"""`Idempotency-Key` in the database: digests of requests, and their sealed answers."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, delete, insert, or_, select, update

from app.errors import Conflict
from app.storage._rows import matching, require_room
from app.storage._tables import idempotency
from app.storage.engine import Database

KEPT = timedelta(hours=24)
UNDER_WAY = timedelta(minutes=5)  # longer than any request takes: after that the node that began it has died
MAX_PER_CALLER = 1_000  # within KEPT; what one credential can fill the database with


@dataclass(frozen=True, slots=True)
class Begun:
    """An earlier request with the same key. Without an answer it is still under way."""

    body: bytes
    answer: bytes | None


class IdempotencyRepository:
    """Remembers requests by a digest of caller, address and key."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, tenant: str, caller: bytes, digest: bytes, body: bytes, now: datetime) -> Begun | None:
        """Takes the digest for this request; returns the earlier request that has it, if there is one.

        Raises:
            Conflict: another request has taken it just now.
            NotFound: the caller's tenant is gone.
            QuotaExceeded: the caller has used MAX_PER_CALLER keys within a day.
        """
        is_given_up = and_(idempotency.c.answer.is_(None), idempotency.c.created_at < now - UNDER_WAY)
        async with self._database.write() as connection:
            await connection.execute(delete(idempotency).where(or_(idempotency.c.created_at < now - KEPT, is_given_up)))
            before = await connection.execute(select(idempotency).where(idempotency.c.digest == digest))
            if (row := before.one_or_none()) is not None:
                return Begun(bytes(row.body), None if row.answer is None else bytes(row.answer))
            mine, message = idempotency.c.caller == caller, f"at most {MAX_PER_CALLER} idempotency keys a day"
            await require_room(connection, mine, "idempotency_keys", MAX_PER_CALLER, message, of="principal")
            values = {"digest": digest, "tenant": tenant, "caller": caller, "body": body, "created_at": now}
            await connection.execute(insert(idempotency).values(values))
        return None

    async def keep(self, tenant: str, digest: bytes, answer: bytes) -> None:
        """Stores the answer for repetitions of the request. Raises Conflict if it was forgotten meanwhile."""
        mine = matching(idempotency, tenant=tenant, digest=digest)
        async with self._database.write() as connection:
            if not (await connection.execute(update(idempotency).where(mine).values(answer=answer))).rowcount:
                raise Conflict("the request was given up for dead")

    async def release(self, tenant: str, digest: bytes) -> None:
        """Forgets a request that failed: the next one with its key is tried again."""
        async with self._database.write() as connection:
            await connection.execute(delete(idempotency).where(matching(idempotency, tenant=tenant, digest=digest)))
