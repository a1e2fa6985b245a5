"""What to put into an MCP client so that it uses this gateway: one pure function per client, and one table of them.

Knows no settings and no database: the command line finds out where the gateway is.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from app.errors import InvalidRequest

DEFAULT_KEY_ENV = "GATEWAY_KEY"  # not TRUNKLINE_…: the gateway refuses variables of that prefix that it does not know
PASTE_HERE = "PASTE-THE-KEY-HERE"
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Target:
    """The backend as its client sees it. `key` is the key itself, where the user wants it written out."""

    name: str
    url: str
    key_env: str = DEFAULT_KEY_ENV
    key: str | None = None

    @property
    def literal_bearer(self) -> str:
        """For clients that read no environment."""
        return f"Bearer {self.key or PASTE_HERE}"


@dataclass(frozen=True, slots=True)
class Client:
    """One client: how its configuration is written, and what a person does with it.

    `key_in_text`: it reads no variable, so that the text holds the key or the place for it.
    """

    render: Callable[[Target], str]
    where: str
    key_in_text: bool = False


def local_url(host: str, port: int) -> str:
    """The address of a gateway that listens there, as a client on the same machine sees it.

    Raises:
        InvalidRequest: the port is chosen only when it starts.
    """
    if port == 0:
        raise InvalidRequest("the port is chosen at the start; give --url with the one it printed", field="url")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (this is what it is called when bound)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def endpoint(base: str, tenant: str, backend: str) -> str:
    """The URL of a backend's Streamable HTTP endpoint.

    Raises:
        InvalidRequest: `base` is not the address of a gateway.
    """
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in base:
        raise InvalidRequest(f"{base[:200]!r} is not an http or https URL like https://gw.example.com", field="url")
    if not base.isprintable() or " " in base:
        raise InvalidRequest("the URL has a space or a control character", field="url")
    return f"{base.rstrip('/')}/t/{tenant}/{backend}/mcp"


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, indent=2) + "\n"


def _bearer(placeholder: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {placeholder}"}


def _claude_code(target: Target) -> str:
    # The shell puts the key in; Claude Code keeps it in its own configuration.
    header = f'"Authorization: Bearer ${target.key_env}"'
    return f"claude mcp add --transport http {shlex.quote(target.name)} {shlex.quote(target.url)} --header {header}\n"


def _claude_desktop(target: Target) -> str:
    arguments = ["-y", "mcp-remote", target.url, "--header", "Authorization:${AUTH}"]  # a space there breaks on Windows
    parts = urlsplit(target.url)
    if parts.scheme == "http" and parts.hostname not in _LOCAL:
        arguments.append("--allow-http")
    entry = {"command": "npx", "args": arguments, "env": {"AUTH": target.literal_bearer}}
    return _json({"mcpServers": {target.name: entry}})


def _cursor(target: Target) -> str:
    entry = {"url": target.url, "headers": _bearer(f"${{env:{target.key_env}}}")}
    return _json({"mcpServers": {target.name: entry}})


def _vscode(target: Target) -> str:
    asked = f"{target.name}-key"
    question = {"type": "promptString", "id": asked, "description": f"API key for {target.name}", "password": True}
    entry = {"type": "http", "url": target.url, "headers": _bearer(f"${{input:{asked}}}")}
    return _json({"inputs": [question], "servers": {target.name: entry}})


def _windsurf(target: Target) -> str:
    entry = {"serverUrl": target.url, "headers": _bearer(f"${{env:{target.key_env}}}")}
    return _json({"mcpServers": {target.name: entry}})


def _cline(target: Target) -> str:
    headers = {"Authorization": target.literal_bearer}
    entry = {"type": "streamableHttp", "url": target.url, "headers": headers, "disabled": False, "autoApprove": []}
    return _json({"mcpServers": {target.name: entry}})


def _codex(target: Target) -> str:
    # JSON's strings are TOML's basic strings; a backend's name is a bare key, and never more than one.
    return (
        f"[mcp_servers.{target.name}]\n"
        f"url = {json.dumps(target.url)}\n"
        f"bearer_token_env_var = {json.dumps(target.key_env)}\n"
    )


def _openai_agents(target: Target) -> str:
    return f"""\
import asyncio
import os

from agents import Agent, Runner
from agents.mcp import MCPServerStreamableHttp

URL = {json.dumps(target.url)}
KEY = os.environ[{json.dumps(target.key_env)}]


async def main() -> None:
    async with MCPServerStreamableHttp(
        name={json.dumps(target.name)},
        params={{"url": URL, "headers": {{"Authorization": f"Bearer {{KEY}}"}}, "timeout": 60}},
        cache_tools_list=True,
    ) as server:
        agent = Agent(name="Assistant", instructions="Use the tools.", mcp_servers=[server])
        result = await Runner.run(agent, "What can your tools do?")
        print(result.final_output)


asyncio.run(main())
"""


def _langchain(target: Target) -> str:
    return f"""\
import asyncio
import os

from langchain_mcp_adapters.client import MultiServerMCPClient

URL = {json.dumps(target.url)}
KEY = os.environ[{json.dumps(target.key_env)}]


async def main() -> None:
    server = {{"transport": "http", "url": URL, "headers": {{"Authorization": f"Bearer {{KEY}}"}}}}
    client = MultiServerMCPClient({{{json.dumps(target.name)}: server}})
    for tool in await client.get_tools():
        print(tool.name)


asyncio.run(main())
"""


CLIENTS: Mapping[str, Client] = {
    "claude-code": Client(
        _claude_code,
        "Run this in a shell that has the key in {key_env}. With `--scope user` it counts in every project.",
    ),
    "claude-desktop": Client(
        _claude_desktop,
        "Goes into claude_desktop_config.json (Settings, Developer, Edit Config); merge it with what "
        "is there, then restart Claude. Needs Node, for mcp-remote.",
        key_in_text=True,
    ),
    "cursor": Client(
        _cursor, "Goes into ~/.cursor/mcp.json, or .cursor/mcp.json of a project. Cursor reads the key from {key_env}."
    ),
    "vscode": Client(_vscode, "Goes into .vscode/mcp.json. VS Code asks for the key once and keeps it."),
    "windsurf": Client(
        _windsurf, "Goes into ~/.codeium/windsurf/mcp_config.json. Windsurf reads the key from {key_env}."
    ),
    "cline": Client(
        _cline,
        "Goes into Cline's settings (MCP Servers, Configure) or ~/.cline/mcp.json.",
        key_in_text=True,
    ),
    "codex": Client(_codex, "Goes into ~/.codex/config.toml. Codex reads the key from {key_env}."),
    "openai-agents": Client(
        _openai_agents, "A Python program (pip install openai-agents). It reads the key from {key_env}."
    ),
    "langchain": Client(
        _langchain, "A Python program (pip install langchain-mcp-adapters). It reads the key from {key_env}."
    ),
}


def instructions(client: Client, target: Target) -> str:
    """What a person does with the text, in a line or two."""
    lines = [client.where.format(key_env=target.key_env)]
    if client.key_in_text and target.key:
        lines.append("It contains the key: keep the file to yourself.")
    elif client.key_in_text:
        lines.append(f"Put the key in the place of {PASTE_HERE}; with --key-env NAME it is taken from the environment.")
    return "\n".join(lines)
