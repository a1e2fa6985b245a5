"""The command `connect`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from app.cli.database import backend_names, find_database, settings_only_read
from app.client_config import (
    CLIENTS,
    DEFAULT_KEY_ENV,
    PASTE_HERE,
    ConfigFile,
    Target,
    Written,
    endpoint,
    instructions,
    local_url,
    put,
)
from app.errors import InvalidRequest

_FOR_ALL = 0o644  # for a file in a project, which others read too


def configure_client(options: argparse.Namespace) -> int:
    """`trunkline connect`: prints only the configuration on stdout; with --write merges it into the client's file."""
    client, key_env = CLIENTS[options.client], options.key_env or DEFAULT_KEY_ENV
    backends = list(dict.fromkeys(options.backend or [_only_backend(options)]))
    base = options.url
    if not base:
        settings = settings_only_read(options)
        base = settings.public_url or local_url(settings.host, settings.port, is_tls=settings.tls_cert is not None)
    key = _key_in(key_env) if options.key_env and client.key_in_text else None
    targets = [Target(each, endpoint(base, options.tenant, each), key_env, key) for each in backends]
    if options.write is None:
        print(client.render(targets), end="")
        print(instructions(client, targets[0]), file=sys.stderr)
        return 0
    if client.file is None:
        raise InvalidRequest(f"{options.client} is configured in a program, not in a file: run this without --write")
    written = _write(options.write, client.file, targets, is_secret=bool(key))
    print(_report(written, backends))
    needs_key = PASTE_HERE in written.merged.text
    print(instructions(client, targets[0], is_written=True, needs_key=needs_key), file=sys.stderr)
    return 0


def _key_in(variable: str) -> str:
    key = os.environ.get(variable)
    if not key:
        raise InvalidRequest(f"{variable} is not set; put the key into it, or leave --key-env out")
    return key


def _write(named: str, file: ConfigFile, targets: Sequence[Target], *, is_secret: bool) -> Written:
    place = named or _usual_place(file)
    is_of_project = not named and not place.startswith(("~", "/"))
    mode = {"mode": _FOR_ALL} if is_of_project else {}
    return put(Path(place).expanduser(), lambda text: file.merged(text, targets), is_secret=is_secret, **mode)


def _usual_place(file: ConfigFile) -> str:
    """Where the client looks for its file. Of several places the one that has a file: it may not read the others."""
    paths = file.paths(os.environ, sys.platform)
    existing = [each for each in paths if Path(each).expanduser().exists()]
    for candidates in (paths, existing):
        if len(candidates) == 1:
            return candidates[0]
    problem = "there are several such files" if existing else "none of the usual files exists"
    raise InvalidRequest(f"{problem}: name yours with --write FILE ({' or '.join(paths)})")


def _report(written: Written, backends: Sequence[str]) -> str:
    changes = written.merged.changes
    if not changes:
        return f"{written.path} has {', '.join(backends)} already"
    done = [f"{name} {'added' if was is None else f'replaced (was {was})'}" for name, was in changes.items()]
    lines = [f"{written.path}: {', '.join(done)}"]
    if written.backup is not None:
        lines.append(f"copy of the old file: {written.backup}")
    if written.is_closed:
        lines.append("other users could read the file; now that it contains the key, only you can")
    return "\n".join(lines)


def _only_backend(options: argparse.Namespace) -> str:
    if options.url is not None:
        raise InvalidRequest("which backend? Give --backend; the backends of another gateway are not known here")
    here = find_database(options)
    if here is None:
        raise InvalidRequest("which backend? Give --backend; there is no database here that could tell")
    names = here.run(lambda database: backend_names(database, options.tenant))
    if len(names) == 1:
        return names[0]
    known = f"the tenant {options.tenant} has {', '.join(names[:20])}" if names else "none is registered here"
    raise InvalidRequest(f"which backend? Give --backend, more than once for several; {known}")
