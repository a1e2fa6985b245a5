"""Requests that are answered once: what `Idempotency-Key` needs in the database. Knows digests and sealed bytes."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, delete, func, insert, or_, select, update

from app.errors import Conflict, QuotaExceeded
from app.reached import FIXED, Reached
from app.storage.engine import Database
from app.storage.tables import idempotency

KEPT = timedelta(hours=24)
UNDER_WAY = timedelta(minutes=5)  # longer than any request takes: then whoever began it has died
MAX_PER_CALLER = 1_000  # within KEPT; what one credential can fill the database with


@dataclass(frozen=True, slots=True)
class Begun:
    """A request with the same key that came before. Without an answer it is under way."""

    body: bytes
    answer: bytes | None


class IdempotencyRepository:
    """Remembers requests by a digest of caller, address and key."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, tenant: str, caller: bytes, digest: bytes, body: bytes, now: datetime) -> Begun | None:
        """Takes the digest for this request, unless there was one before: then that is returned.

        Raises:
            Conflict: another request takes it in this moment.
            NotFound: the caller's tenant is gone.
            QuotaExceeded: the caller has used MAX_PER_CALLER keys within a day.
        """
        is_given_up = and_(idempotency.c.answer.is_(None), idempotency.c.created_at < now - UNDER_WAY)
        count = select(func.count()).select_from(idempotency).where(idempotency.c.caller == caller)
        async with self._database.write() as connection:
            await connection.execute(delete(idempotency).where(or_(idempotency.c.created_at < now - KEPT, is_given_up)))
            before = await connection.execute(select(idempotency).where(idempotency.c.digest == digest))
            if (row := before.one_or_none()) is not None:
                return Begun(bytes(row.body), None if row.answer is None else bytes(row.answer))
            if (await connection.execute(count)).scalar_one() >= MAX_PER_CALLER:
                reached = Reached("idempotency_keys", "principal", MAX_PER_CALLER, MAX_PER_CALLER, FIXED)
                raise QuotaExceeded(
                    "idempotency_keys", f"at most {MAX_PER_CALLER} idempotency keys a day", reached=reached
                )
            values = {"digest": digest, "tenant": tenant, "caller": caller, "body": body, "created_at": now}
            await connection.execute(insert(idempotency).values(values))
        return None

    async def keep(self, tenant: str, digest: bytes, answer: bytes) -> None:
        """The request has its answer: repetitions get this one."""
        mine = and_(idempotency.c.tenant == tenant, idempotency.c.digest == digest)
        async with self._database.write() as connection:
            result = await connection.execute(update(idempotency).where(mine).values(answer=answer))
            if not result.rowcount:
                raise Conflict("the request was given up for dead")

    async def release(self, tenant: str, digest: bytes) -> None:
        """The request came to nothing: the next one with its key is tried anew."""
        mine = and_(idempotency.c.tenant == tenant, idempotency.c.digest == digest)
        async with self._database.write() as connection:
            await connection.execute(delete(idempotency).where(mine))
