"""What the repositories share: which rows are meant, how many there may be, and rows that carry a version."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import JSON, ColumnElement, Delete, Row, Select, Table, Update, and_, delete, func, select, update

from app.domain.resources.members import declared_members, plain, reader_of
from app.errors import FIXED, ConcurrentChange, LimitReached, NotFound, QuotaExceeded, Whose
from app.storage._connections import AsyncConnection
from app.storage.audit import Act
from app.storage.engine import Database

V = TypeVar("V")


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


def values_of(value: object, table: Table) -> dict[str, Any]:
    """The columns of an object of a declared model, as far as the table has them."""
    members = {each.name: getattr(value, each.name) for each in declared_members(type(value)) if each.name in table.c}
    return {name: plain(each) if isinstance(table.c[name].type, JSON) else each for name, each in members.items()}


def object_of(model: type[V], row: Row[Any], **given: Any) -> V:
    """The object of a declared model that a row has, with members that are given."""
    made: V = reader_of(model)(row._asdict(), **given)
    return made


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


class NamedRepository(Generic[V]):
    """Finds and changes what has a name and a version, always of one tenant. `_select` and `_value` say how
    a value is read."""

    def __init__(self, database: Database, table: Table, what: str, missing: Callable[[], NotFound]) -> None:
        self._database, self._table, self._missing = database, table, missing
        self._versioned = VersionedTable(table, ["tenant", "name"], what, missing)

    async def get(self, tenant: str, name: str) -> V:
        """Raises NotFound: the tenant has none of this name."""
        row = await self._database.row(self._select().where(self._versioned.row(tenant, name)))
        if row is None:
            raise self._missing()
        return self._value(row)

    async def list(self, tenant: str, *, after: str = "", limit: int | None = None) -> Sequence[V]:
        """Up to `limit` values by name, after the name `after`; without `limit` all of them."""
        own = (self._table.c.tenant == tenant) & (self._table.c.name > after)
        rows = await self._database.rows(self._select().where(own).order_by(self._table.c.name).limit(limit))
        return [self._value(row) for row in rows]

    async def delete(self, tenant: str, name: str, *, version: int | None = None, act: Act | None = None) -> None:
        """Removes the value; with a `version`, only that one.

        Raises:
            NotFound: the tenant has none of this name.
            ConcurrentChange: it is another version now.
        """
        await self._versioned.delete(self._database, [tenant, name], version, act)

    def _select(self) -> Select[Any]:
        return select(self._table)

    def _value(self, row: Row[Any]) -> V:
        raise NotImplementedError
