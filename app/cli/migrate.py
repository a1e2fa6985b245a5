"""The command `migrate`."""

import argparse

from app.cli.database import is_there, no_database, say_which
from app.cli.settings import settings_from, settings_only_read
from app.storage.migrate import check, upgrade


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
