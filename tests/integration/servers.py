"""Command lines of the real stdio servers that tests put behind the gateway, and how to speak to them."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from tests.integration.gateway import ROOT, Endpoint

NPM = ROOT / "tests/npm/node_modules/@modelcontextprotocol"
EVERYTHING = ["node", str(NPM / "server-everything/dist/index.js"), "stdio"]
FILESYSTEM = ["node", str(NPM / "server-filesystem/dist/index.js")]
MEMORY = ["node", str(NPM / "server-memory/dist/index.js")]
POSTGRES = ["node", str(NPM / "server-postgres/dist/index.js")]
TIME = [sys.executable, "-m", "mcp_server_time", "--local-timezone", "Europe/Paris"]
GIT = [sys.executable, "-m", "mcp_server_git"]

Transport = Literal["streamable", "sse"]
TRANSPORTS: tuple[Transport, ...] = ("streamable", "sse")


def git_server(repository: Path) -> list[str]:
    return [*GIT, "--repository", str(repository)]


@asynccontextmanager
async def python_client(
    endpoint: Endpoint, transport: Transport, *, mode: Any = "legacy", **callbacks: Any
) -> AsyncIterator[Client]:
    """The official Python client, connected over this transport."""
    if transport == "sse":
        async with Client(sse_client(endpoint.sse, headers=endpoint.headers), mode=mode, **callbacks) as client:
            yield client
        return
    async with (
        httpx2.AsyncClient(headers=endpoint.headers, timeout=30) as http,
        Client(streamable_http_client(endpoint.mcp, http_client=http), mode=mode, **callbacks) as client,
    ):
        yield client


def text_of(result: Any) -> str:
    """The first text of a tool's answer; fails on an error result."""
    assert not result.is_error, result
    return str(result.content[0].text)
