"""The configuration that makes an MCP client use this gateway: one pure function per client, and one table of them.

Reads no settings and no database: the command line finds out where the gateway is.
"""

import base64
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from app.admin.client_config._merging import PASTE_HERE, Merged, merged_json, merged_toml
from app.errors import InvalidRequest

DEFAULT_KEY_ENV = "GATEWAY_KEY"  # not TRUNKLINE_…: the gateway refuses unknown variables with that prefix
SIGNS_IN = "It opens a browser, where you sign in, and needs no key."
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Target:
    """A backend as the client sees it. `key` is the API key, if it is to be written into the configuration; with
    `signs_in` there is none, as the client opens a browser where its person signs in."""

    name: str
    url: str
    key_env: str = DEFAULT_KEY_ENV
    key: str | None = None
    signs_in: bool = False

    @property
    def literal_bearer(self) -> str:
        """For clients that cannot read the key from the environment."""
        return f"Bearer {self.key or PASTE_HERE}"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The file in which a client lists its servers. `document` is merged with what is in the file. Of several `paths`
    the existing one is used. A path may begin with `~`; a relative one is in a project, where others can read it."""

    paths: Callable[[Mapping[str, str], str], Sequence[str]]
    document: Callable[[Target], Mapping[str, Any]]
    is_toml: bool = False

    def merged(self, text: str, targets: Sequence[Target]) -> Merged:
        """The text of the file with these backends.

        Raises:
            InvalidRequest: the text cannot be changed safely.
        """
        merge = merged_toml if self.is_toml else merged_json
        return merge(text, [self.document(target) for target in targets])


@dataclass(frozen=True, slots=True)
class Client:
    """One client, with instructions: `where` the text goes, and how the client gets the `key`.

    `key_in_text`: it cannot read a variable, so the text contains the key or a placeholder. `program` writes the text
    if it is not the content of the file. `writing`: what the command line's `--write` does instead.
    """

    title: str
    where: str
    key: str = ""
    file: ConfigFile | None = None
    program: Callable[[Sequence[Target]], str] | None = None
    key_in_text: bool = False
    writing: str = "--write merges it with what is there."

    @property
    def is_program(self) -> bool:
        """Whether it is written by somebody, who has to give it a key."""
        return self.file is None

    def render(self, targets: Sequence[Target]) -> str:
        """The text for these backends: a command, a program, or the content of a new file."""
        if self.program is not None:
            return self.program(targets)
        assert self.file is not None
        return self.file.merged("", targets).text


def local_url(host: str, port: int, *, is_tls: bool = False) -> str:
    """The URL of a gateway that listens there, for clients on the same machine.

    Raises:
        InvalidRequest: the port is 0.
    """
    if port == 0:
        raise InvalidRequest("the port is chosen at start-up; give --url with the one that was printed", field="url")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (not bound here)
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{shown}:{port}"


def endpoint(base: str, tenant: str, backend: str) -> str:
    """The URL of a backend's Streamable HTTP endpoint.

    Raises:
        InvalidRequest: `base` is not the URL of a gateway.
    """
    try:
        parts = urlsplit(base)
        _ = parts.port
    except ValueError:  # a bracket that is not closed; or a port over 65535, of which connections take the remainder
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in base:
        raise InvalidRequest(f"{base[:200]!r} is not an http or https URL like https://gw.example.com", field="url")
    if not base.isprintable() or " " in base:
        raise InvalidRequest("the URL contains a space or a control character", field="url")
    return f"{base.rstrip('/')}/t/{tenant}/{backend}/mcp"


def _with_key(target: Target, entry: dict[str, Any], placeholder: str) -> dict[str, Any]:
    """The entry with a header for the key, unless the client signs in."""
    return entry if target.signs_in else {**entry, "headers": {"Authorization": f"Bearer {placeholder}"}}


def _claude_code(targets: Sequence[Target]) -> str:
    # The shell inserts the key; Claude Code stores it in its own configuration.
    return "".join(
        f"claude mcp add --transport http {shlex.quote(target.name)} {shlex.quote(target.url)}"
        + ("" if target.signs_in else f' --header "Authorization: Bearer ${target.key_env}"')
        + "\n"
        for target in targets
    )


def _claude_code_project(target: Target) -> dict[str, Any]:
    entry = _with_key(target, {"type": "http", "url": target.url}, f"${{{target.key_env}}}")
    return {"mcpServers": {target.name: entry}}


def _claude_desktop(target: Target) -> dict[str, Any]:
    arguments = ["-y", "mcp-remote", target.url]
    if not target.signs_in:
        arguments += ["--header", "Authorization:${AUTH}"]  # a space there breaks on Windows
    parts = urlsplit(target.url)
    if parts.scheme == "http" and parts.hostname not in _LOCAL:
        arguments.append("--allow-http")
    entry: dict[str, Any] = {"command": "npx", "args": arguments}
    if not target.signs_in:
        entry["env"] = {"AUTH": target.literal_bearer}
    return {"mcpServers": {target.name: entry}}


def _cursor(target: Target) -> dict[str, Any]:
    entry = _with_key(target, {"url": target.url}, f"${{env:{target.key_env}}}")
    return {"mcpServers": {target.name: entry}}


def _vscode(target: Target) -> dict[str, Any]:
    asked = f"{target.name}-key"
    entry = _with_key(target, {"type": "http", "url": target.url}, f"${{input:{asked}}}")
    if target.signs_in:
        return {"servers": {target.name: entry}}
    question = {"type": "promptString", "id": asked, "description": f"API key for {target.name}", "password": True}
    return {"inputs": [question], "servers": {target.name: entry}}


def _windsurf(target: Target) -> dict[str, Any]:
    entry = _with_key(target, {"serverUrl": target.url}, f"${{env:{target.key_env}}}")
    return {"mcpServers": {target.name: entry}}


def _cline(target: Target) -> dict[str, Any]:
    entry = _with_key(target, {"type": "streamableHttp", "url": target.url}, target.key or PASTE_HERE)
    entry |= {"disabled": False, "autoApprove": []}
    return {"mcpServers": {target.name: entry}}


def _codex(target: Target) -> dict[str, Any]:
    entry = {"url": target.url} if target.signs_in else {"url": target.url, "bearer_token_env_var": target.key_env}
    return {"mcp_servers": {target.name: entry}}


def _openai_agents(targets: Sequence[Target]) -> str:
    return f"""\
import asyncio
import os
from contextlib import AsyncExitStack

from agents import Agent, Runner
from agents.mcp import MCPServerStreamableHttp

SERVERS = {_python_dict(targets)}
KEY = os.environ[{json.dumps(targets[0].key_env)}]


def server(name: str, url: str) -> MCPServerStreamableHttp:
    return MCPServerStreamableHttp(
        name=name,
        params={{"url": url, "headers": {{"Authorization": f"Bearer {{KEY}}"}}, "timeout": 60}},
        cache_tools_list=True,
    )


async def main() -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(server(*each)) for each in SERVERS.items()]
        agent = Agent(name="Assistant", instructions="Use the tools.", mcp_servers=servers)
        result = await Runner.run(agent, "What can your tools do?")
        print(result.final_output)


asyncio.run(main())
"""


def _langchain(targets: Sequence[Target]) -> str:
    return f"""\
import asyncio
import os

from langchain_mcp_adapters.client import MultiServerMCPClient

SERVERS = {_python_dict(targets)}
KEY = os.environ[{json.dumps(targets[0].key_env)}]


async def main() -> None:
    headers = {{"Authorization": f"Bearer {{KEY}}"}}
    client = MultiServerMCPClient(
        {{name: {{"transport": "http", "url": url, "headers": headers}} for name, url in SERVERS.items()}}
    )
    for tool in await client.get_tools():
        print(tool.name)


asyncio.run(main())
"""


def _python_dict(targets: Sequence[Target]) -> str:
    return json.dumps({target.name: target.url for target in targets}, indent=4)


def _at(path: str) -> Callable[[Mapping[str, str], str], Sequence[str]]:
    return lambda environ, platform: [path]


def _settings_of_programs(environ: Mapping[str, str], platform: str) -> str:
    return "~/Library/Application Support" if platform == "darwin" else environ.get("XDG_CONFIG_HOME") or "~/.config"


def _claude_desktop_paths(environ: Mapping[str, str], platform: str) -> Sequence[str]:
    return [f"{_settings_of_programs(environ, platform)}/Claude/claude_desktop_config.json"]


def _cline_paths(environ: Mapping[str, str], platform: str) -> Sequence[str]:
    """The file of the VS Code extension, and that of the command line."""
    if named := environ.get("CLINE_MCP_SETTINGS_PATH"):
        return [named]
    extension = f"{_settings_of_programs(environ, platform)}/Code/User/globalStorage/saoudrizwan.claude-dev"
    command_line = f"{environ.get('CLINE_DIR') or '~/.cline'}/data"
    return [f"{each}/settings/cline_mcp_settings.json" for each in (extension, command_line)]


def _codex_paths(environ: Mapping[str, str], platform: str) -> Sequence[str]:
    return [f"{environ.get('CODEX_HOME') or '~/.codex'}/config.toml"]


CLIENTS: Mapping[str, Client] = {
    "claude-code": Client(
        "Claude Code",
        "Run this in a shell that has the key in {key_env}. With `--scope user` it applies to all projects.",
        "Claude Code reads the key from {key_env}.",
        ConfigFile(_at(".mcp.json"), _claude_code_project),
        program=_claude_code,
        writing="--write puts it into .mcp.json of this project instead.",
    ),
    "claude-desktop": Client(
        "Claude Desktop",
        "Goes into claude_desktop_config.json (Settings, Developer, Edit Config).",
        "Restart Claude. Needs Node, for mcp-remote.",
        ConfigFile(_claude_desktop_paths, _claude_desktop),
        key_in_text=True,
    ),
    "cursor": Client(
        "Cursor",
        "Goes into ~/.cursor/mcp.json, or .cursor/mcp.json of a project.",
        "Cursor reads the key from {key_env}.",
        ConfigFile(_at("~/.cursor/mcp.json"), _cursor),
    ),
    "vscode": Client(
        "VS Code",
        "Goes into .vscode/mcp.json.",
        "VS Code asks for the key once and keeps it.",
        ConfigFile(_at(".vscode/mcp.json"), _vscode),
    ),
    "windsurf": Client(
        "Windsurf",
        "Goes into ~/.codeium/windsurf/mcp_config.json.",
        "Windsurf reads the key from {key_env}.",
        ConfigFile(_at("~/.codeium/windsurf/mcp_config.json"), _windsurf),
    ),
    "cline": Client(
        "Cline",
        "Goes into cline_mcp_settings.json (MCP Servers, Configure).",
        "",
        ConfigFile(_cline_paths, _cline),
        key_in_text=True,
    ),
    "codex": Client(
        "Codex",
        "Goes into ~/.codex/config.toml.",
        "Codex reads the key from {key_env}.",
        ConfigFile(_codex_paths, _codex, is_toml=True),
    ),
    "openai-agents": Client(
        "OpenAI Agents SDK",
        "A Python program (pip install openai-agents).",
        "It reads the key from {key_env}.",
        program=_openai_agents,
        writing="",
    ),
    "langchain": Client(
        "LangChain",
        "A Python program (pip install langchain-mcp-adapters).",
        "It reads the key from {key_env}.",
        program=_langchain,
        writing="",
    ),
}


def install_links(target: Target) -> Mapping[str, str]:
    """Links that make a client add this backend, by the client's title. They contain no key: Cursor reads it from its
    environment, VS Code asks for it."""
    cursor = _cursor(target)["mcpServers"][target.name]
    config = base64.b64encode(json.dumps(cursor).encode()).decode()
    asked = _vscode(target)
    vscode = {"name": target.name, **asked["servers"][target.name], "inputs": asked.get("inputs", [])}
    query = urlencode({"name": target.name, "config": config})
    return {
        "Cursor": f"cursor://anysphere.cursor-deeplink/mcp/install?{query}",
        "VS Code": "vscode:mcp/install?" + quote(json.dumps(vscode), safe=""),
    }


def instructions(client: Client, target: Target, *, is_written: bool = False, needs_key: bool = True) -> str:
    """What to do with the text, in a line or two; or what to do next if it is in the file already."""
    signs_in = target.signs_in and not client.is_program
    key = SIGNS_IN if signs_in else client.key.format(key_env=target.key_env)
    where = client.where.format(key_env=target.key_env)
    if signs_in:
        where = where.replace(f" in a shell that has the key in {target.key_env}", "")
    lines = [key] if is_written else [" ".join(filter(None, (where, client.writing, key)))]
    if signs_in:
        return "\n".join(lines)
    if client.key_in_text and target.key:
        lines.append("It contains the key: keep the file private.")
    elif client.key_in_text and needs_key:
        lines.append(f"Replace {PASTE_HERE} by the key; with --key-env NAME it is taken from the environment.")
    return "\n".join(filter(None, lines))
