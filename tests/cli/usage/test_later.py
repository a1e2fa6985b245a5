"""A command imports what it needs, and nothing of the others."""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from app.admin.client_config import CLIENTS, DEFAULT_KEY_ENV
from app.cli.parser import make_parser
from app.cli.usage import nouns
from app.cli.usage.later import HereOrThere, Later
from app.domain import Issuer
from app.settings.settings import Settings
from app.storage.access.issuers import IssuerRepository
from app.storage.engine import Database
from app.telemetry.call_history.query import GROUPS
from tests.databases import migrate

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {"sqlalchemy", "alembic", "fastapi", "starlette", "pydantic", "redis", "yaml", "uvicorn", "cryptography"}
PROGRAM = """
import sys
from app.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code
print("\\n".join(["", *sys.modules]))
sys.exit(code)
"""


class Answers(BaseHTTPRequestHandler):
    """A gateway that has nothing."""

    def do_GET(self) -> None:
        content = json.dumps({"items": []}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def imported_by(words: str, environ: dict[str, str]) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words.split()],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return modules_in(done.stdout)


def modules_in(printed: str) -> set[str]:
    """And the packages that they are in."""
    modules = printed.splitlines()
    imported = {*modules, *(each.partition(".")[0] for each in modules)}
    assert "argparse" in imported
    return imported


def test_help_needs_nothing_of_what_the_commands_need() -> None:
    words = ("version", "--help", "serve --help", "backends create --help")
    found = {each: imported_by(each, {}) & {*HEAVY, "httpx2", "asyncio"} for each in words}
    assert found == {each: set() for each in words}


def test_a_command_over_rest_imports_neither_database_nor_web_framework(url: str) -> None:
    words = ("backends list", "keys list --tenant acme", "top --once --tenant acme", "calls", "problems")
    environ = {"TRUNKLINE_URL": url, "TRUNKLINE_KEY": "tlk_x"}
    found = {each: imported_by(each, environ) & HEAVY for each in words}
    assert found == {each: set() for each in words}


def test_files_are_compared_with_schemas_and_without_database_and_ciphers(url: str, tmp_path: Path) -> None:
    (tmp_path / "servers.json").write_text('{"mcpServers": {}}')
    words = ("export", f"import {tmp_path}/servers.json")
    environ = {"TRUNKLINE_URL": url, "TRUNKLINE_KEY": "tlk_x"}
    found = {each: imported_by(each, environ) & {*HEAVY, "asyncio", "jwt"} - {"pydantic", "yaml"} for each in words}
    assert found == {each: set() for each in words}


def imported_by_node(directory: Path, *issuers: Issuer) -> set[str]:
    """By a node with a database that has these issuers."""
    environ = {"TRUNKLINE_DATA_DIR": str(directory), "PATH": os.environ["PATH"]}
    url = migrate(Settings.from_env(environ).database_url)
    asyncio.run(store(url, issuers))
    command = [sys.executable, "-c", PROGRAM, "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        assert node.stdout.readline().startswith("listening on ")
        node.terminate()
        return modules_in(node.communicate(timeout=60)[0])


async def store(url: str, issuers: Sequence[Issuer]) -> None:
    async with aclosing(Database(url)) as database:
        for each in issuers:
            await IssuerRepository(database).create(each.tenant, each)


@pytest.mark.real
def test_a_node_imports_what_it_uses(tmp_path: Path) -> None:
    unused = {
        "alembic",
        "redis",
        "hiredis",
        "psycopg",
        "jinja2",
        "yaml",
        "tomlkit",
        "psutil",
        "mako",
        "fastapi_offline",
        "cryptography",
        "jwt",
        "sqlalchemy.orm",
    }
    assert imported_by_node(tmp_path) & {*unused, "fastapi", "sqlalchemy"} == {"fastapi", "sqlalchemy"}


@pytest.mark.real
def test_a_node_with_an_issuer_has_the_ciphers_before_its_first_token(tmp_path: Path) -> None:
    names = {"subject": "sub", "scopes": "scope", "tenant": None}
    issuer = Issuer(
        "1" * 16, "default", "https://idp.example.com", ("RS256",), ("a",), names, frozenset({"mcp:connect"}),
        datetime(2026, 1, 1, tzinfo=UTC), jwks_url="https://idp.example.com/jwks",
    )  # fmt: skip
    assert imported_by_node(tmp_path, issuer) >= {"cryptography", "jwt"}


def test_what_options_name_is_what_there_is() -> None:
    assert tuple(CLIENTS) == nouns.CLIENTS
    assert nouns.DEFAULT_KEY_ENV == DEFAULT_KEY_ENV
    assert nouns.CALL_GROUPS == GROUPS


def runs(parser: argparse.ArgumentParser) -> Iterator[object]:
    yield from filter(None, [parser.get_default("run")])
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from runs(each)


def test_every_command_has_a_function() -> None:
    found = set[object]()
    for each in runs(make_parser()):
        found |= {each.here, each.there} if isinstance(each, HereOrThere) else {each}
    assert len(found) > 30
    assert [each for each in found if not (isinstance(each, Later) and callable(each.load()))] == []
