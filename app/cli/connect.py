"""The command `connect`."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx2

from app.admin.client_config import (
    CLIENTS,
    DEFAULT_KEY_ENV,
    PASTE_HERE,
    ConfigFile,
    Target,
    Written,
    endpoint,
    instructions,
    put,
)
from app.cli.rest import MOST_BACKENDS, MOST_SHOWN, NoTenant, Refused, Rest, is_remote, open_rest, segment
from app.cli.usage.later import Later
from app.errors import GatewayError, InvalidRequest
from app.settings.environment import PREFIX

_FOR_ALL = 0o644  # for a file in a project, which others read too


class _Known(NamedTuple):
    """A gateway: its address for clients, and the names of its backends and toolsets; None if they are not known.
    `signs_in`: clients of the tenant need no key."""

    base: str
    names: Sequence[str] | None
    signs_in: bool = False


def configure_client(options: argparse.Namespace) -> int:
    """`trunkline connect`: prints only the configuration on stdout; with --write merges it into the client's file."""
    client, key_env = CLIENTS[options.client], options.key_env or DEFAULT_KEY_ENV
    known = _gateway(options)
    backends = _existing(options, known.names)
    key = _key_in(key_env) if options.key_env and client.key_in_text else None
    signs_in = known.signs_in and not options.key_env and not client.is_program
    targets = [Target(each, endpoint(known.base, options.tenant, each), key_env, key, signs_in) for each in backends]
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


def _existing(options: argparse.Namespace, names: Sequence[str] | None) -> list[str]:
    """Those that are named; or the only one there is."""
    have = f"the tenant {options.tenant} has " + (
        ", ".join((names or ())[:MOST_SHOWN]) or "neither backends nor toolsets"
    )
    if not options.backend:
        if names is not None and len(names) == 1:
            return [*names]
        have = "those of this gateway are not known here" if names is None else have
        raise InvalidRequest(f"which backend? Give --backend, more than once for several; {have}")
    for each in options.backend:
        if names is not None and each not in names:
            raise InvalidRequest(f"there is no {each!r}: {have}")
    return list(dict.fromkeys(options.backend))


def _gateway(options: argparse.Namespace) -> _Known:
    """That of --url, of which nothing is known; else the one that other commands use."""
    if options.url is not None:
        return _Known(options.url, None)
    return _over_rest(options) if is_remote(options) else _of_this_machine(options)


def _of_this_machine(options: argparse.Namespace) -> _Known:
    return _Known(*Later("app.cli.database.known_to_clients").load()(options))


def _over_rest(options: argparse.Namespace) -> _Known:
    """What the gateway of TRUNKLINE_URL says. Who has no key for it, as on a client's machine, is told that nothing was
    checked."""
    base, signs_in = os.environ[f"{PREFIX}URL"].strip(), False
    try:
        with open_rest(argparse.Namespace(url=None, key_file=None)) as rest:
            base, signs_in = _for_clients(rest, options.tenant)
            return _Known(base, _names_of(rest, options.tenant), signs_in)
    except NoTenant:
        raise
    except GatewayError as error:
        why = error.summary if isinstance(error, Refused) else str(error)
    print(f"trunkline: whether the gateway has them was not checked: {why}", file=sys.stderr)
    return _Known(base, None, signs_in)


def _names_of(rest: Rest, tenant: str) -> list[str]:
    place, found = f"/tenants/{segment(tenant)}", list[str]()
    try:
        for kind in ("backends", "toolsets"):
            items, _ = rest.items(f"{place}/{kind}", query={}, most=MOST_BACKENDS)
            found += [str(each["name"]) for each in items]
    except Refused as refused:
        if refused.status != HTTPStatus.NOT_FOUND:
            raise
        tenants = list[str]()
        with suppress(Refused):  # not everybody may see them
            tenants = [str(each["name"]) for each in rest.items("/tenants", query={}, most=MOST_SHOWN)[0]]
        raise NoTenant(tenant, tenants) from None
    return found


def _for_clients(rest: Rest, tenant: str) -> tuple[str, bool]:
    """The address under which clients reach the gateway, as its console says: PUBLIC_URL, if it has another host; and
    whether the tenant has an authorization server of its own."""
    path = f"/t/{segment(tenant)}/any/mcp"
    with suppress(httpx2.HTTPError, ValueError):
        metadata = rest.client.get(f"{rest.url}/.well-known/oauth-protected-resource{path}").json()
        base = str(metadata["resource"]).removesuffix(path)
        signs_in = f"{base}/oauth/{tenant}" in metadata.get("authorization_servers", ())
        is_other = urlsplit(base).netloc != urlsplit(rest.url).netloc
        return (base if is_other else rest.url), signs_in
    return rest.url, False
