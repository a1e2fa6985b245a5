"""`import` into the database of this machine."""

import argparse
from collections.abc import Mapping

from app.admin.audit_changes import changes_of_backend
from app.admin.schemas.backends import BackendBody
from app.auth.sealing import Sealer
from app.backends.packages.recognition import names_package
from app.cli.database import act_of_user, backend_names, database_here, find_database, secret_key_of
from app.cli.importing import import_servers
from app.errors import GatewayError
from app.storage.backends import BackendRepository
from app.storage.engine import Database
from app.text.terminal.progress import Progress


def import_here(options: argparse.Namespace) -> int:
    """`trunkline import` on this machine."""
    return import_servers(options, _names, _create)


def _names(options: argparse.Namespace) -> list[str]:
    # A dry run works without a database: then no name is taken.
    here = database_here(options) if options.apply else find_database(options)
    return [] if here is None else here.run(lambda database: backend_names(database, options.tenant))


def _create(options: argparse.Namespace, bodies: Mapping[str, BackendBody], progress: Progress) -> dict[str, str]:
    here = database_here(options, say=False)
    sealer = Sealer(secret_key_of(here))

    async def create(database: Database) -> dict[str, str]:
        repository, failed = BackendRepository(database, sealer), dict[str, str]()
        for number, (name, body) in enumerate(bodies.items(), 1):
            progress.begin(f"registering {number} of {len(bodies)}: {name}")
            if body.url is not None:  # which addresses are allowed, and what seals its headers, a gateway knows
                failed[name] = "is reached by URL: import it at a gateway, with --url or TRUNKLINE_URL"
                continue
            spec = body.value(tenant=options.tenant)
            if names_package(spec.command, spec.args):  # which only a gateway installs
                failed[name] = (
                    "names a package or an image, which a gateway resolves that runs: import it there, with --url or "
                    "TRUNKLINE_URL"
                )
                continue
            try:
                changes = changes_of_backend(None, spec)
                act = act_of_user(options.tenant, "backend.create", f"backends/{name}", changes=changes)
                await repository.create(options.tenant, spec, act=act)
            except GatewayError as error:  # for example, somebody else has created it meanwhile
                failed[name] = str(error)
        return failed

    return here.run(create)
