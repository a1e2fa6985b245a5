"""The commands `serve` and `migrate`."""

import argparse
import os

from app.cli.database import database_here, say_which
from app.cli.usage.later import importing
from app.node.fleet import serve_nodes
from app.settings.settings import Settings
from app.storage.migrate import upgrade
from app.text.terminal.progress import Progress


def run_nodes(options: argparse.Namespace) -> int:
    """`trunkline serve`: one node in this process, or several in processes of their own."""
    settings = Settings.from_env(os.environ, data_dir=options.data_dir, host=options.host, port=options.port)
    if options.nodes is not None:
        return serve_nodes(settings, options.nodes, demo=options.demo)
    # Here, because the web framework takes half a second to import and no other command needs it.
    with importing():
        from app.node.serve import serve  # noqa: PLC0415

    return serve(settings, demo=options.demo, member=options.member)


def migrate_database(options: argparse.Namespace) -> int:
    """`trunkline migrate`: creates the database or updates its schema; with --check only looks."""
    if options.check:
        database_here(options, any_key=True)
    else:
        settings = Settings.from_env(os.environ, data_dir=options.data_dir)
        say_which(options, settings)
        with Progress() as progress:
            upgrade(settings.database_url, progress.begin)
    print("the database is up to date")
    return 0
