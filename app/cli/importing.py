"""The command `import`: registers backends in the database of this machine, or over REST at a gateway."""

import argparse
from collections.abc import Mapping

from app.admin.audit_changes import changes_of_backend
from app.admin.importing import is_done, parse, report, report_json, settle
from app.admin.schemas.backends import BackendBody
from app.admin.schemas.imports import body_of, validated
from app.cli.database import act_of_user, backend_names, database_here, find_database
from app.cli.files.text import read_text
from app.cli.rest import MOST_BACKENDS, Refused, is_remote, open_rest, segment
from app.errors import GatewayError
from app.storage.backends import BackendRepository
from app.storage.engine import Database
from app.text.terminal.progress import Progress

MAX_IMPORT_BYTES = 2**24  # Claude Code keeps what was said in the same file


def import_servers(options: argparse.Namespace) -> int:
    """`trunkline import`: reports the servers in the file; with --apply registers them as backends."""
    text, is_toml = read_text(options.file, MAX_IMPORT_BYTES), options.file.endswith(".toml")
    names, create = (_names_over_rest, _create_over_rest) if is_remote(options) else (_names_stored, _create_stored)
    entries = [validated(entry) for entry in parse(text, is_toml=is_toml, supplied=dict(options.env))]
    entries = settle(entries, names(options))
    if options.apply:
        bodies = {entry.name: body_of(entry) for entry in entries if not entry.problems}
        with Progress() as progress:
            failed = create(options, bodies, progress)
        entries = [entry.refused(failed[entry.name]) if entry.name in failed else entry for entry in entries]
    print((report_json if options.json else report)(entries, applied=options.apply))
    return 0 if is_done(entries) else 1


def _names_stored(options: argparse.Namespace) -> list[str]:
    # A dry run works without a database: then no name is taken.
    here = database_here(options) if options.apply else find_database(options)
    return [] if here is None else here.run(lambda database: backend_names(database, options.tenant))


def _create_stored(
    options: argparse.Namespace, bodies: Mapping[str, BackendBody], progress: Progress
) -> dict[str, str]:
    """Creates the backends; returns the errors by name."""

    async def create(database: Database) -> dict[str, str]:
        repository, failed = BackendRepository(database), dict[str, str]()
        for number, (name, body) in enumerate(bodies.items(), 1):
            progress.begin(f"registering {number} of {len(bodies)}: {name}")
            if body.url is not None:  # which addresses are allowed, and what seals its headers, a gateway knows
                failed[name] = "is reached by URL: import it at a gateway, with --url or TRUNKLINE_URL"
                continue
            try:
                spec = body.spec(options.tenant)
                changes = changes_of_backend(None, spec)
                act = act_of_user(options.tenant, "backend.create", f"backends/{name}", changes=changes)
                await repository.create(options.tenant, spec, act=act)
            except GatewayError as error:  # for example, somebody else has created it meanwhile
                failed[name] = str(error)
        return failed

    return database_here(options, say=False).run(create)


def _names_over_rest(options: argparse.Namespace) -> list[str]:
    with open_rest(options) as rest:
        found, _ = rest.items(_path(options), query={}, most=MOST_BACKENDS)
    return [each["name"] for each in found]


def _create_over_rest(
    options: argparse.Namespace, bodies: Mapping[str, BackendBody], progress: Progress
) -> dict[str, str]:
    failed = {}
    with open_rest(options, say=False) as rest:
        for number, (name, body) in enumerate(bodies.items(), 1):
            progress.begin(f"registering {number} of {len(bodies)}: {name}")
            try:
                rest.ask("POST", _path(options), body.model_dump(mode="json"))
            except GatewayError as error:
                failed[name] = error.summary if isinstance(error, Refused) else str(error)
    return failed


def _path(options: argparse.Namespace) -> str:
    return f"/tenants/{segment(options.tenant)}/backends"
