"""The commands `keys create`, `keys list` and `keys revoke` on the database of this machine: how the first
administrator gets a key. For a gateway over REST they are in resources.py."""

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
