"""What callers have used of their limits, in the database: for a node without Redis, which is alone."""

import time
from collections.abc import Sequence

from sqlalchemy import delete, insert, select, update

from app.storage._tables import call_counts
from app.storage.engine import Database


class CallCountRepository:
    """Fulfils `limits.caller_limits.CountStore`."""

    pause_s = 1.0

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, counted: Sequence[tuple[str, int, int]]) -> Sequence[int]:
        """Raises StorageUnavailable."""
        table, totals = call_counts, list[int]()
        async with self._database.write() as connection:
            await connection.execute(delete(table).where(table.c.ends_at < int(time.time())))
            for name, number, ends_at in counted:
                row = table.c.name == name
                added = update(table).where(row).values(calls=table.c.calls + number)
                if not (await connection.execute(added)).rowcount:
                    await connection.execute(insert(table).values(name=name, calls=number, ends_at=ends_at))
                totals.append((await connection.execute(select(table.c.calls).where(row))).scalar_one())
        return totals
