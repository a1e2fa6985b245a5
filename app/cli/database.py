"""The database of a node on this machine, opened for one command, also while the gateway runs.

Only `serve` and `migrate` create a database or change its schema.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from app.admin.client_config import local_url
from app.cli.rest import MOST_BACKENDS, MOST_SHOWN, NoTenant
from app.domain import DEFAULT_TENANT
from app.errors import GatewayError, NotFound
from app.settings.data_directory import is_in_working_directory
from app.settings.environment import PREFIX
from app.settings.settings import Settings
from app.storage.audit import Act, Change
from app.storage.backends import BackendRepository
from app.storage.engine import Database, place_of
from app.storage.migrate import check
from app.storage.secret_key import SecretKeyCheck
from app.storage.tenants import TenantRepository
from app.storage.tools.toolsets import ToolsetRepository

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DatabaseHere:
    """A database that exists and has this version's schema."""

    settings: Settings

    def run(self, do: Callable[[Database], Awaitable[_T]]) -> _T:
        """The result of `do` with the opened database."""

        async def run() -> _T:
            database = Database(self.settings.database_url)
            try:
                return await do(database)
            finally:
                await database.aclose()

        return asyncio.run(run())


def settings_only_read(options: argparse.Namespace) -> Settings:
    """The settings of a node here. Creates neither a data directory nor a key: without one `secret_key` is empty."""
    return Settings.from_env(os.environ, make=False, data_dir=options.data_dir)


def database_here(options: argparse.Namespace, *, say: bool = True, any_key: bool = False) -> DatabaseHere:
    """The database that the settings name. With `say` its place is printed on stderr first; with `any_key` it may
    belong to another secret key.

    Raises:
        GatewayError: it does not exist, has another schema, or belongs to another secret key.
    """
    found = find_database(options, say=say, any_key=any_key)
    if found is None:
        raise GatewayError(
            f"there is no database at {place_of(settings_only_read(options).database_url)}",
            hint="`trunkline serve` and `trunkline migrate` create one. If a gateway runs already, name its data "
            "directory with --data-dir or TRUNKLINE_DATA_DIR (its log says which it is)",
        )
    return found


def find_database(options: argparse.Namespace, *, say: bool = True, any_key: bool = False) -> DatabaseHere | None:
    """Like `database_here`; None if it does not exist."""
    settings = settings_only_read(options)
    if say:
        say_which(options, settings)
    if not _exists(settings):
        return None
    check(settings.database_url)
    here = DatabaseHere(settings)
    if settings.secret_key and not any_key:
        here.run(lambda database: SecretKeyCheck(database, settings.secret_key).require())
    return here


def say_which(options: argparse.Namespace, settings: Settings) -> None:
    """Prints on stderr which database is used, and why this one if nobody named it."""
    place, why = place_of(settings.database_url), ""
    is_named = options.data_dir or os.environ.get(PREFIX + "DATA_DIR", "").strip()
    if not is_named and Path(place).is_relative_to(settings.data_dir):
        why = " (the default)"
        if is_in_working_directory(settings.data_dir):
            why = " (in the working directory, which takes precedence over the default)"
    print(f"trunkline: database {place}{why}{'' if _exists(settings) else '; it does not exist yet'}", file=sys.stderr)


def _exists(settings: Settings) -> bool:
    """A database on a server counts as existing: `check` asks for its schema."""
    file = settings.database_url.removeprefix("sqlite:///")
    return file == settings.database_url or Path(file).exists()


def secret_key_of(here: DatabaseHere) -> bytes:
    """The secret key of the settings.

    Raises:
        GatewayError: it is neither set nor in the data directory.
    """
    if here.settings.secret_key:
        return here.settings.secret_key
    raise GatewayError(
        f"there is a database, but no secret key in {here.settings.data_dir}",
        hint="restore the file `secret_key` from the backup, or set TRUNKLINE_SECRET_KEY to the gateway's",
    )


def act_of_user(tenant: str, action: str, target: str, detail: str = "", *, changes: tuple[Change, ...] = ()) -> Act:
    """An entry for the audit trail; its actor is the user id of this process."""
    actor = (DEFAULT_TENANT, "cli", f"uid {os.getuid()}")
    return Act(tenant, actor, action, target, datetime.now(UTC), "", detail, changes)


async def backend_names(database: Database, tenant: str) -> list[str]:
    """The names of the tenant's backends."""
    await TenantRepository(database).get(tenant)
    return [spec.name for spec in await BackendRepository(database, None).list(tenant, limit=MOST_BACKENDS)]


def known_to_clients(options: argparse.Namespace) -> tuple[str, Sequence[str] | None, bool]:
    """The address of this machine's gateway for clients, the names of the tenant's backends and toolsets, and whether
    its clients sign in; None and False without a database."""
    settings = settings_only_read(options)
    base = settings.public_url or local_url(settings.host, settings.port, is_tls=settings.tls_cert is not None)
    here = find_database(options)
    return (
        (base, None, False) if here is None else (base, *here.run(lambda database: _known_in(database, options.tenant)))
    )


async def _known_in(database: Database, tenant: str) -> tuple[list[str], bool]:
    try:
        backends = await backend_names(database, tenant)
    except NotFound:
        tenants = await TenantRepository(database).list(limit=MOST_SHOWN)
        raise NoTenant(tenant, [each.name for each in tenants]) from None
    toolsets = await ToolsetRepository(database).list(tenant, limit=MOST_BACKENDS)
    signs_in = (await TenantRepository(database).get(tenant)).sign_in is not None
    return [*backends, *(each.name for each in toolsets)], signs_in
