"""The database of a node here, used by one command at a time and closed after it, also while the gateway runs.

Commands never make one, and never change its schema: that is for `serve` and `migrate`.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from app.cli.settings import settings_only_read, why_this_data_dir
from app.config.settings import Settings
from app.domain import DEFAULT_TENANT
from app.errors import GatewayError
from app.storage import BackendRepository, Database, TenantRepository
from app.storage.audit_act import Act, Change
from app.storage.engine import place_of
from app.storage.migrate import check
from app.storage.secret_key import SecretKeyCheck

PAGE = 200
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DatabaseHere:
    """The database that a command's settings name; there is one, with this version's schema."""

    settings: Settings

    def run(self, do: Callable[[Database], Awaitable[_T]]) -> _T:
        """What `do` returns."""

        async def run() -> _T:
            database = Database(self.settings.database_url)
            try:
                return await do(database)
            finally:
                await database.aclose()

        return asyncio.run(run())


def database_here(options: argparse.Namespace, *, say: bool = True, any_key: bool = False) -> DatabaseHere:
    """The database, once stderr has said which it is. `any_key`: it may have been made with another secret key.

    Raises:
        GatewayError: there is none, it has another schema, or it was made with another secret key.
    """
    found = find_database(options, say=say, any_key=any_key)
    if found is None:
        raise no_database(settings_only_read(options).database_url)
    return found


def find_database(options: argparse.Namespace, *, say: bool = True, any_key: bool = False) -> DatabaseHere | None:
    """The same; None if there is none yet."""
    settings = settings_only_read(options)
    if say:
        say_which(options, settings)
    if not is_there(settings):
        return None
    check(settings.database_url)
    here = DatabaseHere(settings)
    if settings.secret_key and not any_key:
        here.run(lambda database: SecretKeyCheck(database, settings.secret_key).require())
    return here


def say_which(options: argparse.Namespace, settings: Settings) -> None:
    """One line on stderr: which database this is about, and why this one where nobody has said so."""
    place, why = place_of(settings.database_url), why_this_data_dir(options, settings)
    aside = f" ({why})" if why and Path(place).is_relative_to(settings.data_dir) else ""
    missing = "" if is_there(settings) else "; there is none yet"
    print(f"trunkline: database {place}{aside}{missing}", file=sys.stderr)


def is_there(settings: Settings) -> bool:
    """Whether there is a database; a server is asked for its schema later."""
    file = settings.database_url.removeprefix("sqlite:///")
    return file == settings.database_url or Path(file).exists()


def no_database(url: str) -> GatewayError:
    """What to do next where there is none."""
    return GatewayError(
        f"there is no database at {place_of(url)}",
        hint="`trunkline serve` makes one, and so does `trunkline migrate`. If a gateway runs already, name its data "
        "directory with --data-dir or TRUNKLINE_DATA_DIR (its log says which it is)",
    )


def secret_key_of(here: DatabaseHere) -> bytes:
    """The key that the database was made with.

    Raises:
        GatewayError: it is neither set nor kept beside the database.
    """
    if here.settings.secret_key:
        return here.settings.secret_key
    raise GatewayError(
        f"there is a database, but no secret key in {here.settings.data_dir}",
        hint="put the file `secret_key` back from the backup, or set TRUNKLINE_SECRET_KEY to the gateway's",
    )


def act_of_user(tenant: str, action: str, target: str, detail: str = "", *, changes: tuple[Change, ...] = ()) -> Act:
    """For the audit trail: on the command line the operating system knows who it is."""
    actor = (DEFAULT_TENANT, "cli", f"uid {os.getuid()}")
    return Act(tenant, actor, action, target, datetime.now(UTC), "", detail, changes)


async def backend_names(database: Database, tenant: str) -> list[str]:
    """Every backend of the tenant."""
    await TenantRepository(database).get(tenant)
    repository, names = BackendRepository(database), list[str]()
    while page := await repository.list(tenant, after=names[-1] if names else "", limit=PAGE):
        names += [spec.name for spec in page]
    return names
