"""The commands `keys` and `secret-key` on the database of this machine."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from app.admin.audit_changes import changes_of
from app.admin.schemas.api_keys import KeyAnswer
from app.auth.api_keys import KeyMaker
from app.auth.policy import is_platform_scope, is_scope
from app.cli.database import act_of_user, database_here, secret_key_of
from app.cli.resources import print_table
from app.cli.usage.nouns import KEYS
from app.cli.usage.options import DEFAULT_EXPIRY_DAYS
from app.domain import DEFAULT_TENANT, ApiKey
from app.errors import InvalidRequest
from app.storage.access.api_keys import MAX_KEYS_PER_TENANT, ApiKeyRepository
from app.storage.engine import Database
from app.storage.secret_key import SecretKeyCheck
from app.storage.tenants import TenantRepository
from app.text.terminal.stdout import show_once


def create_key(options: argparse.Namespace) -> int:
    """`trunkline keys create`: stdout has only the key."""
    scopes = frozenset(options.scope)
    _check_scopes(options.tenant, scopes)
    here = database_here(options)
    secret_key = secret_key_of(here)
    new, now = KeyMaker(secret_key).make(), datetime.now(UTC)
    expires_at = now + timedelta(days=options.expires_days or DEFAULT_EXPIRY_DAYS)
    record = ApiKey(new.id, options.tenant, options.name, new.digest, new.pepper_version, scopes, now, expires_at)
    changes = changes_of(None, KeyAnswer.of(record))
    act = act_of_user(options.tenant, "key.create", f"keys/{new.id}", " ".join(sorted(scopes)), changes=changes)

    async def create(database: Database) -> None:
        await SecretKeyCheck(database, secret_key).claim()
        await ApiKeyRepository(database).create(options.tenant, record, act=act)

    here.run(create)
    undo = f"trunkline keys revoke {new.id} --tenant {options.tenant}"
    shown = {"tenant": options.tenant, "scopes": sorted(scopes), "expires_at": expires_at.isoformat()}
    text = json.dumps({"id": new.id, "key": new.text, **shown}) if options.json else new.text
    show_once(text, f"the key {new.id}", undo)
    if not options.json:
        print(
            f"This key of tenant {options.tenant} is shown once. Its id is {new.id}; "
            f"it expires on {expires_at:%Y-%m-%d}. Send it as: Authorization: Bearer <key>",
            file=sys.stderr,
        )
    return 0


def list_keys(options: argparse.Namespace) -> int:
    """`trunkline keys list`: a table, or JSON."""
    if options.members:
        raise InvalidRequest("filters need a gateway: set TRUNKLINE_URL, or give --url")
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

    async def revoke(database: Database) -> None:
        keys, now = ApiKeyRepository(database), datetime.now(UTC)
        found = await keys.get(options.tenant, options.id)
        changes = changes_of(KeyAnswer.of(found), KeyAnswer.of(replace(found, revoked_at=now)))
        act = act_of_user(options.tenant, "key.revoke", f"keys/{found.id}", changes=changes)
        await keys.revoke(options.tenant, found.id, now, act=act)

    database_here(options).run(revoke)
    print(f"revoked {options.id}; every running node notices within 2 seconds", file=sys.stderr)
    return 0


async def _all_keys(database: Database, tenant: str) -> Sequence[ApiKey]:
    await TenantRepository(database).get(tenant)
    return await ApiKeyRepository(database).list(tenant, limit=MAX_KEYS_PER_TENANT)


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
        print("the database belongs to no secret key yet: the first start of a gateway sets it")
        return 0
    print(f"the database belongs to {'this' if fits else 'another'} secret key")
    return 0 if fits else 1


def accept_secret_key(options: argparse.Namespace) -> int:
    """`trunkline secret-key accept`: records that the database belongs to the present key. Nothing else changes, so
    `accept` with the old key undoes it."""
    here = database_here(options, any_key=True)
    secret_key = secret_key_of(here)

    async def accept(database: Database) -> bool:
        check = SecretKeyCheck(database, secret_key)
        if await check.fits():
            return False
        await check.accept(act_of_user(DEFAULT_TENANT, "secret_key.accept", ""))
        return True

    if not here.run(accept):
        print("the database belongs to this secret key already; nothing was changed")
        return 0
    print(
        "the database belongs to this secret key now. API keys and issuers' secrets that were created under another "
        "one are worthless: create them again. Restart every node that still runs with the old key."
    )
    return 0
