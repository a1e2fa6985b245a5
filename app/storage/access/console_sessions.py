"""Sessions of the console in the database: digests of cookies, and the sealed credentials behind them."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, insert, select

from app.storage._rows import matching
from app.storage._tables import console_sessions
from app.storage.engine import Database

MAX_PER_CALLER = 50  # of one credential; beyond it the one that was begun first ends


@dataclass(frozen=True, slots=True)
class StoredSession:
    """`sealed`: the credential of whoever has signed in."""

    sealed: bytes
    ends_at: datetime


class ConsoleSessionRepository:
    """Console sessions by the SHA-256 of their cookie."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, digest: bytes, caller: bytes, sealed: bytes, now: datetime, ends_at: datetime) -> None:
        """Stores a session, and removes those that are over. `caller` is a digest of the credential."""
        table = console_sessions
        async with self._database.write() as connection:
            await connection.execute(delete(table).where(table.c.ends_at <= now))
            mine = select(table.c.digest).where(table.c.caller == caller).order_by(table.c.created_at.desc())
            kept = (await connection.execute(mine)).scalars().all()
            for surplus in kept[MAX_PER_CALLER - 1 :]:
                await connection.execute(delete(table).where(table.c.digest == surplus))
            values = {"digest": digest, "caller": caller, "sealed": sealed, "created_at": now, "ends_at": ends_at}
            await connection.execute(insert(table).values(values))

    async def find(self, digest: bytes, now: datetime) -> StoredSession | None:
        """The session, unless it is over."""
        async with self._database.read() as connection:
            row = (
                await connection.execute(select(console_sessions).where(matching(console_sessions, digest=digest)))
            ).one_or_none()
        if row is None or row.ends_at <= now:
            return None
        return StoredSession(bytes(row.sealed), row.ends_at)

    async def going_on(self, digests: Collection[bytes], now: datetime) -> set[bytes]:
        """Those of these sessions that are not over."""
        table = console_sessions
        wanted = select(table.c.digest).where(table.c.digest.in_(digests), table.c.ends_at > now)
        async with self._database.read() as connection:
            return {bytes(each) for each in (await connection.execute(wanted)).scalars()}

    async def remove(self, digest: bytes) -> None:
        """Ends a session. Does nothing if there is none."""
        async with self._database.write() as connection:
            await connection.execute(delete(console_sessions).where(matching(console_sessions, digest=digest)))
