"""The command `trunkline`. Exit codes: 0 done, 1 failed, 2 wrong usage or settings."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from app import __version__
from app.auth import KeyMaker
from app.auth.policy import is_platform_scope, is_scope
from app.domain import DEFAULT_TENANT, is_name
from app.errors import GatewayError, InvalidRequest, SettingsError
from app.settings import Settings
from app.storage import ApiKey, ApiKeyRepository, Database, TenantRepository
from app.storage.migrate import check, upgrade

DEFAULT_EXPIRY_DAYS = 90
MAX_EXPIRY_DAYS = 3650
MAX_KEY_NAME = 200
_PAGE = 200
_LAYOUT = argparse.RawDescriptionHelpFormatter
_T = TypeVar("_T")

_EXAMPLES = """
examples:
  trunkline serve                                  one node on http://127.0.0.1:8080
  trunkline serve --demo                           the same with a backend to try it on
  trunkline keys create --tenant default --scope platform:admin
                                                   the first administrator's key
  trunkline keys create --tenant acme --scope mcp:connect --expires-days 30
  trunkline keys list --tenant acme

Settings are environment variables TRUNKLINE_<NAME>, for example TRUNKLINE_DATA_DIR; see docs/settings.md.
"""
_KEYS_EXAMPLES = """
scopes:
  mcp:connect             use every backend of the tenant
  mcp:connect:BACKEND     use this one
  tenant:read             look at the tenant's backends and keys
  tenant:admin            all of these, and manage the tenant's keys
  audit:read              read the audit trail
  metrics:read            read /metrics from another machine
  platform:admin          everything, in every tenant; only in the tenant `default`

The commands work on the database directly, also while the gateway runs; a revocation
reaches a running gateway within 30 seconds.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the process's exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except SettingsError as error:
        print(f"trunkline: {error}", file=sys.stderr)
        return 2
    except GatewayError as error:
        print(f"trunkline: {error}" + (f" ({error.hint})" if error.hint else ""), file=sys.stderr)
        return 2 if isinstance(error, InvalidRequest) else 1
    except KeyboardInterrupt:
        return 130
    return code


# --- the commands


def _serve(options: argparse.Namespace) -> int:
    # Here, because the web framework takes half a second to import and no other command needs it.
    from app.serve import serve  # noqa: PLC0415

    return serve(_settings(options, host=options.host, port=options.port), demo=options.demo)


def _migrate(options: argparse.Namespace) -> int:
    url = _settings(options).database_url
    if options.check:
        check(url)
    else:
        upgrade(url)
    print("the database is up to date")
    return 0


def _version(_: argparse.Namespace) -> int:
    print(f"trunkline {__version__}")
    return 0


def _create_key(options: argparse.Namespace) -> int:
    scopes = frozenset(options.scope)
    _check_scopes(options.tenant, scopes)
    settings = _settings(options)
    new, now = KeyMaker(settings.secret_key).make(), datetime.now(UTC)
    expires_at = now + timedelta(days=options.expires_days)
    record = ApiKey(new.id, options.tenant, options.name, new.digest, new.pepper_version, scopes, now, expires_at)
    _in_database(settings, lambda database: ApiKeyRepository(database).create(options.tenant, record))
    if options.json:
        shown = {"tenant": options.tenant, "scopes": sorted(scopes), "expires_at": expires_at.isoformat()}
        print(json.dumps({"id": new.id, "key": new.text, **shown}))
    else:
        print(new.text)
        print(
            f"This key of tenant {options.tenant} is shown once. Its id is {new.id}; "
            f"it expires on {expires_at:%Y-%m-%d}. Send it as: Authorization: Bearer <key>",
            file=sys.stderr,
        )
    return 0


def _list_keys(options: argparse.Namespace) -> int:
    keys = _in_database(_settings(options), lambda database: _all_keys(database, options.tenant))
    if options.json:
        print(json.dumps([_shown(key) for key in keys]))
        return 0
    for key in keys:
        print(f"{key.id}  {_state(key):<19}  {' '.join(sorted(key.scopes))}  {ascii(key.name)[1:-1]}".rstrip())
    return 0


def _revoke_key(options: argparse.Namespace) -> int:
    now = datetime.now(UTC)
    _in_database(
        _settings(options), lambda database: ApiKeyRepository(database).revoke(options.tenant, options.id, now)
    )
    print(f"revoked {options.id}; a running gateway knows within 30 seconds", file=sys.stderr)
    return 0


# --- what they are made of


def _settings(options: argparse.Namespace, **overrides: object) -> Settings:
    return Settings.from_env(os.environ, data_dir=options.data_dir, **overrides)


def _in_database(settings: Settings, do: Callable[[Database], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        database = Database(settings.database_url)
        try:
            return await do(database)
        finally:
            await database.aclose()

    upgrade(settings.database_url)
    return asyncio.run(run())


async def _all_keys(database: Database, tenant: str) -> list[ApiKey]:
    await TenantRepository(database).get(tenant)
    repository, keys = ApiKeyRepository(database), list[ApiKey]()
    while page := await repository.list(tenant, after=keys[-1].id if keys else "", limit=_PAGE):
        keys += page
    return keys


def _check_scopes(tenant: str, scopes: frozenset[str]) -> None:
    for scope in sorted(scopes):
        if not is_scope(scope):
            raise InvalidRequest(f"there is no scope {scope!r}; `trunkline keys create --help` lists them")
        if is_platform_scope(scope) and tenant != DEFAULT_TENANT:
            raise InvalidRequest(f"only keys of the tenant {DEFAULT_TENANT} can have the scope {scope}")


def _shown(key: ApiKey) -> dict[str, object]:
    shown = {"id": key.id, "tenant": key.tenant, "name": key.name, "scopes": sorted(key.scopes)}
    moments = {name: getattr(key, name) for name in ("created_at", "expires_at", "revoked_at", "last_used_at")}
    return {**shown, **{name: moment and moment.isoformat() for name, moment in moments.items()}}


def _state(key: ApiKey) -> str:
    if key.revoked_at:
        return f"revoked {key.revoked_at:%Y-%m-%d}"
    if key.expires_at is None:
        return "no expiry"
    return f"{'expired' if key.expires_at <= datetime.now(UTC) else 'until'} {key.expires_at:%Y-%m-%d}"


# --- the command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trunkline", description="A multi-tenant remote MCP gateway.", epilog=_EXAMPLES, formatter_class=_LAYOUT
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = _command(commands, "serve", _serve, "run one node")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", help="port to listen on; 0 takes a free one (default 8080)")
    serve.add_argument("--demo", action="store_true", help="add a demo backend and print a key for it")

    migrate = _command(commands, "migrate", _migrate, "bring the database up to date")
    migrate.add_argument("--check", action="store_true", help="only look; exit code 1 if it is not up to date")

    keys = commands.add_parser(
        "keys", help="make, list and revoke API keys", epilog=_KEYS_EXAMPLES, formatter_class=_LAYOUT
    )
    _add_key_commands(keys.add_subparsers(required=True, metavar="COMMAND"))

    _command(commands, "version", _version, "print the version")
    return parser


def _add_key_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    create = _command(commands, "create", _create_key, "make a key and show it once")
    create.add_argument("--scope", action="append", required=True, help="what it allows; can be given repeatedly")
    create.add_argument("--name", type=_key_name, default="", help="what it is for")
    create.add_argument("--expires-days", type=_days, default=DEFAULT_EXPIRY_DAYS, metavar="N", help="default 90")
    create.add_argument("--json", action="store_true", help="print one JSON object")
    listing = _command(commands, "list", _list_keys, "list the keys of a tenant")
    listing.add_argument("--json", action="store_true", help="print a JSON list")
    revoke = _command(commands, "revoke", _revoke_key, "make a key worthless")
    revoke.add_argument("id", metavar="ID", help="the key's id: its 8 characters after tlk_")
    for each in (create, listing, revoke):
        each.add_argument("--tenant", type=_tenant_name, required=True, help="whose keys")


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    epilog = _KEYS_EXAMPLES if run is _create_key else None
    parser = commands.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}.", epilog=epilog)
    parser.formatter_class = _LAYOUT
    parser.set_defaults(run=run)
    if run is not _version:
        parser.add_argument(
            "--data-dir", metavar="DIR", help="instead of TRUNKLINE_DATA_DIR (default ./trunkline-data)"
        )
    return parser


def _tenant_name(text: str) -> str:
    if not is_name(text):
        raise argparse.ArgumentTypeError("a tenant's name is lower-case letters, digits and hyphens, 63 at most")
    return text


def _key_name(text: str) -> str:
    if len(text) > MAX_KEY_NAME or not text.isprintable():
        raise argparse.ArgumentTypeError(f"a name is up to {MAX_KEY_NAME} printable characters")
    return text


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MAX_EXPIRY_DAYS):
        raise argparse.ArgumentTypeError(f"allowed are 1 to {MAX_EXPIRY_DAYS}")
    return int(text)
