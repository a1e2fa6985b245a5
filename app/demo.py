"""What `serve --demo` adds to a node: one real backend, a key for it, and ready-made snippets."""

import importlib.util
import json
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from app.domain import DEFAULT_TENANT, BackendSpec, Scope
from app.errors import GatewayError, NotFound, Unauthenticated
from app.gateway import Gateway
from app.storage import ApiKey
from app.storage.acts import Act

BACKEND = "time"
KEY_DAYS = 30

_TEXT = """
  One real MCP server (mcp-server-time) is behind this gateway:

    Streamable HTTP  {url}
    HTTP+SSE         {sse}
    API key          {key}

  Claude Code:
    claude mcp add --transport http time {url} --header "Authorization: Bearer {key}"

  Cursor, ~/.cursor/mcp.json:
    {{"mcpServers": {{"time": {{"url": "{url}", "headers": {{"Authorization": "Bearer {key}"}}}}}}}}

  VS Code, .vscode/mcp.json:
    {{"servers": {{"time": {{"type": "http", "url": "{url}", "headers": {{"Authorization": "Bearer {key}"}}}}}}}}

  Python (pip install mcp):
----8<----
import asyncio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

async def main():
    headers, timeout = {{"Authorization": "Bearer {key}"}}, httpx2.Timeout(30, read=300)
    async with httpx2.AsyncClient(headers=headers, timeout=timeout) as http:
        async with Client(streamable_http_client("{url}", http_client=http)) as client:
            print(await client.call_tool("get_current_time", {{"timezone": "Europe/Zurich"}}))

asyncio.run(main())
---->8----

  Administration: {base}/api/docs, with a key of `trunkline keys create --tenant default --scope platform:admin`
  (add --data-dir or TRUNKLINE_DATA_DIR={data_dir}). URL and key are in {demo_json} too. Ctrl-C stops.
"""


async def prepare_demo(gateway: Gateway, base: str) -> str:
    """Registers the backend, makes or keeps a key, writes `demo.json`; returns what to print.

    Raises:
        GatewayError: mcp-server-time is not installed.
    """
    await _register(gateway)
    data_dir: Path = gateway.settings.data_dir
    demo_json = data_dir / "demo.json"
    key = await _working_key(gateway, _read_key(demo_json)) or await _new_key(gateway)
    url = f"{base}/t/{DEFAULT_TENANT}/{BACKEND}/mcp"
    _write_private(demo_json, json.dumps({"url": url, "key": key}) + "\n")
    sse = url.removesuffix("mcp") + "sse"
    return _TEXT.format(url=url, sse=sse, key=key, base=base, data_dir=data_dir, demo_json=demo_json)


async def _register(gateway: Gateway) -> None:
    if importlib.util.find_spec("mcp_server_time") is None:
        raise GatewayError("mcp-server-time is not installed", hint="Install the extra: pip install 'trunkline[demo]'")
    spec = BackendSpec(
        DEFAULT_TENANT, BACKEND, sys.executable, ("-m", "mcp_server_time", "--local-timezone", "UTC"), warm=2
    )
    try:
        known = await gateway.backends.get(DEFAULT_TENANT, BACKEND)
    except NotFound:
        spec = await gateway.backends.create(DEFAULT_TENANT, spec, act=_act("backend.create", f"backends/{BACKEND}"))
    else:
        changed = replace(known, command=spec.command, args=spec.args, enabled=True)
        if changed == known:
            spec = known
        else:
            act = _act("backend.change", f"backends/{BACKEND}")
            spec = await gateway.backends.replace(DEFAULT_TENANT, changed, act=act)
    gateway.effects.backend_changed(spec)


def _read_key(demo_json: Path) -> str | None:
    """The key of an earlier run."""
    try:
        return str(json.loads(demo_json.read_text())["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


async def _working_key(gateway: Gateway, key: str | None) -> str | None:
    """The key, if it still opens the door."""
    try:
        await gateway.authenticator.authenticate(f"Bearer {key}".encode())
    except Unauthenticated:
        return None
    return key


async def _new_key(gateway: Gateway) -> str:
    made, now = gateway.key_maker.make(), datetime.now(UTC)
    scopes = frozenset({f"{Scope.CONNECT}:{BACKEND}"})
    expires_at = now + timedelta(days=KEY_DAYS)
    await gateway.keys.create(
        DEFAULT_TENANT,
        ApiKey(
            id=made.id,
            tenant=DEFAULT_TENANT,
            name="demo",
            digest=made.digest,
            pepper_version=made.pepper_version,
            scopes=scopes,
            created_at=now,
            expires_at=expires_at,
        ),
        act=_act("key.create", f"keys/{made.id}"),
    )
    return made.text


def _act(action: str, target: str) -> Act:
    return Act(DEFAULT_TENANT, (DEFAULT_TENANT, "demo", "serve --demo"), action, target, datetime.now(UTC))


def _write_private(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
