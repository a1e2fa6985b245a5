"""Files as people have them, each with what becomes of it: forms of the clients' documents, and of threads in which
somebody's file did not work. Written for this test; names, keys and paths are made up."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from app.admin.importing import Entry, looks_like_toml, parse
from app.admin.schemas.imports import validated
from app.errors import InvalidRequest

NEEDS = "give it with --env NAME=VALUE"
WEBSOCKET = "is reached by WebSocket, which the gateway does not speak: give its address for Streamable HTTP as `url`"
WINDOWS = "say where that is here, under this name, with --env NAME=VALUE"


class File(NamedTuple):
    """`becomes`: by name, the words of a command line, a URL, or a problem."""

    text: str
    becomes: dict[str, Any]
    supplied: Mapping[str, str] = MappingProxyType({})
    env: Mapping[str, Any] = MappingProxyType({})  # by name, variables or headers


def read(file: File) -> list[Entry]:
    is_toml = looks_like_toml(file.text) and "mcp_servers" in file.text
    return [validated(each) for each in parse(file.text, is_toml=is_toml, supplied=file.supplied)]


def outcome(entry: Entry) -> Any:
    if entry.problems:
        return "; ".join(entry.problems)
    return entry.members.get("url") or [entry.members["command"], *entry.members["args"]]


def servers(**entries: Any) -> str:
    return json.dumps({"mcpServers": entries}, indent=2)


def crlf(text: str) -> str:
    return "\ufeff" + text.replace("\n", "\r\n")


FILES = {
    # --- as documents of the clients have it
    "Claude Desktop on Windows": File(
        crlf(servers(files={"command": "npx", "args": ["-y", "files-mcp", "C:\\Users\\kim\\Desktop", "D:/Work"]})),
        {"files": f"names a path of Windows, C:\\Users\\kim\\Desktop; D:/Work: {WINDOWS}"},
    ),
    "Claude Desktop on Windows, with the places here": File(
        servers(files={"command": "npx", "args": ["-y", "files-mcp", "C:\\Users\\kim\\Desktop", "--in=D:/Work"]}),
        {"files": ["npx", "-y", "files-mcp", "/srv/desk", "--in=/srv/work"]},
        {"C:\\Users\\kim\\Desktop": "/srv/desk", "D:/Work": "/srv/work"},
    ),
    "Claude Code, with defaults": File(
        servers(
            api={"type": "http", "url": "${API:-https://api.example}/mcp", "headers": {"X-Key": "${KEY}"}},
            db={"command": "/usr/local/bin/db-mcp", "args": ["--config", "${CONF:-/etc/db.json}"], "timeout": 600000},
        ),
        {"api": "https://api.example/mcp", "db": ["/usr/local/bin/db-mcp", "--config", "/etc/db.json"]},
        {"KEY": "k"},
        {"api": {"X-Key": "k"}},
    ),
    "Cursor": File(
        servers(
            local={
                "type": "stdio",
                "command": "python",
                "args": ["${workspaceFolder}${/}server.py"],
                "env": {"KEY": "${env:KEY}"},
                "envFile": "${userHome}/.env",
            }
        ),
        {"local": ["python", "/srv/shop/server.py"]},
        {"workspaceFolder": "/srv/shop", "KEY": "k", "envFile": "# of the shop\nexport A='b c'\n\nKEY=other\n"},
        {"local": {"A": "b c", "KEY": "k"}},
    ),
    "Cursor, without what it names": File(
        servers(local={"command": "x", "envFile": "${workspaceFolder}/.env"}),
        {"local": "has an `envFile`, which is not read: give its text as envFile with --env NAME=VALUE"},
    ),
    "VS Code, with inputs": File(
        """{
            // asked for once
            "inputs": [
                {"type": "promptString", "id": "key", "password": true, "description": "The key"},
                {"type": "pickString", "id": "region", "options": ["eu", "us"], "default": "eu"},
            ],
            "servers": {
                "shop": {"type": "stdio", "command": "npx", "args": ["-y", "shop-mcp", "--region", "${input:region}"],
                         "env": {"SHOP_KEY": "${input:key}"}, "dev": {"watch": "src/**"}, "sandboxEnabled": true},
                "far": {"type": "http", "url": "https://far.example/mcp",
                        "headers": {"Authorization": "Bearer ${input:key}"}},
            },
        }""",
        {"shop": ["npx", "-y", "shop-mcp", "--region", "eu"], "far": "https://far.example/mcp"},
        {"key": "k"},
        {"shop": {"SHOP_KEY": "k"}, "far": {"Authorization": "Bearer k"}},
    ),
    "settings of VS Code": File(
        '{"editor.fontSize": 13, "mcp": {"inputs": [], "servers": {"a": {"command": "a-mcp"}}}, "chat.mcp": "all"}',
        {"a": ["a-mcp"]},
    ),
    "settings of Copilot in VS Code": File(
        '{"github.copilot.chat.mcp.servers": {"a": {"command": "x"}}}', {"a": ["x"]}
    ),
    "a workspace of VS Code": File(
        '{"folders": [], "settings": {"mcp": {"servers": {"a": {"command": "x"}}}}}', {"a": ["x"]}
    ),
    "a development container": File(
        '{"image": "x", "customizations": {"vscode": {"mcp": {"servers": {"a": {"command": "x"}}}}}}', {"a": ["x"]}
    ),
    "Copilot's command line": File(
        servers(
            a={"type": "local", "command": "x", "args": [], "tools": ["*"]},
            b={"type": "local", "command": "x", "tools": ["t"]},
        ),
        {"a": ["x"], "b": ["x"]},
    ),
    "Windsurf": File(
        servers(
            far={"serverUrl": "https://far.example/mcp", "headers": {"API_KEY": "${env:FAR}"}, "disabledTools": ["rm"]}
        ),
        {"far": "https://far.example/mcp"},
        {"FAR": "f"},
        {"far": {"API_KEY": "f"}},
    ),
    "Cline": File(
        servers(
            a={"command": "x", "disabled": False, "autoApprove": ["read"], "timeout": 90, "transportType": "stdio"},
            b={"type": "streamableHttp", "url": "https://b.example", "alwaysAllow": [], "timeout": 60},
        ),
        {"a": ["x"], "b": "https://b.example"},
    ),
    "Roo": File(
        servers(
            a={"command": "x", "alwaysAllow": ["t"], "disabledTools": ["u"], "watchPaths": ["/a"], "timeout": 3600},
            b={"type": "streamable-http", "url": "https://b.example"},
        ),
        {"a": ["x"], "b": "https://b.example"},
    ),
    "Codex": File(
        """
[mcp_servers.docs]
command = "npx"
args = ["-y", "docs-mcp"]
required = true
default_tools_approval_mode = "prompt"
[mcp_servers.docs.tools.search]
approval_mode = "approve"
[mcp_servers.far]
url = "https://far.example/mcp"
bearer_token_env_var = "FAR"
scopes = ["read"]
""",
        {"docs": ["npx", "-y", "docs-mcp"], "far": "https://far.example/mcp"},
        {"FAR": "f"},
        {"far": {"Authorization": "Bearer f"}},
    ),
    "OpenCode": File(
        """{
            "mcp": {"servers": {
                "a": {"type": "local", "command": ["npx", "-y", "x"], "cwd": ".",
                      "environment": {"A": "{env:A}"}, "timeout": 5000},
                "b": {"type": "remote", "url": "https://b.example", "oauth": {},
                      "headers": {"K": "{env:A}"}, "disabled": true},
            }}
        }""",
        {"a": ["npx", "-y", "x"], "b": "https://b.example"},
        {"A": "v"},
        {"a": {"A": "v"}, "b": {"K": "v"}},
    ),
    "Gemini": File(
        json.dumps(
            {
                "theme": "dark",
                "mcp": {"allowed": ["a", "b"], "excluded": ["c"]},
                "mcpServers": {
                    "a": {"command": "x", "env": {"K": "$K"}, "cwd": "./a", "timeout": 30000, "trust": False},
                    "b": {"httpUrl": "https://b.example/mcp", "headers": {"K": "$K"}, "includeTools": ["t"]},
                    "c": {"command": "x"},
                },
            }
        ),
        {"a": ["x"], "b": "https://b.example/mcp", "c": ["x"]},
        {"K": "k"},
        {"a": {"K": "k"}, "b": {"K": "k"}},
    ),
    "Zed": File(
        """{
            "context_servers": {
                // the older form, and an extension
                "old": {"source": "custom", "command": {"path": "x", "args": ["run"], "env": {"A": "b"}},
                        "settings": {}},
                "new": {"enabled": true, "command": "uv", "args": ["run", "/srv/a.py"], "env": {}},
                "far": {"url": "https://far.example/mcp", "headers": {"A": "b"}},
                "ext": {"source": "extension", "enabled": true, "settings": {"key": "s3cret"}},
            },
        }""",
        {
            "old": ["x", "run"],
            "new": ["uv", "run", "/srv/a.py"],
            "far": "https://far.example/mcp",
            "ext": "is an extension of its editor, whose command is not in the file: add that as `command`",
        },
        {},
        {"old": {"A": "b"}},
    ),
    "Continue": File(
        """
name: Assistant
version: 1.0.0
schema: v1
models:
  - name: M
    provider: p
mcpServers:
  - name: Postgres
    command: npx
    args:
      - "-y"
      - "pg-mcp"
      - "postgresql://db.internal:5432/shop"
    env:
      KEY: ${{ secrets.KEY }}
    connectionTimeout: 20000
  - name: far
    type: streamable-http
    url: https://far.example/mcp
    requestOptions:
      headers:
        Authorization: Bearer ${{ secrets.KEY }}
""",
        {"postgres": ["npx", "-y", "pg-mcp", "postgresql://db.internal:5432/shop"], "far": "https://far.example/mcp"},
        {"KEY": "k"},
        {"postgres": {"KEY": "k"}, "far": {"Authorization": "Bearer k"}},
    ),
    "Continue, in JSON": File(
        json.dumps(
            {
                "models": [],
                "experimental": {
                    "modelContextProtocolServers": [{"transport": {"type": "stdio", "command": "uvx", "args": ["a"]}}]
                },
            }
        ),
        {"server-1": ["uvx", "a"]},
    ),
    "Goose": File(
        """GOOSE_PROVIDER: p
extensions:
  developer:
    type: builtin
    name: developer
    enabled: true
    timeout: 300
  issues:
    name: Issues
    type: stdio
    cmd: npx
    args: [-y issues-mcp]
    enabled: true
    envs: {"HOST": "issues.example"}
    env_keys: [ISSUES_TOKEN]
    timeout: 300
    available_tools: []
  far:
    type: streamable_http
    uri: https://far.example/mcp
    enabled: false
    env_keys: [FAR]
    headers:
      Authorization: Bearer ${ FAR }
""",
        {
            "developer": "is built into its client: there is nothing to start",
            "issues": ["npx", "-y", "issues-mcp"],
            "far": "https://far.example/mcp",
        },
        {"ISSUES_TOKEN": "t", "FAR": "f"},
        {"issues": {"ISSUES_TOKEN": "t", "HOST": "issues.example"}, "far": {"Authorization": "Bearer f"}},
    ),
    "LibreChat": File(
        "version: 1.2.8\nmcpServers:\n  a:\n    type: stdio\n    command: npx\n    args: [-y, x]\n"
        "    initTimeout: 150000\n  b:\n    type: websocket\n    url: ws://b.example\n",
        {
            "a": ["npx", "-y", "x"],
            "b": WEBSOCKET,
        },
    ),
    "Warp": File(
        '{"a": {"command": "x", "args": [], "env": {}, "working_directory": "/srv/a", "start_on_launch": true}}',
        {"a": ["x"]},
    ),
    "Amazon Q": File(
        servers(a={"command": "x", "timeout": 120000, "disabled": False, "autoApprove": []}), {"a": ["x"]}
    ),
    "LM Studio and JetBrains": File(
        servers(a={"url": "https://a.example/mcp", "timeout": 20000}), {"a": "https://a.example/mcp"}
    ),
    "Amp": File('{"amp.mcpServers": {"a": {"command": "x", "includeTools": ["t*"]}}}', {"a": ["x"]}),
    "a bundle's manifest": File(
        json.dumps(
            {
                "manifest_version": "0.3",
                "name": "notes",
                "version": "1.0.0",
                "author": {"name": "x"},
                "server": {
                    "type": "node",
                    "entry_point": "server/index.js",
                    "mcp_config": {
                        "command": "node",
                        "args": ["${__dirname}/server/index.js", "--level", "${user_config.level}"],
                        "env": {"KEY": "${user_config.key}"},
                        "platform_overrides": {"win32": {"command": "node.exe"}, "linux": {"command": "/usr/bin/node"}},
                    },
                },
                "user_config": {
                    "key": {"type": "string", "sensitive": True},
                    "level": {"type": "number", "default": 3},
                },
            }
        ),
        {"notes": ["/usr/bin/node", "/srv/notes/server/index.js", "--level", "3"]},
        {"__dirname": "/srv/notes", "user_config.key": "k"},
        {"notes": {"KEY": "k"}},
    ),
    # --- as threads about what did not work have it
    "cmd /c": File(
        servers(a={"command": "cmd", "args": ["/c", "npx", "-y", "x@latest"], "transport": "stdio"}),
        {"a": ["npx", "-y", "x@latest"]},
    ),
    "node with npm's own script": File(
        servers(
            a={
                "command": "node",
                "args": ["C:\\Users\\kim\\AppData\\Roaming\\npm\\node_modules\\npm\\bin\\npx-cli.js", "-y", "x"],
                "env": {"APPDATA": "C:\\Users\\kim\\AppData\\Roaming", "SystemRoot": "C:\\Windows", "A": "b"},
            }
        ),
        {"a": ["npx", "-y", "x"]},
        {},
        {"a": {"A": "b"}},
    ),
    "a server that is installed on Windows": File(
        servers(
            a={
                "command": "C:\\Program Files\\nodejs\\node.exe",
                "args": ["%APPDATA%\\npm\\node_modules\\x\\dist\\index.js", "%USERPROFILE%\\Documents"],
            }
        ),
        {"a": ["node", "/srv/roaming/npm/node_modules/x/dist/index.js", "/srv/kim/Documents"]},
        {"APPDATA": "/srv/roaming", "HOME": "/srv/kim"},
    ),
    "a server that is installed on Windows, which is not here": File(
        servers(
            a={"command": "cmd.exe", "args": ["/c", "%APPDATA%\\npm\\x.cmd"]},
            b={"command": "py", "args": ["%LOCALAPPDATA%\\b.py"]},
        ),
        {"a": ["x"], "b": f"needs LOCALAPPDATA: {NEEDS}"},
    ),
    "PowerShell": File(
        servers(a={"command": "powershell.exe", "args": ["-Command", "npx @a/x@latest"]}), {"a": ["npx", "@a/x@latest"]}
    ),
    "WSL": File(servers(a={"command": "wsl", "args": ["bash", "-ic", "npx -y @a/x"]}), {"a": ["npx", "-y", "@a/x"]}),
    "WSL, with variables": File(
        servers(
            a={
                "command": "wsl.exe",
                "args": ["-d", "Ubuntu", "--", "bash", "-lc", "cd /srv/a && TOKEN=t node dist/index.js"],
            }
        ),
        {"a": ["node", "dist/index.js"]},
        {},
        {"a": {"TOKEN": "t"}},
    ),
    "a version manager": File(
        servers(a={"command": "bash", "args": ["-lc", "source ~/.nvm/nvm.sh && nvm use 20 > /dev/null && npx -y x"]}),
        {"a": ["npx", "-y", "x"]},
    ),
    "a shell that puts in its own variable": File(
        servers(a={"command": "bash", "args": ["-c", "npx -y x --key ${KEY}"], "env": {"KEY": "s3cret"}}),
        {"a": ["bash", "-c", "npx -y x --key ${KEY}"]},
        {},
        {"a": {"KEY": "s3cret"}},
    ),
    "a shell that does more": File(
        servers(a={"command": "sh", "args": ["-c", "tee /tmp/log | npx x"]}),
        {"a": ["sh", "-c", "tee /tmp/log | npx x"]},
    ),
    "homebrew": File(
        servers(a={"command": "/opt/homebrew/bin/uvx", "args": ["x"], "env": {"PYTHONUNBUFFERED": "1"}}),
        {"a": ["uvx", "x"]},
    ),
    "all in the command": File(servers(a={"command": "npx -y x --at 'a b'"}), {"a": ["npx", "-y", "x", "--at", "a b"]}),
    "arguments in one text": File(servers(a={"command": "npx", "args": "-y x"}), {"a": ["npx", "-y", "x"]}),
    "variables in a list": File(
        servers(a={"command": "x", "env": ["A=b=c", {"name": "K", "value": "${K}"}]}),
        {"a": ["x"]},
        {"K": "k"},
        {"a": {"A": "b=c", "K": "k"}},
    ),
    "a user in the address": File(
        servers(a={"url": "https://kim:${PW}@a.example/mcp"}),
        {"a": "https://a.example/mcp"},
        {"PW": "s3cret"},
        {"a": {"Authorization": "Basic a2ltOnMzY3JldA=="}},
    ),
    "an argument that is null": File(
        servers(a={"command": "npx", "args": [None, "mcp-remote"]}),
        {"a": "args.0: Input should be a valid string"},
    ),
    "a list of servers": File('[{"name": "a", "command": "x"}, {"command": "y"}]', {"a": ["x"], "server-2": ["y"]}),
    "a server as a README shows it": File('"a": {\n  "command": "npx", "args": ["x"],\n},\n', {"a": ["npx", "x"]}),
    "a home": File(servers(a={"command": "x", "args": ["~/notes", "--in=$HOME/b"]}), {"a": f"needs HOME: {NEEDS}"}),
    "docker run": File(
        servers(a={"command": "docker", "args": ["run", "-i", "--rm", "-e", "KEY", "img/a:1"], "env": {"KEY": "k"}}),
        {"a": ["docker", "run", "-i", "--rm", "-e", "KEY", "img/a:1"]},
        {},
        {"a": {"KEY": "k"}},
    ),
    "one good server beside odd ones": File(
        servers(
            a={"command": "x"},
            b=None,
            c={"command": 3},
            d={"type": "ws", "url": "wss://d.example"},
            e={"args": ["x"]},
            f={"command": "x", "args": {"a": 1}},
            g={"command": "x", "env": "A=b"},
            h={"command": "x", "timeout": "soon"},
        ),
        {
            "a": ["x"],
            "b": "is not an object",
            "c": "has no command",
            "e": "has no command",
            "d": WEBSOCKET,
            "f": "args: Input should be a valid list",
            "g": "env: Input should be a valid dictionary",
            "h": ["x"],
        },
    ),
    # --- bridges to a URL
    "mcp-remote": File(
        servers(
            a={"command": "npx", "args": ["-y", "mcp-remote", "https://a.example/sse"]},
            b={
                "command": "npx",
                "args": [
                    "mcp-remote@latest",
                    "https://b.example/mcp",
                    "8123",
                    "--header",
                    "Authorization:${AUTH}",
                    "--allow-http",
                    "--transport",
                    "http-only",
                    "--header",
                    "X-Team: blue",
                    "--ignore-tool",
                    "delete*",
                    "--host",
                    "127.0.0.1",
                ],
                "env": {"AUTH": "Bearer s3cret"},
            },
            c={
                "command": "cmd",
                "args": [
                    "/c",
                    "npx",
                    "-y",
                    "mcp-remote",
                    "https://c.example/mcp",
                    "--header",
                    "Authorization: Bearer ${KEY}",
                ],
            },
            d={
                "command": "C:\\Program Files\\nodejs\\npx.cmd",
                "args": ["-y", "mcp-remote", "${D_URL}"],
                "disabled": True,
            },
            e={
                "command": "bash",
                "args": ["-c", 'npx -y mcp-remote https://e.example/mcp --header "K: $KEY"'],
                "env": {"KEY": "own"},
            },
        ),
        {
            "a": "https://a.example/sse",
            "b": "https://b.example/mcp",
            "c": "https://c.example/mcp",
            "d": "https://d.example/mcp",
            "e": "https://e.example/mcp",
        },
        {"KEY": "k", "D_URL": "https://d.example/mcp"},
        {
            "b": {"Authorization": "Bearer s3cret", "X-Team": "blue"},
            "c": {"Authorization": "Bearer k"},
            "e": {"K": "own"},
        },
    ),
    "other bridges": File(
        servers(
            a={
                "command": "uvx",
                "args": [
                    "mcp-proxy",
                    "--transport",
                    "streamablehttp",
                    "--headers",
                    "Authorization",
                    "Bearer x",
                    "https://a.example/mcp",
                ],
            },
            b={"command": "mcp-proxy", "args": ["https://b.example/sse"], "env": {"API_ACCESS_TOKEN": "t"}},
            c={
                "command": "npx",
                "args": ["-y", "supergateway", "--streamableHttp", "https://c.example/mcp", "--oauth2Bearer", "t"],
            },
            d={
                "command": "uvx",
                "args": ["--from", "mcp-proxy==0.9", "mcp-proxy", "-H", "K", "v", "https://d.example/mcp"],
            },
            # These serve what they start.
            e={"command": "npx", "args": ["-y", "supergateway", "--stdio", "uvx x", "--port", "8000"]},
            f={"command": "uvx", "args": ["mcp-proxy", "--port", "8080", "uvx", "x"]},
            g={"command": "npx", "args": ["-y", "mcp-remote"]},
            h={"command": "mcp-proxy", "args": ["--port", "8080", "https://h.example/mcp"]},
        ),
        {
            "a": "https://a.example/mcp",
            "b": "https://b.example/sse",
            "c": "https://c.example/mcp",
            "d": "https://d.example/mcp",
            "e": ["npx", "-y", "supergateway", "--stdio", "uvx x", "--port", "8000"],
            "f": ["uvx", "mcp-proxy", "--port", "8080", "uvx", "x"],
            "g": ["npx", "-y", "mcp-remote"],
            "h": ["mcp-proxy", "--port", "8080", "https://h.example/mcp"],
        },
        {},
        {
            "a": {"Authorization": "Bearer x"},
            "b": {"Authorization": "Bearer t"},
            "c": {"Authorization": "Bearer t"},
            "d": {"K": "v"},
        },
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_as_somebody_has_it(name):
    file = FILES[name]
    entries = read(file)
    assert {entry.name: outcome(entry) for entry in entries} == file.becomes
    for entry in entries:
        if wanted := file.env.get(entry.name):
            assert entry.members.get("headers" if entry.members.get("url") else "env") == wanted


def of(name: str) -> dict[str, Entry]:
    return {entry.name: entry for entry in read(FILES[name])}


def test_no_placeholder_and_no_path_of_windows_is_left_in_what_is_imported():
    for name, file in FILES.items():
        for entry in read(file):
            if not entry.problems and "a shell" not in name:
                assert not [each for each in ("${{", "${input", "%APPDATA", ":\\") if each in str(entry.members)], name


def test_times_are_read_in_the_unit_of_their_client():
    assert of("Claude Code, with defaults")["db"].members["timeouts"] == {"call_s": 600}
    assert of("Cline")["a"].members["timeouts"] == {"call_s": 90}
    assert of("Roo")["a"].members["timeouts"] == {"call_s": 3600}
    assert of("OpenCode")["a"].members["timeouts"] == {"initialize_s": 5}
    assert of("Gemini")["a"].members["timeouts"] == {"call_s": 30}
    assert of("Continue")["postgres"].members["timeouts"] == {"initialize_s": 20}
    assert "`timeout` is read as 90 s" in of("Cline")["a"].notes


def test_what_a_file_has_switched_off_stays_off_wherever_it_says_so():
    assert [entry.members["enabled"] for entry in of("Gemini").values()] == [True, True, False]
    assert [entry.members["enabled"] for entry in of("OpenCode").values()] == [True, False]
    assert of("Goose")["far"].members["enabled"] is False
    assert of("mcp-remote")["d"].members["enabled"] is False


def test_tools_that_somebody_may_not_use_are_left_out():
    assert of("Roo")["a"].members["exclude"] == ["u"]
    assert of("Copilot's command line")["b"].members["include"] == ["t"]
    assert "include" not in of("Copilot's command line")["a"].members
    assert of("mcp-remote")["b"].members["exclude"] == ["delete*"]
    assert "include" not in of("Codex")["docs"].members


def test_what_was_taken_off_and_what_is_not_taken_is_said():
    assert "without cmd /c, which only the system that it was written for needs" in of("cmd /c")["a"].notes
    assert "SystemRoot is a folder of Windows, and left out" in of("node with npm's own script")["a"].notes
    notes = of("mcp-remote")["a"].notes
    assert "`mcp-remote` only passes messages on to a URL, which the gateway does itself" in notes
    assert any("sign-in" in note for note in notes)
    assert not any("sign-in" in note for note in of("mcp-remote")["b"].notes)
    assert of("mcp-remote")["b"].members["transport"] == "streamable-http"
    assert "region has the default of the file" in of("VS Code, with inputs")["shop"].notes
    assert "ignored: dev, sandboxEnabled" in of("VS Code, with inputs")["shop"].notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extensions: &a\n  b: {cmd: x}\n", "is not YAML: line 1: anchors"),
        ("a: [1\n", "is not YAML: line"),
        ("a: b\n", "there are no servers"),
        ('{"command": "x"}', "one server without a name"),
        ('{"extensions": {"recommendations": ["a.b"]}}', "there are no servers"),
        ('{"repository": {"url": "https://x.example"}, "name": "x"}', "neither `packages` nor `remotes`"),
    ],
)
def test_what_has_no_servers_says_so(text, message):
    with pytest.raises(InvalidRequest, match=message):
        parse(text)
