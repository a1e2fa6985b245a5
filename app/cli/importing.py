"""The command `import`: backends go into the database here, or over REST to the gateway at --url."""

import argparse
import http.client
import json
import os
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from app.admin.entries import body_of, validated
from app.admin.schemas import BackendBody
from app.cli.database import act_of_user, backend_names, in_database, look_into_database
from app.cli.settings import settings_from, settings_only_read
from app.connect import DEFAULT_KEY_ENV, endpoint
from app.errors import GatewayError, InvalidRequest
from app.importing import is_done, parse, report, report_json, settle
from app.storage import BackendRepository, Database

MAX_IMPORT_BYTES = 2**20
_REST_S = 30.0


def import_servers(options: argparse.Namespace) -> int:
    """`trunkline import`: a report of the file's servers; with --apply they become backends."""
    text, is_toml = _read_file(options.file), options.file.endswith(".toml")
    names, create = (_names_over_rest, _create_over_rest) if options.url else (_names_stored, _create_stored)
    entries = [validated(entry) for entry in parse(text, is_toml=is_toml, supplied=dict(options.env))]
    entries = settle(entries, names(options))
    if options.apply:
        bodies = {entry.name: body_of(entry) for entry in entries if not entry.problems}
        failed = create(options, bodies)
        entries = [entry.refused(failed[entry.name]) if entry.name in failed else entry for entry in entries]
    print((report_json if options.json else report)(entries, applied=options.apply))
    return 0 if is_done(entries) else 1


def _read_file(path: str) -> str:
    try:
        with sys.stdin.buffer if path == "-" else open(path, "rb") as file:
            content = file.read(MAX_IMPORT_BYTES + 1)
        if len(content) > MAX_IMPORT_BYTES:
            raise InvalidRequest(f"{path!r} is larger than {MAX_IMPORT_BYTES} bytes")
        return content.decode("utf-8")
    except OSError as error:
        raise InvalidRequest(f"cannot read {path!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path!r} is not UTF-8 text") from None


def _names_stored(options: argparse.Namespace) -> list[str]:
    look = in_database if options.apply else look_into_database
    settings = settings_from(options) if options.apply else settings_only_read(options)
    return look(settings, lambda database: backend_names(database, options.tenant)) or []


def _create_stored(options: argparse.Namespace, bodies: Mapping[str, BackendBody]) -> dict[str, str]:
    """Makes the backends, and returns why some could not be made."""

    async def create(database: Database) -> dict[str, str]:
        repository, failed = BackendRepository(database), dict[str, str]()
        for name, body in bodies.items():
            try:
                act = act_of_user(options.tenant, "backend.create", f"backends/{name}")
                await repository.create(options.tenant, body.spec(options.tenant), act=act)
            except GatewayError as error:  # made by somebody else since we looked, for example
                failed[name] = str(error)
        return failed

    return in_database(settings_from(options), create)


def _names_over_rest(options: argparse.Namespace) -> list[str]:
    names, cursor = list[str](), ""
    while True:
        query = urlencode({"limit": 100, **({"cursor": cursor} if cursor else {})})
        page = _rest(options, "GET", f"?{query}")
        names += [each["name"] for each in page["items"]]
        cursor = page.get("next_cursor") or ""
        if not cursor:
            return names


def _create_over_rest(options: argparse.Namespace, bodies: Mapping[str, BackendBody]) -> dict[str, str]:
    failed = {}
    for name, body in bodies.items():
        try:
            _rest(options, "POST", body=body.model_dump_json())
        except GatewayError as error:
            failed[name] = str(error)
    return failed


def _rest(options: argparse.Namespace, method: str, query: str = "", body: str | None = None) -> Any:
    """One request to the tenant's backends at --url. No redirect is followed: it would take the key along."""
    key = os.environ.get(options.key_env or DEFAULT_KEY_ENV)
    if not key:
        raise InvalidRequest(
            f"there is no key in {options.key_env or DEFAULT_KEY_ENV}; name its variable with --key-env"
        )
    parts = urlsplit(endpoint(options.url, options.tenant, "x"))  # checks the URL
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.netloc, timeout=_REST_S)
    path = f"{urlsplit(options.url).path.rstrip('/')}/api/v1/tenants/{options.tenant}/backends{query}"
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        answer = connection.getresponse()
        status, content = answer.status, answer.read()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise GatewayError(f"{options.url} does not answer: {error}") from None
    finally:
        connection.close()
    try:
        document = json.loads(content)
    except ValueError:
        document = {}
    if 200 <= status < 300 and isinstance(document, dict) and document:
        return document
    problem = document.get("detail") or document.get("title") if isinstance(document, dict) else None
    raise GatewayError(f"{options.url} answers {status}: {problem or 'no gateway'}")
