"""The command `homes`: lists the homes of the tenants' backends, and removes those of deleted tenants."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.cli.database import database_here
from app.errors import Conflict, GatewayError, NotFound
from app.jail.sandbox.uids import table_of
from app.processes import homes
from app.storage.tenants import TenantRepository

_WHICH = "Run it with the settings of the gateway (DATA_DIR, DATABASE_URL, HOMES_DIR), and as its user."


def show_homes(options: argparse.Namespace) -> int:
    """`trunkline homes`: prints a line for each home, after those of --remove are removed."""
    here = database_here(options)
    owners = here.run(lambda database: TenantRepository(database).homes())
    root = here.settings.homes
    for name in options.remove:
        _remove(root, name, owners)
    try:
        uids = table_of(root)
        found = [_shown(home, owners, uids) for home in homes.find(root)]
    except OSError as error:
        raise GatewayError(f"cannot read {str(root)!r}: {error.strerror}", hint=_WHICH) from None
    print(json.dumps(found, indent=2) if options.json else _as_table(found))
    return 0


def _remove(root: Path, name: str, owners: Mapping[str, str]) -> None:
    if name in owners:  # a home of one principal in it may go
        raise Conflict(f"{name} is the home of the tenant {owners[name]}, which exists")
    try:
        homes.remove(root, name)
    except FileNotFoundError:
        raise NotFound(f"there is no home {name} in {root}") from None
    except BlockingIOError:
        raise Conflict(f"a process uses {name}", hint="It ends with its tenant's sessions; try again.") from None
    except OSError as error:
        raise GatewayError(f"cannot remove {name}: {error.strerror}", hint=_WHICH) from None


def _shown(home: homes.Found, owners: Mapping[str, str], uids: Mapping[str, int]) -> dict[str, Any]:
    of_tenant = home.name.partition("/")[0]
    tenant = owners.get(of_tenant)
    return {
        "name": home.name,
        "tenant": tenant,
        "state": "in_use" if home.in_use else "idle" if tenant else "tenant_deleted",
        "uid": uids.get(of_tenant),
        "bytes": home.size,
        "path": str(home.path),
    }


def _as_table(found: Sequence[Mapping[str, Any]]) -> str:
    if not found:
        return "there are no homes yet"
    lines = [("TENANT", "STATE", "UID", "MIB", "HOME")]
    for home in found:
        tenant = home["tenant"] or home["name"].partition(".")[0]
        uid = "-" if home["uid"] is None else str(home["uid"])
        lines.append((tenant, home["state"].replace("_", " "), uid, f"{home['bytes'] / 2**20:.1f}", home["path"]))
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join("  ".join([*map(str.ljust, line[:4], widths), line[4]]) for line in lines)
