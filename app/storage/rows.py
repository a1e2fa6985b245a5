"""What the repositories share: which rows are meant, how many there may be, and rows that carry a version."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Delete, Table, Update, and_, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.errors import ConcurrentChange, NotFound, QuotaExceeded
from app.limit_reached import FIXED, LimitReached, Whose
from app.storage.audit_act import Act
from app.storage.engine import Database


def microseconds(at: datetime) -> int:
    """Since 1970."""
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def matching(table: Table, **values: object) -> ColumnElement[bool]:
    """Rows of the table with these values; None is NULL."""
    return and_(*(table.c[name] == value for name, value in values.items()))


async def require_room(
    connection: AsyncConnection, rows: ColumnElement[bool], limit: str, most: int, message: str, *, of: Whose = "tenant"
) -> None:
    """Raises QuotaExceeded where there are `most` of these rows already."""
    if (await connection.execute(select(func.count()).where(rows))).scalar_one() >= most:
        raise QuotaExceeded(limit, message, reached=LimitReached(limit, of, most, most, FIXED))


class VersionedTable:
    """Rows that are changed and deleted only as they were read.

    `key` are the columns that name a row; `missing` makes the error where there is no such row.
    """

    def __init__(self, table: Table, key: Sequence[str], what: str, missing: Callable[[], NotFound]) -> None:
        self._table, self._key, self._what, self._missing = table, key, what, missing

    def row(self, *key: str) -> ColumnElement[bool]:
        """The row with this key, whatever its version."""
        return matching(self._table, **dict(zip(self._key, key, strict=True)))

    async def update(
        self, connection: AsyncConnection, key: Sequence[str], version: int, values: Mapping[str, Any]
    ) -> None:
        """Writes a row that was read in this version.

        Raises:
            NotFound: it is gone.
            ConcurrentChange: it has another version now.
        """
        unchanged = and_(self.row(*key), self._table.c.version == version)
        await self._change(connection, update(self._table).where(unchanged).values(values), key)

    async def delete(self, database: Database, key: Sequence[str], version: int | None, *acts: Act | None) -> None:
        """Removes a row in a transaction of its own; with a `version`, only in this one.

        Raises:
            NotFound, ConcurrentChange: as `update`.
        """
        doomed = self.row(*key)
        if version is not None:
            doomed &= self._table.c.version == version
        async with database.write(*acts) as connection:
            await self._change(connection, delete(self._table).where(doomed), key)

    async def _change(self, connection: AsyncConnection, statement: Update | Delete, key: Sequence[str]) -> None:
        if (await connection.execute(statement)).rowcount:
            return
        if (await connection.execute(select(self._table.c.version).where(self.row(*key)))).first() is None:
            raise self._missing()
        raise ConcurrentChange(f"the {self._what} was changed by somebody else; read it again")
