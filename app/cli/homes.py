"""The command `homes`: the homes of the tenants' backends on this machine; those of deleted tenants can be removed."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.cli.database import database_here
from app.errors import Conflict, GatewayError, NotFound
from app.processes import homes
from app.storage import TenantRepository


def show_homes(options: argparse.Namespace) -> int:
    """`trunkline homes`: a line for each; with --remove those are removed first."""
    here = database_here(options)
    owners = here.run(lambda database: TenantRepository(database).homes())
    root = here.settings.homes
    for name in options.remove:
        _remove(root, name, owners)
    try:
        found = list(homes.find(root))
    except OSError as error:
        raise GatewayError(f"cannot read {str(root)!r}: {error.strerror}", hint=_WHICH) from None
    print((_as_json if options.json else _as_table)(found, owners))
    return 0


_WHICH = "Run it with the settings of the gateway (DATA_DIR, DATABASE_URL, HOMES_DIR), and as its user."


def _remove(root: Path, name: str, owners: Mapping[str, str]) -> None:
    if name in owners:
        raise Conflict(f"{name} is the home of the tenant {owners[name]}, which exists")
    try:
        homes.remove(root, name)
    except FileNotFoundError:
        raise NotFound(f"there is no home {name} in {root}") from None
    except BlockingIOError:
        raise Conflict(f"a process lives in {name}", hint="It ends with its tenant's sessions; try again.") from None
    except OSError as error:
        raise GatewayError(f"cannot remove {name}: {error.strerror}", hint=_WHICH) from None


def _state(home: homes.Found, owners: Mapping[str, str]) -> str:
    if home.in_use:
        return "in use"
    return "idle" if home.name in owners else "tenant deleted"


def _as_table(found: Sequence[homes.Found], owners: Mapping[str, str]) -> str:
    if not found:
        return "no home was made yet"
    lines = [("TENANT", "STATE", "MIB", "HOME")]
    for home in found:
        tenant = owners.get(home.name) or home.name.partition(".")[0]
        lines.append((tenant, _state(home, owners), f"{home.size / 2**20:.1f}", str(home.path)))
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    return "\n".join("  ".join([*map(str.ljust, line[:3], widths), line[3]]) for line in lines)


def _as_json(found: Sequence[homes.Found], owners: Mapping[str, str]) -> str:
    shown = [
        {
            "name": home.name,
            "tenant": owners.get(home.name),
            "state": _state(home, owners).replace(" ", "_"),
            "bytes": home.size,
            "path": str(home.path),
        }
        for home in found
    ]
    return json.dumps(shown, indent=2)
