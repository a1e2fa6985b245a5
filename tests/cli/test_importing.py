"""`trunkline import`: a dry run, what `--apply` does, and the same over the REST API."""

import asyncio
import io
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app import cli
from app.admin.importing import EXISTS
from app.auth.sealing import Sealer
from app.domain import BackendSpec
from app.settings.settings import Settings
from app.storage.backends import BackendRepository
from app.storage.engine import Database
from tests.admin.importing.test_importing import CLAUDE, stdio
from tests.databases import migrate


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRUNKLINE_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def mcp_json(tmp_path: Path) -> str:
    (tmp_path / "mcp.json").write_text(CLAUDE.replace('"npx"', '"weather-mcp"').replace('"uvx"', '"files-mcp"'))
    return str(tmp_path / "mcp.json")


@pytest.fixture
def database(data_dir: Path) -> None:
    """One as the gateway leaves it."""
    migrate(Settings.from_env(os.environ).database_url)


def stored(tenant: str = "default") -> list[BackendSpec]:
    async def read() -> list[BackendSpec]:
        database = Database(Settings.from_env(os.environ).database_url)
        try:
            return list(
                await BackendRepository(database, Sealer(Settings.from_env(os.environ).secret_key)).list(
                    tenant, limit=100
                )
            )
        finally:
            await database.aclose()

    return asyncio.run(read())


def test_a_dry_run_changes_nothing(capsys, data_dir, mcp_json):
    assert cli.main(["import", mcp_json]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in out] == [["would", "create", "weather-server"], ["would", "create", "files"]]
    assert not data_dir.exists()


@pytest.mark.usefixtures("database")
def test_packages_are_installed_by_a_gateway_only(capsys, tmp_path):
    (tmp_path / "mcp.json").write_text(CLAUDE)
    assert cli.main(["import", str(tmp_path / "mcp.json"), "--apply"]) == 1
    assert capsys.readouterr().out.count("names a package or an image, which a gateway resolves that runs") == 2
    assert stored() == []


@pytest.mark.usefixtures("database")
def test_apply_registers_and_a_second_time_finds_them(capsys, data_dir, mcp_json):
    assert cli.main(["import", mcp_json, "--apply"]) == 0
    weather, files = sorted(stored(), key=lambda spec: spec.name, reverse=True)
    assert (weather.command, weather.args[1:], dict(weather.env)) == (
        "weather-mcp",
        ("@acme/weather",),
        {"UNITS": "metric"},
    )
    assert (files.name, files.enabled, files.max_processes) == ("files", False, 10)
    capsys.readouterr()
    assert cli.main(["import", mcp_json, "--apply", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(each["outcome"], each["problems"]) for each in shown] == [("skipped", [EXISTS])] * 2
    assert cli.main(["import", mcp_json]) == 0
    assert capsys.readouterr().out.count("would skip") == 2


@pytest.mark.usefixtures("database")
def test_the_validation_is_that_of_the_rest_api(capsys, data_dir, monkeypatch):
    env = {"BAD NAME": "s3cret"}
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(stdio(args=["ok", None], env=env).encode())))
    assert cli.main(["import", "-", "--apply"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("skipped")
    assert "args.1: Input should be a valid string" in out
    assert "s3cret" not in out
    assert stored() == []


@pytest.mark.usefixtures("database")
def test_values_come_from_the_command_line_or_the_environment(data_dir, monkeypatch, tmp_path):
    (tmp_path / "a.json").write_text(stdio(env={"A": "${ONE}", "B": "${TWO}"}))
    monkeypatch.setenv("TWO", "2")
    assert cli.main(["import", str(tmp_path / "a.json"), "--apply", "--env", "ONE=1=1", "--env", "TWO"]) == 0
    assert dict(stored()[0].env) == {"A": "1=1", "B": "2"}


@pytest.mark.usefixtures("database")
def test_an_unknown_tenant_is_an_error(capsys, data_dir, mcp_json):
    assert cli.main(["import", mcp_json, "--apply", "--tenant", "nobody"]) == 1
    assert "Tenant not found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"), [("none.json", None), ("b.json", b"\xff\xfe"), ("c.json", b" " * (2**24 + 1))]
)
def test_a_file_that_cannot_be_read_is_one_line_and_exit_code_2(capsys, data_dir, tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert cli.main(["import", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


class _Rest(BaseHTTPRequestHandler):
    """The two requests that an import makes, as the REST API answers them."""

    requests: list[tuple[str, str, str | None, Any]]

    def _answer(self, status: int, document: object) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _note(self, body: object) -> None:
        type(self).requests.append((self.command, self.path, self.headers["Authorization"], body))

    def do_GET(self) -> None:
        self._note(None)
        if "cursor" in self.path:
            self._answer(200, {"items": [{"name": "files"}], "next_cursor": None})
        else:
            self._answer(200, {"items": [{"name": "other"}], "next_cursor": "c"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._note(body)
        self._answer(
            403, {"title": "Forbidden", "detail": "this needs the scope platform:admin"} if body["name"] == "no" else {}
        )

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def rest():
    _Rest.requests = []
    with HTTPServer(("127.0.0.1", 0), _Rest) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_over_rest_the_gateway_is_asked_and_told(capsys, data_dir, tmp_path, rest, monkeypatch):
    monkeypatch.setenv("ADMIN", "tlk_admin")
    (tmp_path / "a.json").write_text(json.dumps({"mcpServers": {"no": {"command": "x"}, "files": {"command": "y"}}}))
    code = cli.main(
        ["import", str(tmp_path / "a.json"), "--apply", "--url", rest, "--key-env", "ADMIN", "--tenant", "acme"]
    )
    out = capsys.readouterr().out
    assert code == 1
    assert "Forbidden: this needs the scope platform:admin" in out
    assert EXISTS in out
    assert [(method, path.partition("?")[0], key) for method, path, key, _ in _Rest.requests] == [
        (method, "/api/v1/tenants/acme/backends", "Bearer tlk_admin") for method in ("GET", "GET", "POST")
    ]
    assert _Rest.requests[-1][3]["command"] == "x"
    assert not data_dir.exists()


def test_over_rest_a_key_is_needed(capsys, data_dir, mcp_json):
    assert cli.main(["import", mcp_json, "--url", "http://127.0.0.1:1"]) == 2
    assert "TRUNKLINE_KEY" in capsys.readouterr().err
