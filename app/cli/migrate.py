"""The command `migrate`."""

import argparse

from app.cli.settings import settings_from
from app.storage.migrate import check, upgrade


def migrate_database(options: argparse.Namespace) -> int:
    """`trunkline migrate`: brings the database up to date, or looks whether it is."""
    url = settings_from(options).database_url
    if options.check:
        check(url)
    else:
        upgrade(url)
    print("the database is up to date")
    return 0
