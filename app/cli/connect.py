"""The command `connect`."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.cli.database import backend_names, find_database
from app.cli.settings import settings_only_read
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
    merged_json,
    merged_toml,
    put,
)
from app.config.settings import Settings
from app.errors import InvalidRequest

_FOR_ALL = 0o644  # of a file in a project, which others work on too


def configure_client(options: argparse.Namespace) -> int:
    """`trunkline connect`: the configuration alone is on stdout; with --write it is merged into the client's file."""
    client, key_env = CLIENTS[options.client], options.key_env or DEFAULT_KEY_ENV
    backends = list(dict.fromkeys(options.backend or [_only_backend(options)]))
    base = options.url or _base_url(settings_only_read(options))
    key = os.environ.get(key_env) if options.key_env and client.key_in_text else None
    targets = [Target(each, endpoint(base, options.tenant, each), key_env, key) for each in backends]
    if options.write is None:
        print(client.render(targets), end="")
        print(instructions(client, targets[0]), file=sys.stderr)
        return 0
    if client.file is None:
        raise InvalidRequest(f"{options.client} is a program rather than a file of settings: put it where you want it")
    written = _write(options.write, client.file, targets, is_secret=bool(key))
    print(_report(written, backends))
    needs_key = PASTE_HERE in written.merged.text
    print(instructions(client, targets[0], is_written=True, needs_key=needs_key), file=sys.stderr)
    return 0


def _write(named: str, file: ConfigFile, targets: Sequence[Target], *, is_secret: bool) -> Written:
    place = named or _usual_place(file)
    is_of_project = not named and not place.startswith(("~", "/"))
    documents: list[Mapping[str, Any]] = [file.document(target) for target in targets]
    merge = merged_toml if file.is_toml else merged_json
    return put(
        Path(place).expanduser(),
        lambda text: merge(text, documents),
        is_secret=is_secret,
        **({"mode": _FOR_ALL} if is_of_project else {}),
    )


def _usual_place(file: ConfigFile) -> str:
    """Where the client looks for it. What it would not read is not made for it."""
    paths = file.paths(os.environ, sys.platform)
    if len(paths) == 1:
        return paths[0]
    existing = [each for each in paths if Path(each).expanduser().exists()]
    if len(existing) == 1:
        return existing[0]
    problem = "there are several such files" if existing else "none of the usual files is there"
    raise InvalidRequest(f"{problem}: name yours with --write FILE ({' or '.join(paths)})")


def _report(written: Written, backends: Sequence[str]) -> str:
    """What was done to the file, for people."""
    changes = written.merged.changes
    if not changes:
        return f"{written.path} has {', '.join(backends)} already"
    done = [f"{name} {'added' if was is None else f'replaced (was {was})'}" for name, was in changes.items()]
    lines = [f"{written.path}: {', '.join(done)}"]
    if written.backup is not None:
        lines.append(f"what was there: {written.backup}")
    if written.is_closed:
        lines.append("others could read the file; with the key in it, only you can")
    return "\n".join(lines)


def _only_backend(options: argparse.Namespace) -> str:
    if options.url is not None:
        raise InvalidRequest("which backend? Give --backend; what another gateway has cannot be seen from here")
    here = find_database(options)
    if here is None:
        raise InvalidRequest("which backend? Give --backend; there is no database here that could say")
    names = here.run(lambda database: backend_names(database, options.tenant))
    if len(names) == 1:
        return names[0]
    known = f"the tenant {options.tenant} has {', '.join(names[:20])}" if names else "none is registered here"
    raise InvalidRequest(f"which backend? Give --backend, more than once for several; {known}")


def _base_url(settings: Settings) -> str:
    return settings.public_url or local_url(settings.host, settings.port)
