"""The commands `keys` and `secret-key` on the database of this machine: how the first key is made, and whether the
database was made with this SECRET_KEY."""

import argparse
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from app.auth import KeyMaker
from app.auth.policy import is_platform_scope, is_scope
from app.cli.database import PAGE, act_of_user, database_here, secret_key_of
from app.cli.resources import KEYS, print_table
from app.domain import DEFAULT_TENANT
from app.errors import InvalidRequest
from app.storage import ApiKey, ApiKeyRepository, Database, TenantRepository
from app.storage.secret_key import SecretKeyCheck

DEFAULT_EXPIRY_DAYS = 90


def create_key(options: argparse.Namespace) -> int:
    """`trunkline keys create`: the key alone is on stdout."""
    scopes = frozenset(options.scope)
    _check_scopes(options.tenant, scopes)
    here = database_here(options)
    secret_key = secret_key_of(here)
    new, now = KeyMaker(secret_key).make(), datetime.now(UTC)
    expires_at = now + timedelta(days=options.expires_days or DEFAULT_EXPIRY_DAYS)
    record = ApiKey(new.id, options.tenant, options.name, new.digest, new.pepper_version, scopes, now, expires_at)
    act = act_of_user(options.tenant, "key.create", f"keys/{new.id}", " ".join(sorted(scopes)))

    async def create(database: Database) -> None:
        await SecretKeyCheck(database, secret_key).claim()
        await ApiKeyRepository(database).create(options.tenant, record, act=act)

    here.run(create)
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


def list_keys(options: argparse.Namespace) -> int:
    """`trunkline keys list`: a table, or JSON."""
    if options.members:
        raise InvalidRequest("a filter is for a gateway: set TRUNKLINE_URL, or give --url")
    keys = database_here(options).run(lambda database: _all_keys(database, options.tenant))
    shown = [_shown(key) for key in keys]
    if options.json:
        print(json.dumps(shown))
    elif shown:
        print_table(shown, KEYS.first)
    else:
        print("there are no keys", file=sys.stderr)
    return 0


def revoke_key(options: argparse.Namespace) -> int:
    """`trunkline keys revoke`."""
    act = act_of_user(options.tenant, "key.revoke", f"keys/{options.id}")
    database_here(options).run(
        lambda database: ApiKeyRepository(database).revoke(options.tenant, options.id, act.at, act=act)
    )
    print(f"revoked {options.id}; every running node knows within 5 seconds", file=sys.stderr)
    return 0


async def _all_keys(database: Database, tenant: str) -> list[ApiKey]:
    await TenantRepository(database).get(tenant)
    repository, keys = ApiKeyRepository(database), list[ApiKey]()
    while page := await repository.list(tenant, after=keys[-1].id if keys else "", limit=PAGE):
        keys += page
    return keys


def _check_scopes(tenant: str, scopes: frozenset[str]) -> None:
    for scope in sorted(scopes):
        if not is_scope(scope):
            raise InvalidRequest(f"there is no scope {scope!r}; `trunkline keys create --help` lists them")
        if is_platform_scope(scope) and tenant != DEFAULT_TENANT:
            raise InvalidRequest(f"only keys of the tenant {DEFAULT_TENANT} can have the scope {scope}")


def _shown(key: ApiKey) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": key.id, "tenant": key.tenant, "name": key.name, "scopes": sorted(key.scopes)}
    shown |= {"enabled": key.enabled, "reason": key.reason, "off_by_platform": key.off_by_platform}
    moments = {name: getattr(key, name) for name in ("created_at", "expires_at", "revoked_at", "last_used_at")}
    return {**shown, **{name: moment and moment.isoformat() for name, moment in moments.items()}}


def check_secret_key(options: argparse.Namespace) -> int:
    """`trunkline secret-key check`."""
    here = database_here(options, any_key=True)
    secret_key = secret_key_of(here)
    fits = here.run(lambda database: SecretKeyCheck(database, secret_key).fits())
    if fits is None:
        print("the database has no secret key yet: the first start of a gateway decides")
        return 0
    print("the database was made with this secret key" if fits else "the database was made with another secret key")
    return 0 if fits else 1


def accept_secret_key(options: argparse.Namespace) -> int:
    """`trunkline secret-key accept`: from now on the database is that of the present key. Takes back by itself with
    the old key: nothing else is changed."""
    here = database_here(options, any_key=True)
    secret_key = secret_key_of(here)

    async def accept(database: Database) -> bool:
        check = SecretKeyCheck(database, secret_key)
        if await check.fits():
            return False
        await check.accept(act_of_user(DEFAULT_TENANT, "secret_key.accept", ""))
        return True

    if not here.run(accept):
        print("the database was made with this secret key already; nothing was changed")
        return 0
    print(
        "the database is that of this secret key now. API keys and issuers' secrets that were made under another one "
        "are worthless: make them anew. Restart every node that still runs with the old key."
    )
    return 0
