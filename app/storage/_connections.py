"""Connections for tasks, of an engine with an asynchronous driver: what waits runs in a greenlet.

Those of `sqlalchemy.ext.asyncio` do the same, and import the ORM, which nothing here uses: 7 MB, 40 ms of each start.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from sqlalchemy import Connection, CursorResult, Engine, Executable
from sqlalchemy.util import greenlet_spawn


class AsyncConnection:
    """A connection in use. Results have all their rows."""

    def __init__(self, connection: Connection) -> None:
        self.sync = connection

    async def execute(self, statement: Executable, values: Any = None) -> CursorResult[Any]:
        return await greenlet_spawn(self.sync.execute, statement, values)

    async def exec_driver_sql(self, statement: str) -> CursorResult[Any]:
        return await greenlet_spawn(self.sync.exec_driver_sql, statement)


@asynccontextmanager
async def connected(engine: Engine) -> AsyncIterator[AsyncConnection]:
    """A connection of the engine's pool."""
    connection = await greenlet_spawn(engine.connect)
    try:
        yield AsyncConnection(connection)
    finally:
        with anyio.CancelScope(shield=True):
            await greenlet_spawn(connection.close)


@asynccontextmanager
async def begun(engine: Engine) -> AsyncIterator[AsyncConnection]:
    """The same with a transaction: it commits at the end, rolls back on an exception."""
    async with connected(engine) as connection:
        transaction = await greenlet_spawn(connection.sync.begin)
        try:
            yield connection
        except BaseException as error:
            await greenlet_spawn(transaction.__exit__, type(error), error, error.__traceback__)
            raise
        await greenlet_spawn(transaction.__exit__, None, None, None)


async def dispose(engine: Engine) -> None:
    """Closes the connections of its pool."""
    await greenlet_spawn(engine.dispose)
