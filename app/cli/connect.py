"""The command `connect`."""

import argparse
import os
import sys

from app.cli.database import backend_names, look_into_database
from app.cli.settings import settings_only_read
from app.connect import CLIENTS, DEFAULT_KEY_ENV, Target, endpoint, instructions, local_url
from app.errors import InvalidRequest
from app.settings import Settings


def print_configuration(options: argparse.Namespace) -> int:
    """`trunkline connect`: the configuration alone is on stdout."""
    client, key_env = CLIENTS[options.client], options.key_env or DEFAULT_KEY_ENV
    backend = options.backend or _only_backend(options)
    base = options.url or _base_url(settings_only_read(options))
    key = os.environ.get(key_env) if options.key_env and client.key_in_text else None
    target = Target(backend, endpoint(base, options.tenant, backend), key_env, key)
    print(client.render(target), end="")
    print(instructions(client, target), file=sys.stderr)
    return 0


def _only_backend(options: argparse.Namespace) -> str:
    if options.url is not None:
        raise InvalidRequest("which backend? Give --backend; what another gateway has cannot be seen from here")
    settings = settings_only_read(options)
    names = look_into_database(settings, lambda database: backend_names(database, options.tenant)) or []
    if len(names) == 1:
        return names[0]
    known = f"the tenant {options.tenant} has {', '.join(names[:20])}" if names else "none is registered here"
    raise InvalidRequest(f"which backend? Give --backend; {known}")


def _base_url(settings: Settings) -> str:
    return settings.public_url or local_url(settings.host, settings.port)
