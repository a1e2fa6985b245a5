"""The database of a node here, used by one command at a time and closed after it, also while the gateway runs."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from app.domain import DEFAULT_TENANT
from app.settings import Settings
from app.storage import BackendRepository, Database, TenantRepository
from app.storage.acts import Act
from app.storage.migrate import check, prepare

PAGE = 200
_T = TypeVar("_T")


def look_into_database(settings: Settings, do: Callable[[Database], Awaitable[_T]]) -> _T | None:
    """What is in the database, which is left as it is; None if there is none yet."""
    file = settings.database_url.removeprefix("sqlite:///")
    if file != settings.database_url and not Path(file).exists():
        return None
    check(settings.database_url)
    return _with_database(settings, do)


def in_database(settings: Settings, do: Callable[[Database], Awaitable[_T]]) -> _T:
    """What `do` returns, after the database was brought up to date."""
    prepare(settings.database_url)
    return _with_database(settings, do)


def _with_database(settings: Settings, do: Callable[[Database], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        database = Database(settings.database_url)
        try:
            return await do(database)
        finally:
            await database.aclose()

    return asyncio.run(run())


def act_of_user(tenant: str, action: str, target: str, detail: str = "") -> Act:
    """For the audit trail: on the command line the operating system knows who it is."""
    return Act(tenant, (DEFAULT_TENANT, "cli", f"uid {os.getuid()}"), action, target, datetime.now(UTC), "", detail)


async def backend_names(database: Database, tenant: str) -> list[str]:
    """Every backend of the tenant."""
    await TenantRepository(database).get(tenant)
    repository, names = BackendRepository(database), list[str]()
    while page := await repository.list(tenant, after=names[-1] if names else "", limit=PAGE):
        names += [spec.name for spec in page]
    return names
