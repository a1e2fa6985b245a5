"""Whole files as their programs have them: Codex' config.toml, and server.json of the MCP registry."""

import json

import pytest

from app.admin.importing import parse
from app.admin.schemas.imports import body_of, validated
from app.errors import InvalidRequest

CODEX = """
# ~/.codex/config.toml of somebody who has used it for a while
model = "gpt-9-codex"
approval_policy = "on-request"
sandbox_mode = "workspace-write"

[tui]
notifications = true

[projects."/home/kim/shop"]
trust_level = "trusted"

[mcp_servers.issues]
command = "npx"
args = ["-y", "issues-mcp@2.1.0", "--read-only"]
startup_timeout_sec = 45
tool_timeout_sec = 120.5
enabled_tools = ["search", "get_*"]
disabled_tools = ["get_secret"]
env_vars = ["ISSUES_TOKEN", { name = "ISSUES_HOST", source = "local" }]

[mcp_servers.issues.env]
LOG_LEVEL = "warn"

[mcp_servers."Design Files"]
url = "https://design.example/mcp"
bearer_token_env_var = "DESIGN_TOKEN"
http_headers = { "X-Region" = "eu" }
env_http_headers = { "X-Team" = "TEAM" }
enabled = false

[mcp_servers.old]
command = "uvx"
args = ["old-mcp"]
startup_timeout_ms = 20000
"""

SERVER = {
    "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
    "name": "com.example/tickets",
    "title": "Tickets",
    "description": "Read and write tickets",
    "version": "3.4.1",
    "websiteUrl": "https://tickets.example",
    "repository": {"url": "https://code.example/tickets", "source": "github", "subfolder": "mcp"},
    "packages": [
        {
            "registryType": "pypi",
            "identifier": "tickets-mcp",
            "version": "3.4.1",
            "runtimeHint": "uvx",
            "transport": {"type": "stdio"},
            "packageArguments": [{"type": "named", "name": "--project", "isRequired": True, "format": "string"}],
            "environmentVariables": [
                {"name": "TICKETS_TOKEN", "description": "A token", "isRequired": True, "isSecret": True},
                {"name": "TICKETS_URL", "default": "https://tickets.example", "format": "string"},
                {"name": "TICKETS_PROXY", "isRequired": False},
            ],
        }
    ],
    "remotes": [
        {"type": "sse", "url": "https://tickets.example/sse"},
        {
            "type": "streamable-http",
            "url": "https://{site}.tickets.example/mcp",
            "variables": {"site": {"description": "Your site", "isRequired": True}},
            "headers": [
                {
                    "name": "Authorization",
                    "value": "Bearer {token}",
                    "variables": {"token": {"isRequired": True, "isSecret": True}},
                },
                {"name": "X-Trace", "isRequired": False},
            ],
        },
    ],
    "_meta": {"io.modelcontextprotocol.registry/publisher-provided": {"tool": "publisher-cli"}},
}  # fmt: skip


def test_a_config_toml_of_codex():
    values = {"ISSUES_TOKEN": "t", "ISSUES_HOST": "h", "DESIGN_TOKEN": "d", "TEAM": "blue"}
    issues, design, old = parse(CODEX, is_toml=True, supplied=values)
    assert (issues.problems, design.problems, old.problems) == ((), (), ())
    assert issues.members == {
        "name": "issues",
        "command": "npx",
        "args": ["-y", "issues-mcp@2.1.0", "--read-only"],
        "env": {"ISSUES_TOKEN": "t", "ISSUES_HOST": "h", "LOG_LEVEL": "warn"},
        "enabled": True,
        "timeouts": {"initialize_s": 45, "call_s": 120.5},
        "include": ["search", "get_*"],
        "exclude": ["get_secret"],
    }
    assert design.members == {
        "name": "design-files",
        "url": "https://design.example/mcp",
        "transport": "auto",
        "headers": {"X-Region": "eu", "X-Team": "blue", "Authorization": "Bearer d"},
        "enabled": False,
    }
    assert old.members["timeouts"] == {"initialize_s": 20.0}
    assert [body_of(each).value().timeouts.initialize_s for each in (issues, old)] == [45, 20]
    assert not any("ignored" in note for each in (issues, design, old) for note in each.notes)


def test_what_codex_reads_from_its_environment_must_be_given():
    issues, design, _ = parse(CODEX, is_toml=True)
    assert issues.problems == ("needs ISSUES_TOKEN, ISSUES_HOST: give it with --env NAME=VALUE",)
    assert design.problems == ("needs TEAM, DESIGN_TOKEN: give it with --env NAME=VALUE",)


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        ('startup_timeout_sec = "long"', "timeouts.initialize_s: Input should be a valid number"),
        ("tool_timeout_sec = -1", "timeouts.call_s: Input should be greater than 0"),
        ('enabled_tools = "search"', "include: Input should be a valid list"),
        ("args = { a = 1 }", "args: Input should be a valid list"),
    ],
)
def test_a_member_of_the_wrong_type_is_named(member, problem):
    (entry,) = parse(f'[mcp_servers.a]\ncommand = "x"\n{member}', is_toml=True)
    assert validated(entry).problems == (problem,)


def test_of_several_versions_of_a_server_the_first_is_imported():
    versions = [{"server": {**SERVER, "version": version}} for version in ("3.4.1", "3.4.0")]
    first, second = parse(json.dumps({"servers": versions}), supplied={"--project": "shop", "TICKETS_TOKEN": "t"})
    assert (first.name, first.problems) == ("tickets", ())
    assert second.problems == ("is another version of a server of this file",)


def test_a_server_json_is_a_command_with_what_has_to_be_given():
    (entry,) = parse(json.dumps(SERVER))
    assert entry.problems == ("needs --project, TICKETS_TOKEN: give it with --env=NAME=VALUE",)
    (entry,) = parse(json.dumps(SERVER), supplied={"--project": "shop", "TICKETS_TOKEN": "t"})
    assert validated(entry).problems == ()
    assert entry.members == {
        "name": "tickets",
        "command": "uvx",
        "args": ["tickets-mcp@3.4.1", "--project=shop"],
        "env": {"TICKETS_TOKEN": "t", "TICKETS_URL": "https://tickets.example"},
        "enabled": True,
    }


@pytest.mark.parametrize("packages", [[], [{"registryType": "oci", "identifier": "x", "transport": {"type": "stdio"}}]])
def test_a_server_json_without_a_package_for_here_is_reached_by_its_remote(packages):
    document = json.dumps({**SERVER, "packages": packages})
    (entry,) = parse(document)
    assert entry.problems == ("needs token, site: give it with --env NAME=VALUE",)
    (entry,) = parse(document, supplied={"token": "s3cret", "site": "acme"})
    assert validated(entry).problems == ()
    assert entry.members == {
        "name": "tickets",
        "url": "https://acme.tickets.example/mcp",
        "transport": "streamable-http",
        "headers": {"Authorization": "Bearer s3cret"},
        "enabled": True,
    }


def test_a_page_of_the_registry_and_one_of_its_answers():
    answer = {"server": SERVER, "_meta": {"io.modelcontextprotocol.registry/official": {"status": "active"}}}
    page = {"servers": [answer, {"server": {**SERVER, "name": "com.example/other"}}], "metadata": {"count": 2}}
    values = {"--project": "shop", "TICKETS_TOKEN": "t"}
    assert [each.name for each in parse(json.dumps(page), supplied=values)] == ["tickets", "other"]
    assert [each.name for each in parse(json.dumps(answer), supplied=values)] == ["tickets"]


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ({"packages": [{"registry_type": "npm", "identifier": "x"}]}, "older form of server.json (`registry_type`)"),
        ({"packages": [{"registry_name": "npm", "name": "x"}]}, "older form of server.json (`registry_name`)"),
        ({"remotes": [{"transport_type": "sse", "url": "https://x"}]}, "older form of server.json (`transport_type`)"),
        (
            {"remotes": [{"type": "sse", "url": "https://{site}.example"}]},
            "a variable in its URL that it does not describe",
        ),
        ({"remotes": [{"type": "websocket", "url": "wss://x"}]}, "neither a stdio package nor a remote"),
        (
            {"packages": [{"registryType": "mcpb", "identifier": "https://x.example/x.mcpb", "fileSha256": "0" * 64}]},
            "is a bundle, https://x.example/x.mcpb: unpack it on each node, and import its manifest.json",
        ),
        (
            {"packages": [{"registryType": "nuget", "identifier": "A.B", "version": "1.0.0"}]},
            "(`dotnet tool install --global A.B`), and register the program that it brings as `command`",
        ),
        ({"packages": [{"registryType": "cargo", "identifier": "a-b"}]}, "(`cargo install a-b`)"),
        ({"packages": [{"registryType": "x\n", "identifier": "a"}]}, "is packaged as x\\n: install it on each node"),
        (
            {"packages": [{"registryType": "npm", "identifier": "a", "transport": {"type": "streamable-http"}}]},
            "its package a serves HTTP: start it yourself, and register its address as `url`",
        ),
        (
            {
                "remotes": [
                    {
                        "type": "sse",
                        "url": "https://{site}.example",
                        "variables": {"site": {"default": "x", "choices": ["a", "b"]}},
                    }
                ]
            },
            "site must be one of a, b",
        ),
        (
            {
                "packages": [{"registryType": "npm", "identifier": "x"}],
                "_meta": {"io.modelcontextprotocol.registry/official": {"status": "deleted"}},
            },
            "was withdrawn by its publisher",
        ),
    ],
)
def test_what_cannot_be_imported_says_why(server, problem):
    (entry,) = parse(json.dumps({"name": "io.x/y", "version": "1", **server}))
    assert problem in entry.problems[0]


@pytest.mark.parametrize(
    ("text", "is_toml", "message"),
    [
        ('[mcp_server.a]\ncommand = "x"', True, "is `mcp_servers` meant"),
        ('model = "gpt"', True, "there are no servers"),
        ("[mcp_servers.a\n", True, "is not TOML: .*line 1"),
        ('[mcp_servers.a]\ncommand = "x"\n[mcp_servers.a]\n', True, "is not TOML: .*line 3"),
        ('{"name": "io.x/y", "version": "1"}', False, "neither `packages` nor `remotes`"),
        ('[mcp_servers.a]\ncommand = "x"', False, "is not JSON"),
        ('{"servers": 3}', False, "there are no servers"),
    ],
)
def test_other_files_are_refused_in_clear_words(text, is_toml, message):
    with pytest.raises(InvalidRequest, match=message):
        parse(text, is_toml=is_toml)


@pytest.mark.parametrize(
    ("value", "imported"),
    [
        ("~/memory.json", "${home}/memory.json"),
        ("$HOME/memory.json", "${home}/memory.json"),
        ("${HOME}/memory.json", "${home}/memory.json"),
        ("${env:HOME}", "${home}"),
        ("{env:HOME}/x", "${home}/x"),
        ("${home}/${NAME:-x}", "${home}/x"),
    ],
)
def test_a_variable_that_names_the_user_s_home_names_that_of_the_process_and_it_is_said(value, imported):
    text = json.dumps({"mcpServers": {"memory": {"command": "m", "env": {"FILE": value}}}})
    (entry,) = parse(text, is_toml=False, supplied={})
    assert (entry.members["env"], entry.problems) == ({"FILE": imported}, ())
    assert any("state: keep" in note for note in entry.notes)


@pytest.mark.parametrize("value", ["a~b", "x/~/y", "$HOMEPAGE/x", "plain"])
def test_what_only_looks_like_a_home_is_left_alone(value):
    text = json.dumps({"mcpServers": {"memory": {"command": "m", "env": {"FILE": value}}}})
    (entry,) = parse(text, is_toml=False, supplied={})
    assert (entry.members["env"], entry.notes) == ({"FILE": value}, ())
    text = json.dumps({"mcpServers": {"memory": {"command": "m", "env": {"FILE": "$HOME/x"}}}})
    (entry,) = parse(text, is_toml=False, supplied={"HOME": "/srv/kim"})
    assert entry.members["env"]["FILE"] in ("/srv/kim/x", "$HOME/x")


@pytest.mark.parametrize("text", ["\n" * 100_000 + "!", "#\n" * 50_000 + "!", " \t\r\n" * 30_000 + "a" * 100_000 + "!"])
def test_a_text_that_is_nothing_is_refused_at_once(text):
    """Which is it takes one look: 40 empty lines once took a look for each of their subsets."""
    with pytest.raises(InvalidRequest, match="is not JSON"):
        parse(text)


OCI = {
    "registryType": "oci",
    "identifier": "ghcr.example/acme/tickets:3.4.1",
    "runtimeHint": "docker",
    "transport": {"type": "stdio"},
    "runtimeArguments": [
        {"type": "positional", "value": "run"},
        {"type": "named", "name": "-i"},
        {
            "type": "named",
            "name": "--mount",
            "value": "type=bind,src={from},dst=/tickets",
            "isRepeated": True,
            "variables": {"from": {"format": "filepath", "isRequired": True}},
        },
    ],
    "packageArguments": [{"type": "positional", "value": "serve"}],
    "environmentVariables": [{"name": "TICKETS_TOKEN", "isRequired": True, "isSecret": True}, {"name": "X"}],
}


def test_an_image_of_the_registry_is_a_line_of_docker_which_names_its_variables_only():
    document = json.dumps({"name": "com.example/tickets", "packages": [OCI]})
    (entry,) = parse(document, supplied={"from": "/srv/tickets", "TICKETS_TOKEN": "s3cret"})
    mount = "--mount=type=bind,src=/srv/tickets,dst=/tickets"
    args = ["run", "-i", "--rm", mount, "-e", "TICKETS_TOKEN", "ghcr.example/acme/tickets:3.4.1", "serve"]
    assert (entry.problems, entry.members["command"], entry.members["args"]) == ((), "docker", args)
    assert entry.members["env"] == {"TICKETS_TOKEN": "s3cret"}
    older = {"registryType": "oci", "registryBaseUrl": "https://r.example", "identifier": "a/b", "version": "1.0"}
    (entry,) = parse(json.dumps({"name": "x/y", "packages": [older]}))
    assert entry.members["args"] == ["run", "-i", "--rm", "r.example/a/b:1.0"]


def test_every_package_is_looked_at_until_one_can_be_taken():
    broken, nuget = {"registryType": "npm", "identifier": "a b"}, {"registryType": "nuget", "identifier": "A"}
    found = {
        "npm": [nuget, OCI, broken, {"registryType": "npm", "identifier": "x", "version": "1"}],
        "pypi": [broken, {"registryType": "pypi", "identifier": "x", "version": "1"}],
        "oci": [broken, nuget, OCI],
    }
    commands = {}
    for kind, packages in found.items():
        (entry,) = parse(json.dumps({"name": "x/y", "packages": packages}))
        commands[kind] = entry.members["command"]
    assert commands == {"npm": "npx", "pypi": "uvx", "oci": "docker"}
    (entry,) = parse(json.dumps({"name": "x/y", "packages": [broken, nuget]}))
    assert len(entry.problems) == 2


def test_an_argument_may_be_given_several_times_and_one_of_a_choice_only_as_that():
    repeated = {"type": "positional", "valueHint": "folder", "isRepeated": True, "isRequired": True}
    choice = {"type": "named", "name": "--mode", "choices": ["read", "write"], "default": "read"}
    package = {"registryType": "npm", "identifier": "x", "version": "1", "packageArguments": [repeated, choice]}
    document = json.dumps({"name": "x/y", "packages": [package]})
    (entry,) = parse(document, supplied={"folder": "/a\n/b c"})
    assert entry.members["args"] == ["-y", "x@1", "/a", "/b c", "--mode=read"]
    assert "folder may be given several times: one value in each line" in entry.notes
    (entry,) = parse(document, supplied={"folder": "/a", "--mode": "all"})
    assert entry.problems == ("--mode must be one of read, write",)


def test_of_several_versions_the_one_that_the_registry_calls_the_latest_is_imported():
    official = "io.modelcontextprotocol.registry/official"
    package = {"registryType": "npm", "identifier": "x"}
    page = {
        "servers": [
            {
                "server": {"name": "x/y", "packages": [{**package, "version": version}]},
                "_meta": {official: {"status": "deprecated", "isLatest": version == "1.1.0"}},
            }
            for version in ("1.0.0", "1.1.0", "0.9.0")
        ]
    }
    first, second, third = parse(json.dumps(page))
    other = ("is another version of a server of this file",)
    assert (first.problems, second.problems, third.problems) == (other, (), other)
    assert "its publisher calls it deprecated" in second.notes


def test_an_address_may_begin_with_a_variable():
    remote = {"type": "streamable-http", "url": "{base}/mcp", "variables": {"base": {"isRequired": True}}}
    (entry,) = parse(json.dumps({"name": "x/y", "remotes": [remote]}), supplied={"base": "https://x.example"})
    assert (entry.problems, entry.members["url"]) == ((), "https://x.example/mcp")
