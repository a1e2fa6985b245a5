"""`serve --demo`: registers one backend, makes a key for it, and prints snippets for clients, or what does not work."""

import importlib.util
import json
import logging
import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from app.backends.checks.steps import Steps
from app.domain import DEFAULT_TENANT, ApiKey, BackendSpec, Scope
from app.errors import GatewayError, NotFound, Unauthenticated
from app.node import demo_clock
from app.node.gateway import Gateway
from app.storage.audit import Act

BACKEND = "time"
KEY_DAYS = 30
STDERR_LINES = 5  # of a backend that does not work

_TEXT = """
  One MCP server ({server}) is behind this gateway:

    Streamable HTTP  {url}
    HTTP+SSE         {sse}
    API key          {key}

  In a browser, to look around and to try the tools:
    {console}

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

  Administration: {base}/api/docs, with a key of
    {command} keys create --tenant default --scope platform:admin --data-dir {data_dir}
  URL and key are in {demo_json} too. Ctrl-C stops.
"""
_INSTALLED = "mcp-server-time"
_OWN = "a clock of Trunkline's own; with `pip install 'trunkline[demo]'` it is mcp-server-time"

log = logging.getLogger(__name__)


async def set_up_demo(gateway: Gateway, base: str) -> AsyncIterator[str]:
    """Registers the backend, makes or keeps a key, writes `demo.json`, and tries the backend once. Yields texts:
    the addresses, and whatever does not work. No failure stops the node."""
    data_dir = gateway.settings.data_dir
    demo_json, url = data_dir / "demo.json", f"{base}/t/{DEFAULT_TENANT}/{BACKEND}/mcp"
    notes = list[str]()
    try:
        spec = await _register(gateway)
        key = await _working_key(gateway, _read_key(demo_json, notes), notes) or await _new_key(gateway)
    except GatewayError as error:
        yield _reported(f"The demo could not be set up: {error}", error.hint)
        return
    try:
        _write_private(demo_json, json.dumps({"url": url, "key": key}) + "\n")
    except OSError as error:
        hint = "The next start makes a new key."
        notes.append(_reported(f"Could not write URL and key to {demo_json}: {error.strerror}", hint))
    sse, server = url.removesuffix("mcp") + "sse", _OWN if demo_clock.__file__ in spec.args else _INSTALLED
    names = {
        "base": base,
        "command": _own_command(),
        "data_dir": shlex.quote(str(data_dir)),
        "demo_json": demo_json,
        "server": server,
    }
    text = _TEXT.format(url=url, sse=sse, key=key, console=_console(base, key), **names)
    yield "\n".join([text, *notes])
    try:
        limits = (await gateway.records.tenants.get(DEFAULT_TENANT)).limits
        failure = (await gateway.sessions.overview.check(spec, limits, Steps())).failure
    except GatewayError as error:  # of the database; or the node stops already
        yield _reported(f"Could not check the demo's backend: {error}", error.hint)
        return
    if failure is not None:
        text = f"The demo's backend does not work. Step `{failure.step}` failed: {failure.detail}"
        yield "\n".join([_reported(text, failure.hint), *(f"    {line}" for line in failure.stderr[-STDERR_LINES:])])


def _console(base: str, key: str) -> str:
    """Where the sign-in page finds the key by itself: what is behind # is sent to nobody."""
    return f"{base}/console/sign-in?to=/console/tenants/{DEFAULT_TENANT}/backends/{BACKEND}#key={key}"


def _own_command() -> str:
    """This program as it can be typed: its environment may not be on the PATH."""
    own = os.path.join(sysconfig.get_path("scripts"), "trunkline")
    if not os.path.exists(own):
        return f"{shlex.quote(sys.executable)} -m app"
    found = shutil.which("trunkline")
    return "trunkline" if found is not None and os.path.samefile(found, own) else shlex.quote(own)


def _reported(text: str, hint: str | None = None) -> str:
    """Logs the text, and returns it for the terminal."""
    text = f"{text}. {hint}" if hint else text
    log.error("%s", text)
    return f"  {text}"


def _command() -> tuple[str, ...]:
    if importlib.util.find_spec("mcp_server_time") is None:
        return ("-I", demo_clock.__file__)
    return ("-m", "mcp_server_time", "--local-timezone", "UTC")


async def _register(gateway: Gateway) -> BackendSpec:
    backends, path = gateway.records.backends, f"backends/{BACKEND}"
    try:
        known = await backends.get(DEFAULT_TENANT, BACKEND)
    except NotFound:
        spec = BackendSpec(DEFAULT_TENANT, BACKEND, sys.executable, _command(), warm=2)
        spec = await backends.create(DEFAULT_TENANT, spec, act=_act("backend.create", path))
    else:
        spec = replace(known, command=sys.executable, args=_command(), enabled=True)
        if spec != known:
            spec = await backends.replace(DEFAULT_TENANT, spec, act=_act("backend.change", path))
    return spec


def _read_key(demo_json: Path, notes: list[str]) -> str | None:
    """The key of an earlier run, if there was one."""
    try:
        return str(json.loads(demo_json.read_text())["key"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = getattr(error, "strerror", None) or "it is not what an earlier run has written"
        notes.append(_reported(f"Could not read the key in {demo_json}: {why}. This is a new one"))
        return None


async def _working_key(gateway: Gateway, key: str | None, notes: list[str]) -> str | None:
    """The key, if it is still valid."""
    if key is None:
        return None
    try:
        await gateway.credentials.authenticator.authenticate(f"Bearer {key}".encode())
    except Unauthenticated:
        notes.append("  The key of the last run has expired or was revoked; this is a new one.")
        return None
    return key


async def _new_key(gateway: Gateway) -> str:
    made, now = gateway.credentials.key_maker.make(), datetime.now(UTC)
    scopes = frozenset({f"{Scope.CONNECT}:{BACKEND}", str(Scope.TENANT_READ)})  # the latter for the console
    expires_at = now + timedelta(days=KEY_DAYS)
    key = ApiKey(made.id, DEFAULT_TENANT, "demo", made.digest, made.pepper_version, scopes, now, expires_at)
    await gateway.records.keys.create(DEFAULT_TENANT, key, act=_act("key.create", f"keys/{made.id}"))
    return made.text


def _act(action: str, target: str) -> Act:
    return Act(DEFAULT_TENANT, (DEFAULT_TENANT, "demo", "serve --demo"), action, target, datetime.now(UTC))


def _write_private(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
