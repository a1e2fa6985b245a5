"""The commands `serve`, `migrate` and `doctor`."""

import argparse
import os

from app import doctor
from app.cli.database import is_there, no_database, say_which
from app.cli.settings import settings_from, settings_only_read
from app.config.environment import PREFIX
from app.config.hosts import is_loopback, is_wildcard
from app.config.settings import Settings
from app.errors import SettingsError
from app.node.fleet import serve_nodes
from app.storage.migrate import check, upgrade


def run_nodes(options: argparse.Namespace) -> int:
    """`trunkline serve`: this node, or a process for each of several."""
    settings = settings_from(options, host=options.host, port=options.port)
    if options.nodes is not None:
        return serve_nodes(settings, options.nodes, demo=options.demo)
    # Here, because the web framework takes half a second to import and no other command needs it.
    from app.node.serve import serve  # noqa: PLC0415

    return serve(settings, demo=options.demo, member=options.member)


def migrate_database(options: argparse.Namespace) -> int:
    """`trunkline migrate`: brings the database up to date, makes it if there is none, or looks whether it is."""
    settings = settings_only_read(options) if options.check else settings_from(options)
    say_which(options, settings)
    if options.check:
        if not is_there(settings):
            raise no_database(settings.database_url)
        check(settings.database_url)
    else:
        upgrade(settings.database_url)
    print("the database is up to date")
    return 0


def examine_machine(options: argparse.Namespace) -> int:
    """`trunkline doctor`: a table, or JSON."""
    try:
        checks = doctor.examine(_subject(settings_only_read(options)))
    except SettingsError as error:
        checks = doctor.examine(None, str(error))
    print(doctor.as_json(checks) if options.json else doctor.as_table(checks))
    return 0 if doctor.is_well(checks) else 1


def _subject(settings: Settings) -> doctor.Subject:
    is_set = any(os.environ.get(PREFIX + name) for name in ("SECRET_KEY", "SECRET_KEY_FILE"))
    return doctor.Subject(
        host=settings.host,
        port=settings.port,
        data_dir=settings.data_dir,
        database_url=settings.database_url,
        secret_key_is_set=is_set,
        secret_key=settings.secret_key,
        max_processes=settings.max_processes,
        redis_url=settings.redis_url,
        node_url=settings.node_url,
        host_is_wildcard=is_wildcard(settings.host),
        host_is_loopback=is_loopback(settings.host),
        homes=settings.homes,
    )
