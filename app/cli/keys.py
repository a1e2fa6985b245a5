"""The commands `keys create`, `keys list` and `keys revoke`, on the database directly."""

import argparse
import json
import sys
from datetime import UTC, datetime, timedelta

from app.auth import KeyMaker
from app.auth.policy import is_platform_scope, is_scope
from app.cli.database import PAGE, act_of_user, in_database
from app.cli.settings import settings_from
from app.domain import DEFAULT_TENANT
from app.errors import InvalidRequest
from app.storage import ApiKey, ApiKeyRepository, Database, TenantRepository


def create_key(options: argparse.Namespace) -> int:
    """`trunkline keys create`: the key alone is on stdout."""
    scopes = frozenset(options.scope)
    _check_scopes(options.tenant, scopes)
    settings = settings_from(options)
    new, now = KeyMaker(settings.secret_key).make(), datetime.now(UTC)
    expires_at = now + timedelta(days=options.expires_days)
    record = ApiKey(new.id, options.tenant, options.name, new.digest, new.pepper_version, scopes, now, expires_at)
    act = act_of_user(options.tenant, "key.create", f"keys/{new.id}", " ".join(sorted(scopes)))
    in_database(settings, lambda database: ApiKeyRepository(database).create(options.tenant, record, act=act))
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
    """`trunkline keys list`: a line for each, or JSON."""
    keys = in_database(settings_from(options), lambda database: _all_keys(database, options.tenant))
    if options.json:
        print(json.dumps([_shown(key) for key in keys]))
        return 0
    for key in keys:
        print(f"{key.id}  {_state(key):<19}  {' '.join(sorted(key.scopes))}  {ascii(key.name)[1:-1]}".rstrip())
    return 0


def revoke_key(options: argparse.Namespace) -> int:
    """`trunkline keys revoke`."""
    act = act_of_user(options.tenant, "key.revoke", f"keys/{options.id}")
    in_database(
        settings_from(options),
        lambda database: ApiKeyRepository(database).revoke(options.tenant, options.id, act.at, act=act),
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
