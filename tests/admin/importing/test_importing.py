"""Lists of servers that other programs keep: a sample of every format, and what is refused and why."""

import json
from collections.abc import Mapping

import pytest

from app.admin.importing import EXISTS, Entry, is_done, looks_like_toml, normalised, parse, report, report_json, settle
from app.admin.importing._entry import MAX_NAME
from app.admin.importing._placeholders import Values
from app.admin.schemas.imports import body_of, validated
from app.errors import InvalidRequest

CLAUDE = """{"mcpServers": {
    "Weather Server": {"command": "npx", "args": ["-y", "@acme/weather"], "env": {"UNITS": "metric"}},
    "files": {"command": "uvx", "args": ["mcp-files", "/srv"], "disabled": true, "autoApprove": ["read"]}
}}"""


VSCODE = """{
    // what VS Code writes by hand
    "inputs": [{"id": "token", "type": "promptString"}],
    "servers": {
        "github": {"type": "stdio", "command": "gh-mcp", "args": [], "env": {"GITHUB_TOKEN": "${input:token}"}},
        "docs": {"type": "http", "url": "https://docs.example.com/mcp"}, /* remote */
    },
}"""


OPENCODE = """{"$schema": "https://opencode.example/config.json", "mcp": {
    "local": {"type": "local", "command": ["bun", "x", "mcp-l"], "environment": {"A": "{env:A_KEY}"}, "enabled": false},
    "away": {"type": "remote", "url": "https://mcp.example.com"}
}}"""


CODEX = """
model = "o9"
[mcp_servers.docs_search]
command = "npx"
args = ["-y", "docs"]
env_vars = ["DOCS_TOKEN"]
startup_timeout_sec = 20
[mcp_servers.docs_search.env]
LANG = "de"
[mcp_servers.remote]
url = "https://mcp.example.com"
"""


SERVER = {
    "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
    "name": "io.github.acme/Weather_MCP",
    "description": "Weather",
    "version": "1.2.3",
    "packages": [
        {"registryType": "oci", "identifier": "acme/weather", "transport": {"type": "stdio"}},
        {
            "registryType": "npm",
            "identifier": "@acme/weather",
            "version": "1.2.3",
            "runtimeHint": "npx",
            "transport": {"type": "stdio"},
            "runtimeArguments": [{"type": "named", "name": "--silent"}],
            "packageArguments": [
                {"type": "positional", "value": "serve"},
                {"type": "positional", "valueHint": "extra"},
                {"type": "named", "name": "--units", "default": "metric"},
                {"type": "named", "name": "-r", "value": "{region}-1", "variables": {"region": {"default": "eu"}}},
            ],
            "environmentVariables": [
                {"name": "WEATHER_KEY", "isRequired": True, "isSecret": True},
                {"name": "OPTIONAL"},
                {"name": "LEVEL", "default": "info"},
            ],
        },
    ],
}


def one(text: str, supplied: Mapping[str, str] | None = None) -> Entry:
    (entry,) = parse(text, supplied=supplied)
    return entry


def stdio(name: str = "a", **members: object) -> str:
    return json.dumps({"mcpServers": {name: {"command": "run", **members}}})


CLAUDE_CODE = {
    "numStartups": 7,
    "mcpServers": {"time": {"command": "time-mcp"}, "db": {"command": "db-mcp"}},
    "projects": {
        "/home/me/shop": {
            "history": [{"display": "x" * 1024}] * 2048,
            "mcpServers": {"db": {"command": "db-mcp", "args": ["shop"]}, "git": {"command": "git-mcp"}},
            "disabledMcpServers": ["git"],
        },
        "/work/shop": {"mcpServers": {"db": {"command": "db-mcp", "args": ["work"]}, "time": {"command": "time-mcp"}}},
        "/home/me/a": {"mcpServers": {"files": {"command": "files-mcp"}}},
        "/home/me/b": {"mcpServers": {"files": {"command": "files-mcp"}}},
        "/home/me/c": {"mcpServers": {}},
        "/home/me/d": None,
    },
}


# --- formats


def test_claude_code_has_servers_of_its_own_and_of_projects():
    found = {entry.name: entry for entry in parse(json.dumps(CLAUDE_CODE))}
    assert list(found) == ["time", "db", "db-shop", "db-work-shop", "git", "files"]
    assert all(entry.problems == () for entry in found.values())
    assert [found[name].members["args"] for name in ("db", "db-shop", "db-work-shop")] == [[], ["shop"], ["work"]]
    assert found["db-work-shop"].notes == ("named db-work-shop", "of the project /work/shop")
    assert found["db-work-shop"].source == "db"
    assert (found["git"].members["enabled"], found["git"].notes) == (
        False,
        ("disabled", "of the project /home/me/shop"),
    )
    assert found["files"].notes == ("of the projects /home/me/a, /home/me/b",)


def test_only_projects_may_have_servers():
    (entry,) = parse(json.dumps({"projects": {"/p": {"mcpServers": {"files": {"command": "files-mcp"}}}}}))
    assert (entry.name, entry.notes) == ("files", ("of the project /p",))
    assert parse(json.dumps({"projects": {"/p": {"mcpServers": {}}}})) == []


def test_what_takes_long_to_read_may_be_less_large():
    with pytest.raises(InvalidRequest, match="must be plain JSON"):
        parse("// for people\n" + json.dumps(CLAUDE_CODE))
    with pytest.raises(InvalidRequest, match="stands twice"):
        parse('{"mcpServers": {"a": {"command": "a"}, "a": {"command": "b"}}}')


@pytest.mark.parametrize(
    ("member", "value", "is_enabled", "notes"),
    [("disabled", "true", False, ()), ("disabled", "True ", False, ()), ("disabled", 1, False, ()),
     ("disabled", "on", False, ()), ("disabled", "false", True, ()), ("disabled", 0, True, ()),
     ("disabled", None, True, ()), ("enabled", "false", False, ()), ("enabled", "no", False, ()),
     ("enabled", 0, False, ()), ("enabled", "off", False, ()), ("enabled", "TRUE", True, ()), ("enabled", 1, True, ()),
     ("disabled", "perhaps", False, ("`disabled` is neither true nor false",)),
     ("disabled", [], False, ("`disabled` is neither true nor false",)),
     ("enabled", "", False, ("`enabled` is neither true nor false",))],
)  # fmt: skip
@pytest.mark.parametrize("kind", [{"command": "run"}, {"url": "https://far.example/mcp"}])
def test_what_is_switched_off_in_any_spelling_is_not_started(kind, member, value, is_enabled, notes):
    entry = one(json.dumps({"mcpServers": {"a": {**kind, member: value}}}))
    assert entry.members["enabled"] is is_enabled
    assert entry.notes == (notes if is_enabled else (*notes, "disabled"))


def test_claude_cursor_windsurf_and_cline():
    weather, files = parse(CLAUDE)
    assert weather.members == {
        "name": "weather-server",
        "command": "npx",
        "args": ["-y", "@acme/weather"],
        "env": {"UNITS": "metric"},
        "enabled": True,
    }
    assert weather.notes[0] == "named weather-server"
    assert (files.members["enabled"], files.notes[:2]) == (False, ("ignored: autoApprove", "disabled"))
    assert (weather.problems, files.problems) == ((), ())


def test_vscode_with_comments_and_trailing_commas():
    github, docs = parse(VSCODE)
    assert github.problems == ("needs token: give it with --env NAME=VALUE",)
    assert docs.problems == ()
    assert (docs.members["url"], docs.members["transport"]) == ("https://docs.example.com/mcp", "streamable-http")
    assert docs.command_line == "https://docs.example.com/mcp"
    github, _ = parse(VSCODE, supplied={"token": "s3cret"})
    assert (github.problems, github.members["env"]) == ((), {"GITHUB_TOKEN": "s3cret"})


@pytest.mark.parametrize("wrap", [lambda servers: servers, lambda servers: {"servers": servers}])
def test_opencode(wrap):
    document = json.loads(OPENCODE)
    document["mcp"] = wrap(document["mcp"])
    local, away = parse(json.dumps(document), supplied={"A_KEY": "k"})
    assert (local.members["command"], local.members["args"]) == ("bun", ["x", "mcp-l"])
    assert (local.members["env"], local.members["enabled"]) == ({"A": "k"}, False)
    assert away.members == {
        "name": "away", "url": "https://mcp.example.com", "transport": "auto", "headers": {}, "enabled": True,
    }  # fmt: skip


def test_codex_toml():
    docs, remote = parse(CODEX, is_toml=True)
    assert docs.name == "docs-search"
    assert docs.problems == ("needs DOCS_TOKEN: give it with --env NAME=VALUE",)
    assert docs.members["timeouts"] == {"initialize_s": 20}
    assert (remote.problems, remote.members["url"]) == ((), "https://mcp.example.com")
    docs, _ = parse(CODEX, is_toml=True, supplied={"DOCS_TOKEN": "k"})
    assert docs.members["env"] == {"DOCS_TOKEN": "k", "LANG": "de"}


@pytest.mark.parametrize(
    "wrap", [lambda it: it, lambda it: {"server": it, "_meta": {}}, lambda it: {"servers": [{"server": it}]}]
)
def test_a_server_json_becomes_a_command(wrap):
    entry = one(json.dumps(wrap(SERVER)), supplied={"WEATHER_KEY": "k"})
    assert entry.problems == ()
    assert entry.members == {
        "name": "weather-mcp",
        "command": "npx",
        "args": ["-y", "--silent", "@acme/weather@1.2.3", "serve", "--units=metric", "-r", "eu-1"],
        "env": {"WEATHER_KEY": "k", "LEVEL": "info"},
        "enabled": True,
    }
    assert one(json.dumps(wrap(SERVER))).problems == ("needs WEATHER_KEY: give it with --env NAME=VALUE",)


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        ({"registryType": "pypi", "identifier": "mcp-x", "version": "2.0"}, ["uvx", "mcp-x@2.0"]),
        ({"registryType": "pypi", "identifier": "mcp-x"}, ["uvx", "mcp-x"]),
        ({"registryType": "npm", "identifier": "x", "version": "1.0.0-rc.1"}, ["npx", "-y", "x@1.0.0-rc.1"]),
        ({"registryType": "oci", "identifier": "x"}, ["docker", "run", "-i", "--rm", "x"]),
        ({"registryType": "oci", "identifier": "-x"}, "is not the name of a package"),
        ({"registryType": "npm", "identifier": "https://evil.example/x.tgz"}, "is not the name of a package"),
        ({"registryType": "npm", "identifier": "--call=evil"}, "is not the name of a package"),
        ({"registryType": "npm", "identifier": "x", "version": "1 --call evil"}, "is not a version"),
        ({"registryType": "npm", "identifier": "x", "transport": {"type": "sse"}}, "its package x serves HTTP"),
    ],
)
def test_packages_of_the_registry(package, expected):
    entry = one(json.dumps({"name": "io.x/y", "packages": [package]}))
    if isinstance(expected, list):
        assert [entry.members["command"], *entry.members["args"]] == expected
        assert ("no version" in str(entry.notes)) is ("version" not in package and package["registryType"] != "oci")
    else:
        assert expected in entry.problems[0]


def test_a_variable_of_the_server_stays_in_its_arguments_where_it_would_be_shown():
    """mcp-remote puts it in itself. Filled in, a secret of `env` would be readable in `args`."""
    args, env = ["--header", "Authorization:${AUTH}", "${OTHER}"], {"AUTH": "Bearer s3cret"}
    assert one(stdio(args=args, env=env)).problems == ("needs OTHER: give it with --env NAME=VALUE",)
    for supplied in ({"OTHER": "x"}, {"OTHER": "x", "AUTH": "Bearer 0ther"}):
        found = one(stdio(args=args, env=env), supplied)
        assert found.problems == ()
        assert found.members["args"] == ["--header", "Authorization:${AUTH}", "x"]
        assert found.members["env"] == {"AUTH": supplied.get("AUTH", "Bearer s3cret")}
        assert found.notes[0].startswith("`args` keep ${AUTH}, which `env` has")


def test_tools_that_a_client_does_not_let_a_person_use_are_not_let_in():
    found = one(stdio(includeTools=["a", "b"], excludeTools=["b"]))
    assert (found.members["include"], found.members["exclude"], found.notes) == (["a", "b"], ["b"], ())
    assert one(stdio(disabledTools=["c"])).members["exclude"] == ["c"]
    assert one(stdio(enabled_tools=[])).members["exclude"] == ["*"]
    assert one(stdio(enabled_tools=[], disabled_tools=["c"], excludeTools=["d"])).members["exclude"] == ["*", "c", "d"]
    assert one(stdio(excludeTools="d", disabledTools=["c"])).members["exclude"] == ["c"]


def test_a_default_may_be_a_number():
    argument = {"type": "named", "name": "--port", "default": 8080, "isRequired": True}
    package = {"registryType": "npm", "identifier": "x", "version": "1", "packageArguments": [argument]}
    assert one(json.dumps({"name": "io.x/y", "packages": [package]})).members["args"][-1] == "--port=8080"


def test_a_server_with_remotes_only_is_reached_by_url():
    headers = [{"name": "Authorization", "value": "Bearer {token}", "variables": {"token": {"isRequired": True}}}]
    remote = {"type": "sse", "url": "https://mcp.example.com/sse", "headers": headers}
    document = json.dumps({"name": "io.x/y", "remotes": [{"type": "carrier-pigeon"}, remote]})
    assert one(document).problems == ("needs token: give it with --env NAME=VALUE",)
    found = one(document, supplied={"token": "s3cret"})
    assert found.problems == ()
    assert found.members["headers"] == {"Authorization": "Bearer s3cret"}
    assert (found.members["url"], found.members["transport"]) == ("https://mcp.example.com/sse", "sse")
    assert "neither a stdio package nor a remote" in one(json.dumps({"name": "io.x/y", "remotes": [{}]})).problems[0]


@pytest.mark.parametrize(
    ("members", "transport", "headers"),
    [
        ({"url": "https://x.example"}, "auto", {}),
        ({"serverUrl": "https://x.example", "headers": {"X-Key": "${KEY}"}}, "auto", {"X-Key": "k"}),
        ({"httpUrl": "https://x.example"}, "streamable-http", {}),
        ({"url": "https://x.example", "type": "sse"}, "sse", {}),
        ({"url": "https://x.example", "transport": "streamable_http"}, "streamable-http", {}),
        ({"url": "https://x.example", "bearer_token_env_var": "KEY"}, "auto", {"Authorization": "Bearer k"}),
        ({"url": "https://x.example", "env_http_headers": {"X-Key": "KEY"}, "http_headers": {"X": "y"}}, "auto",
         {"X-Key": "k", "X": "y"}),
    ],
)  # fmt: skip
def test_a_server_that_is_reached_by_url(members, transport, headers):
    found = one(json.dumps({"mcpServers": {"far": members}}), supplied={"KEY": "k"})
    assert (found.problems, found.notes) == ((), ())
    assert found.members["url"] == "https://x.example"
    assert (found.members["transport"], found.members["headers"]) == (transport, headers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[]", "must hold an object"),
        ("{}", "there are no servers"),
        ('{"mcpServers": []}', "there are no servers"),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "'a' stands twice"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_what_is_none_of_the_formats_is_refused(text, message):
    with pytest.raises(InvalidRequest, match=message):
        parse(text)


# --- entries


@pytest.mark.parametrize(
    ("value", "missing"),
    [
        ("${TOKEN}", "TOKEN"),
        ("Bearer ${env:TOKEN}", "TOKEN"),
        ("${input:token-id}", "token-id"),
        ("{env:TOKEN}", "TOKEN"),
        ("$TOKEN", "TOKEN"),
        ("${secret:TOKEN}", "TOKEN"),
        ("${workspaceFolder}/x", "workspaceFolder"),
        ("{file:/run/key}", "/run/key"),
    ],
)
def test_a_placeholder_is_never_stored(value, missing):
    for members in ({"env": {"A": value}}, {"args": [value]}, {"command": value}):
        entry = one(stdio(**members))
        assert entry.problems == (f"needs {missing}: give it with --env NAME=VALUE",)
        entry = one(stdio(**members), supplied={missing: "v1"})
        assert not entry.problems
        assert value not in str(entry.members)
        assert "v1" in str(entry.members)


def test_the_files_own_default_is_used_and_said():
    entry = one(stdio(args=["${LEVEL:-info}"]))
    assert (entry.members["args"], entry.notes) == (["info"], ("LEVEL has the default of the file",))


def test_a_placeholder_in_a_placeholder_is_refused():
    assert "has a placeholder that cannot be read" in one(stdio(args=["${A:-${B}}"]), supplied={"B": "b"}).problems


def test_a_dollar_in_the_middle_is_just_a_dollar():
    entry = one(stdio(args=["a$b", "$$", "{x}", "$ 5"]))
    assert (entry.problems, entry.members["args"]) == ((), ["a$b", "$$", "{x}", "$ 5"])


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD", "NODE_OPTIONS", "PYTHONPATH", "PATH", "npm_config_registry", "UV_INDEX", "ENV", "GIT_SSH_COMMAND",
        "GIT_CONFIG_COUNT", "GIT_EXTERNAL_DIFF", "GIT_EDITOR", "GIT_PROXY_COMMAND",
    ],
)  # fmt: skip
def test_a_variable_that_changes_what_is_loaded_must_be_confirmed(name):
    assert name in one(stdio(env={name: "x"})).problems[0]
    entry = one(stdio(env={name: "x"}), supplied={name: "y"})
    assert (entry.problems, entry.members["env"]) == ((), {name: "y"})


def test_who_commits_and_where_changes_nothing_that_is_loaded():
    env = {"GIT_BASE_DIR": "~/work", "GIT_USERNAME": "kim", "GIT_AUTHOR_EMAIL": "kim@x.example"}
    entry = one(stdio(env=env))
    assert (entry.problems, entry.members["env"]) == ((), {**env, "GIT_BASE_DIR": "${home}/work"})


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"envFile": ".env"}, "has an `envFile`, which is not read"),
        ({"command": ""}, "has no command"),
        ({"command": None}, "has no command"),
        ({"type": "streamableHttp"}, "has no URL"),
        ({"url": "https://x.example", "headers": ["x"]}, "`headers` is not an object"),
        ({"url": "https://x.example", "headers": {"X": "${NOWHERE}"}}, "needs NOWHERE"),
    ],
)
def test_what_cannot_be_imported_says_why(members, problem):
    assert problem in one(stdio(**members)).problems[0]


def test_a_value_with_one_reading_is_read():
    entry = one(stdio(args=["--port", 8080, True], env={"PORT": 8080, "RATIO": 0.5, "ON": True, "UNSET": None}))
    assert (entry.problems, entry.notes) == ((), ("UNSET is null, and left out",))
    assert entry.members["args"] == ["--port", "8080", "true"]
    assert entry.members["env"] == {"PORT": "8080", "RATIO": "0.5", "ON": "true"}
    assert one(stdio(env={"UNSET": None}), supplied={"UNSET": "x"}).members["env"] == {"UNSET": "x"}
    headers = {"X-Port": 8080, "Authorization": "Bearer ${KEY}\n", "X-None": None}
    far = {"url": " https://x.example/mcp ", "headers": headers}
    entry = one(json.dumps({"mcpServers": {"far": far}}), supplied={"KEY": "k "})
    assert (entry.problems, entry.notes) == ((), ("X-None is null, and left out",))
    assert entry.members["url"] == "https://x.example/mcp"
    assert entry.members["headers"] == {"X-Port": "8080", "Authorization": "Bearer k"}


def test_what_has_no_one_reading_stays_as_it_is_for_validation():
    for value in ([1], {"a": 1}, float("inf"), 1 << 20000):
        found = Values({}).text(value)
        assert found is value
    assert one(stdio(args=[None])).members["args"] == [None]


def test_headers_that_the_gateway_writes_are_left_out_and_it_is_said():
    headers = {"Content-Type": "application/json", "accept": "*/*", "MCP-Protocol-Version": "2025-06-18", "X-A": "b"}
    entry = validated(one(stdio(url="https://x.example", headers=headers)))
    assert entry.problems == ()
    assert body_of(entry).model_dump()["headers"] == {"X-A": "b"}
    assert entry.notes[-1] == "the gateway writes these headers itself: Content-Type, accept, MCP-Protocol-Version"
    assert validated(one(stdio(url="https://x.example", headers={"a b": "c"}))).problems


def test_the_user_s_home_of_vs_code():
    assert one(stdio(args=["${userHome}/x"])).problems == ("needs HOME: give it with --env NAME=VALUE",)
    assert one(stdio(args=["${userHome}/x"]), supplied={"HOME": "/h"}).members["args"] == ["/h/x"]
    assert one(stdio(env={"A": "${userHome}/x"})).members["env"] == {"A": "${home}/x"}


def test_a_working_directory_is_taken_over():
    entry = one(stdio(cwd="/srv/${PLACE}"), supplied={"PLACE": "a b"})
    assert (entry.problems, entry.notes, entry.members["cwd"]) == ((), (), "/srv/a b")
    assert entry.command_line == "run (in /srv/a b)"
    assert one(stdio(cwd="notes")).notes == ("`cwd` is below the process's home",)
    for nothing in ("", None):
        assert "cwd" not in one(stdio(cwd=nothing)).members
    assert "PLACE" in one(stdio(cwd="${PLACE}")).problems[0]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Weather", "weather"),
        ("my_server.v2", "my-server-v2"),
        ("@acme/x", "acme-x"),
        ("--a--", "a"),
        ("Müller", "muller"),
        ("x" * 80, "x" * 63),
        ("日本", ""),
    ],
)
def test_names_are_made_to_fit(text, name):
    assert normalised(text) == name


def test_a_name_of_which_nothing_is_left_is_a_problem():
    assert "name" in one(stdio("日本")).problems[0]


def names(document: object) -> list[tuple[str, str]]:
    return [(entry.source, entry.name) for entry in parse(json.dumps(document))]


def test_all_containers_of_a_file_are_read():
    run = {"command": "run"}
    document = {
        "mcp": {"allowed": ["a"], "timeout": 3, "in-mcp": run, "servers": {"in-vs-code": run, "a": run}},
        "server": {"port": 8080},
        "mcp_servers": {"in-codex": run, "text": "x"},
        "servers": {"a": run, "in-servers": run},
        "mcpServers": {"a": run},
        "projects": {"/p": {"mcpServers": {"a": run, "in-project": run, "none": None}}},
        **SERVER,
    }
    entries = parse(json.dumps(document), supplied={"WEATHER_KEY": "k"})
    found = {entry.name: entry.problems for entry in entries}
    ours = ["a", "in-codex", "text", "in-servers", "in-vs-code", "in-mcp", "weather-mcp", "in-project", "none"]
    assert list(found) == ours
    assert {name: problems for name, problems in found.items() if problems} == {
        "text": ("is not an object",), "none": ("is not an object",),
    }  # fmt: skip
    pages = {"servers": [{"server": SERVER}, {"server": SERVER}], "mcpServers": {"a": run}}
    assert names(pages) == [("a", "a"), (SERVER["name"], "weather-mcp")]
    assert names({"mcpServers": [{"name": "b", **run}], "servers": {"a": run}}) == [("b", "b"), ("a", "a")]
    (_, unread) = parse(json.dumps({"mcpServers": [{"name": "b"}], "servers": {"a": run}}))
    assert (unread.source, unread.problems) == ("mcpServers", ("is not an object",))


def test_servers_whose_names_become_the_same_are_told_apart():
    run, other = {"command": "run"}, {"command": "other"}
    servers = {"my server": run, "my-server": run, "My Server": None, "my-server-2": run, "日本": run, "中国": run}
    first, second, third, *_ = parse(json.dumps({"mcpServers": servers}))
    assert [first.name, second.name, third.name] == ["my-server", "my-server-3", "my-server-4"]
    assert (second.source, second.members["name"], second.notes) == (
        "my-server", "my-server-3", ("named my-server-3",),
    )  # fmt: skip
    assert third.problems == ("is not an object",)
    two = {
        "mcpServers": {"a": run, "b": {"command": "run", "args": [1]}},
        "servers": {"a": other, "b": {"args": [True]}},
    }
    assert names(two) == [("a", "a"), ("b", "b"), ("a", "a-2"), ("b", "b-2")]
    assert names({"servers": [SERVER, {**SERVER, "name": "io.other/Weather_MCP"}]}) == [
        (SERVER["name"], "weather-mcp"), ("io.other/Weather_MCP", "weather-mcp-2"),
    ]  # fmt: skip
    long = "x" * MAX_NAME
    (_, one_more) = names({"mcpServers": {long: run, long + "y": run}})
    assert one_more[1] == "x" * (MAX_NAME - 2) + "-2"
    projects = {"/p": {"mcpServers": {"x-2": run}}}
    found = names({"mcpServers": {"x": run, "X": run}, "projects": projects})
    assert found == [("x", "x"), ("X", "x-3"), ("x-2", "x-2")]


def test_what_exists_already_is_not_made_again():
    settled = settle([Entry("A", "a"), Entry("b", "b"), Entry("c", "c").refused("broken")], taken=["b"])
    assert [each.problems for each in settled] == [(), (EXISTS,), ("broken",)]
    assert not is_done(settled)
    assert is_done(settled[:2])


def test_the_report_shows_no_value_of_a_variable_and_nothing_unprintable():
    entries = parse(stdio(args=["\x1b[2J", "a b"], env={"TOKEN": "s3cret"}))
    text = report(entries, applied=False)
    assert text.startswith("would create")
    assert "'a b'" in text
    assert "\x1b" not in text
    (shown,) = json.loads(report_json(entries, applied=True))
    assert (shown["outcome"], shown["env"]) == ("created", ["TOKEN"])
    assert "s3cret" not in text + report_json(entries, applied=False)


@pytest.mark.parametrize("value", ["${}", "${env:}", "${:-x}"])
def test_a_placeholder_without_a_name_cannot_be_read(value: str) -> None:
    assert one(stdio(env={"A": value})).problems == ("has a placeholder that cannot be read",)


@pytest.mark.parametrize(
    ("text", "is_toml"),
    [
        ("[]", False),
        (' [ {"a": 1}]', False),
        ("[mcp_servers.a]", True),
        ("# a\nextensions:\n  b: {}", False),
        ('"a": {}', False),
        ("# a\nmodel = 'x'", True),
    ],
)
def test_a_list_is_not_taken_for_toml(text: str, is_toml: bool) -> None:
    assert looks_like_toml(text) is is_toml
