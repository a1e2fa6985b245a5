"""The command `import`: registers backends over REST. `importing_here` does in the database of this machine."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from app.admin.importing import is_done, looks_like_toml, parse, report, report_json, settle
from app.admin.schemas.backends import BackendBody
from app.admin.schemas.imports import body_of, validated
from app.cli.files.text import read_text
from app.cli.resources import of_tenant
from app.cli.rest import MOST_BACKENDS, Refused, open_rest, segment
from app.errors import GatewayError
from app.text.terminal.progress import Progress

MAX_IMPORT_BYTES = 2**24  # Claude Code keeps what was said in the same file


Names = Callable[[argparse.Namespace], Sequence[str]]  # of the tenant's backends
Create = Callable[[argparse.Namespace, Mapping[str, BackendBody], Progress], Mapping[str, str]]  # the errors by name


def import_over_rest(options: argparse.Namespace) -> int:
    """`trunkline import` at a gateway."""
    return import_servers(options, _names, _create)


def import_servers(options: argparse.Namespace, names: Names, create: Create) -> int:
    """Reports the servers in the file; with --apply registers them as backends."""
    text = read_text(options.file, MAX_IMPORT_BYTES)
    is_toml = options.file.endswith(".toml") or (options.file == "-" and looks_like_toml(text))
    entries = [validated(entry) for entry in parse(text, is_toml=is_toml, supplied=dict(options.env))]
    entries = settle(entries, names(options))
    if options.apply:
        bodies = {entry.name: body_of(entry) for entry in entries if not entry.problems}
        with Progress() as progress:
            failed = create(options, bodies, progress)
        entries = [entry.refused(failed[entry.name]) if entry.name in failed else entry for entry in entries]
    print((report_json if options.json else report)(entries, applied=options.apply))
    if options.apply and any(not entry.problems for entry in entries):
        print(f"next: trunkline backends check NAME --allow{of_tenant(options)}", file=sys.stderr)
    return 0 if is_done(entries) else 1


def _names(options: argparse.Namespace) -> list[str]:
    with open_rest(options) as rest:
        found, _ = rest.items(_path(options), query={}, most=MOST_BACKENDS)
    return [each["name"] for each in found]


def _create(options: argparse.Namespace, bodies: Mapping[str, BackendBody], progress: Progress) -> dict[str, str]:
    failed = {}
    with open_rest(options, say=False) as rest:
        for number, (name, body) in enumerate(bodies.items(), 1):
            progress.begin(f"registering {number} of {len(bodies)}: {name}")
            try:
                made = rest.ask("POST", _path(options), body.model_dump(mode="json"))
                if made["off_by_platform"] and made["reason"]:
                    progress.say(f"{name}: {made['reason']}")
            except GatewayError as error:
                failed[name] = error.summary if isinstance(error, Refused) else str(error)
    return failed


def _path(options: argparse.Namespace) -> str:
    return f"/tenants/{segment(options.tenant)}/backends"
