"""The command `doctor`."""

import argparse
import os

from app import doctor
from app.cli.settings import settings_only_read
from app.errors import SettingsError
from app.settings import PREFIX, Settings, is_loopback, is_wildcard


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
