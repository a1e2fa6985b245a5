"""`trunkline connect`: every configuration is read with the parser that its client would use."""

import ast
import base64
import json
import os
import re
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from app import cli
from app.admin.client_config import (
    CLIENTS,
    DEFAULT_KEY_ENV,
    PASTE_HERE,
    Target,
    endpoint,
    install_links,
    instructions,
    local_url,
)
from app.domain import BackendSpec, SignIn
from app.errors import InvalidRequest
from app.settings.settings import Settings
from app.storage.backends import BackendRepository
from app.storage.engine import Database
from app.storage.tenants import TenantRepository
from tests.databases import SEALER, migrate

URL = "https://gw.example.com/t/acme/time/mcp"


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRUNKLINE_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def rendered(client: str, url: str = URL, key: str | None = None) -> str:
    return CLIENTS[client].render([Target("time", url, "MY_KEY", key)])


def test_the_nine_clients_are_there():
    assert list(CLIENTS) == [
        "claude-code", "claude-desktop", "cursor", "vscode", "windsurf", "cline", "codex", "openai-agents", "langchain",
    ]  # fmt: skip


def test_claude_code_is_one_command_line():
    text = rendered("claude-code")
    assert shlex.split(text) == [
        "claude", "mcp", "add", "--transport", "http", "time", URL, "--header", "Authorization: Bearer $MY_KEY",
    ]  # fmt: skip
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "extra"),
    [
        (URL, []),
        ("http://127.0.0.1:8080/t/acme/time/mcp", []),
        ("http://10.0.0.7/t/acme/time/mcp", ["--allow-http"]),
    ],
)
def test_claude_desktop_goes_through_mcp_remote(url, extra):
    entry = json.loads(rendered("claude-desktop", url))["mcpServers"]["time"]
    assert entry["command"] == "npx"
    assert entry["args"] == ["-y", "mcp-remote", url, "--header", "Authorization:${AUTH}", *extra]
    assert entry["env"] == {"AUTH": f"Bearer {PASTE_HERE}"}


@pytest.mark.parametrize(("client", "member"), [("cursor", "url"), ("windsurf", "serverUrl")])
def test_cursor_and_windsurf_read_the_key_from_the_environment(client, member):
    assert json.loads(rendered(client)) == {
        "mcpServers": {"time": {member: URL, "headers": {"Authorization": "Bearer ${env:MY_KEY}"}}}
    }


def test_vscode_asks_for_the_key():
    document = json.loads(rendered("vscode"))
    (question,) = document["inputs"]
    assert (question["type"], question["password"]) == ("promptString", True)
    assert document["servers"]["time"] == {
        "type": "http",
        "url": URL,
        "headers": {"Authorization": f"Bearer ${{input:{question['id']}}}"},
    }


def test_cline_holds_the_key_itself():
    entry = json.loads(rendered("cline", key="tlk_x"))["mcpServers"]["time"]
    assert entry == {
        "type": "streamableHttp",
        "url": URL,
        "headers": {"Authorization": "Bearer tlk_x"},
        "disabled": False,
        "autoApprove": [],
    }


def test_codex_is_toml():
    assert tomllib.loads(rendered("codex")) == {"mcp_servers": {"time": {"url": URL, "bearer_token_env_var": "MY_KEY"}}}


def test_a_backend_with_digits_and_hyphens_is_one_toml_key():
    text = CLIENTS["codex"].render([Target("0-a-1", URL)])
    assert list(tomllib.loads(text)["mcp_servers"]) == ["0-a-1"]


@pytest.mark.parametrize("client", ["openai-agents", "langchain"])
def test_python_programs_are_valid_and_hold_url_and_variable(client):
    tree = ast.parse(rendered(client))
    compile(tree, client, "exec")
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert {URL, "MY_KEY", "Authorization", "time"} <= constants
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert calls & {"MCPServerStreamableHttp", "MultiServerMCPClient"}


def test_openai_agents_gets_url_and_headers_as_its_parameters():
    tree = ast.parse(rendered("openai-agents"))
    (call,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "MCPServerStreamableHttp"
    )
    arguments = {each.arg: each.value for each in call.keywords}
    parameters = arguments["params"]
    assert isinstance(parameters, ast.Dict)
    assert [ast.unparse(key or parameters) for key in parameters.keys] == ["'url'", "'headers'", "'timeout'"]


@pytest.mark.parametrize("client", CLIENTS)
def test_only_clients_that_read_no_variable_ever_hold_the_key(client):
    key = "tlk_abcdefgh_secret"
    assert (key in rendered(client, key=key)) is CLIENTS[client].key_in_text
    assert key not in instructions(CLIENTS[client], Target("time", URL, "MY_KEY", key))


def test_nothing_in_a_url_breaks_out_of_a_configuration():
    url = endpoint("https://gw.example.com/a'\"$(b)\\", "acme", "time")
    assert shlex.split(rendered("claude-code", url))[6] == url
    assert tomllib.loads(rendered("codex", url))["mcp_servers"]["time"]["url"] == url
    for client in ("claude-desktop", "cursor", "vscode", "windsurf", "cline"):
        assert url in str(list(json.loads(rendered(client, url)).values())).replace("\\\\", "\\").replace("\\'", "'")
    for client in ("openai-agents", "langchain"):
        assert url in {
            node.value for node in ast.walk(ast.parse(rendered(client, url))) if isinstance(node, ast.Constant)
        }


@pytest.mark.parametrize(
    "base",
    [
        "gw.example.com",
        "ftp://gw",
        "https://",
        "https://u:p@gw",
        "https://gw?x=1",
        "https://gw#a",
        "https://g w",
        "https://gw:65536",
    ],
)
def test_a_wrong_address_is_refused(base):
    with pytest.raises(InvalidRequest):
        endpoint(base, "acme", "time")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://127.0.0.1:8080"),
        ("::", "http://[::1]:8080"),
        ("gw.internal", "http://gw.internal:8080"),
    ],
)
def test_the_local_address_is_one_that_can_be_connected_to(host, url):
    assert local_url(host, 8080) == url


@pytest.mark.parametrize("client", [name for name, each in CLIENTS.items() if not each.is_program])
def test_where_people_sign_in_a_client_gets_the_address_alone(client):
    target = Target("time", URL, "MY_KEY", "tlk_abcdefgh_secret", signs_in=True)
    text = CLIENTS[client].render([target]) + instructions(CLIENTS[client], target)
    assert URL in text
    assert "sign in" in text
    for word in ("Authorization", "MY_KEY", "tlk_", "Bearer", PASTE_HERE, "-key"):
        assert word not in text, word
    assert all("MY_KEY" not in link for link in install_links(target).values())


# --- the command


def test_stdout_is_the_configuration_and_stderr_the_rest(capsys, data_dir):
    assert (
        cli.main(["connect", "cursor", "--tenant", "acme", "--backend", "time", "--url", "https://gw.example.com/"])
        == 0
    )
    out, err = capsys.readouterr()
    entry = json.loads(out)["mcpServers"]["time"]
    assert entry == {"url": URL, "headers": {"Authorization": f"Bearer ${{env:{DEFAULT_KEY_ENV}}}"}}
    assert "~/.cursor/mcp.json" in err
    assert not data_dir.exists()


@pytest.mark.parametrize(
    ("environ", "base"),
    [
        ({}, "http://127.0.0.1:8080"),
        ({"TRUNKLINE_PORT": "9000"}, "http://127.0.0.1:9000"),
        ({"TRUNKLINE_PUBLIC_URL": "https://gw.example.com/x/"}, "https://gw.example.com/x"),
    ],
)
def test_without_an_address_the_settings_have_it(capsys, monkeypatch, data_dir, environ, base):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["connect", "codex", "--backend", "time"]) == 0
    entry = tomllib.loads(capsys.readouterr().out)["mcp_servers"]["time"]
    assert entry["url"] == f"{base}/t/default/time/mcp"
    assert not data_dir.exists()


def test_the_key_is_written_out_only_when_its_variable_is_named(capsys, monkeypatch):
    monkeypatch.setenv("GATEWAY_KEY", "tlk_secret")
    arguments = ["connect", "cline", "--backend", "time"]
    assert cli.main(arguments) == 0
    assert "tlk_secret" not in "".join(capsys.readouterr())
    assert cli.main([*arguments, "--key-env", "GATEWAY_KEY"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["mcpServers"]["time"]["headers"] == {"Authorization": "Bearer tlk_secret"}
    assert "contains the key" in err


@pytest.mark.parametrize("words", [[], ["--write", "mcp.json"]], ids=["printed", "written"])
@pytest.mark.parametrize("client", ["cline", "claude-desktop"])
def test_a_variable_that_has_no_key_is_an_error_and_nothing_is_written(capsys, monkeypatch, tmp_path, client, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOVAR", "")
    assert cli.main(["connect", client, "--backend", "time", "--key-env", "NOVAR", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "NOVAR is not set" in err
    assert not (tmp_path / "mcp.json").exists()


async def _register(*names: str, sign_in: SignIn | None = None) -> None:
    database = Database(Settings.from_env(os.environ).database_url)
    try:
        for name in names:
            await BackendRepository(database, SEALER).create("default", BackendSpec("default", name, "true"))
        tenants = TenantRepository(database)
        await tenants.replace(replace(await tenants.get("default"), sign_in=sign_in))
    finally:
        await database.aclose()


def register(*names: str, sign_in: SignIn | None = None) -> None:
    import asyncio

    migrate(Settings.from_env(os.environ).database_url)
    asyncio.run(_register(*names, sign_in=sign_in))


def test_the_only_backend_need_not_be_named(capsys):
    register("echo")
    assert cli.main(["connect", "windsurf"]) == 0
    assert list(json.loads(capsys.readouterr().out)["mcpServers"]) == ["echo"]


def test_a_tenant_with_an_authorization_server_needs_no_key_unless_one_is_named(capsys):
    register("echo", sign_in=SignIn())
    entries = []
    for more in ([], ["--key-env", "MY_KEY"]):
        assert cli.main(["connect", "windsurf", *more]) == 0
        entries.append(json.loads(capsys.readouterr().out)["mcpServers"]["echo"])
    assert ["headers" in each for each in entries] == [False, True]


def test_of_several_backends_one_must_be_named(capsys):
    register("echo", "time")
    assert cli.main(["connect", "windsurf"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--backend" in err
    assert "echo, time" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--backend", "nothing"], "there is no 'nothing': the tenant default has echo, time"),
     (["--backend", "echo", "--tenant", "nobody"], "there is no tenant 'nobody'; there are default")],
)  # fmt: skip
def test_what_does_not_exist_is_refused_with_what_does(capsys, arguments, words):
    register("echo", "time")
    assert cli.main(["connect", "windsurf", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


def test_where_nobody_can_be_asked_that_is_said(capsys, monkeypatch):
    monkeypatch.setenv("TRUNKLINE_URL", "http://127.0.0.1:1/gw")
    assert cli.main(["connect", "windsurf", "--backend", "echo"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["mcpServers"]["echo"]["serverUrl"] == "http://127.0.0.1:1/gw/t/default/echo/mcp"
    assert "was not checked: there is no key" in err


@pytest.mark.parametrize("arguments", [[], ["--url", "https://gw.example.com"]])
def test_a_backend_that_nobody_can_know_must_be_named(capsys, arguments):
    assert cli.main(["connect", "codex", *arguments]) == 2
    assert re.search(r"which backend\? Give --backend", capsys.readouterr().err)


@pytest.mark.parametrize("arguments", [["emacs"], ["codex", "--backend", "A b"], ["codex", "--key-env", "tlk_a-b"]])
def test_wrong_usage_is_exit_code_2(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        cli.main(["connect", *arguments])
    assert caught.value.code == 2


def test_links_make_a_client_ask_for_the_key_and_contain_none() -> None:
    links = install_links(Target("time", URL, "MY_KEY", key="tlk_secret"))
    assert "tlk_secret" not in unquote(str(links))
    asked = json.loads(unquote(links["VS Code"].removeprefix("vscode:mcp/install?")))
    (question,) = asked.pop("inputs")
    assert asked == {
        "name": "time", "type": "http", "url": URL, "headers": {"Authorization": f"Bearer ${{input:{question['id']}}}"},
    }  # fmt: skip
    assert question["password"] is True
    query = parse_qs(urlsplit(links["Cursor"]).query)
    assert query["name"] == ["time"]
    config = json.loads(base64.b64decode(query["config"][0]))
    assert config == {"url": URL, "headers": {"Authorization": "Bearer ${env:MY_KEY}"}}
