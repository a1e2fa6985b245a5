"""Backends whose idle sessions are parked, and what administrators see of those."""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2

from tests.integration.gateway import ROOT, Endpoint, Gateway, until
from tests.integration.wire import Wire, rpc

STATELESS = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/stateless.py")]
COUNTING = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/counting.py")]
PARK_S = 1.0
WITHIN_S = 30.0  # of a busy machine


def parking(gateway: Gateway, argv: list[str] = STATELESS, **fields: Any) -> Endpoint:
    timeouts = {"park_s": PARK_S, **fields.pop("timeouts", {})}
    return gateway.endpoint(argv, recovery="respawn", timeouts=timeouts, **fields)


def sessions(endpoint: Endpoint, gateway: Gateway | None = None) -> list[dict[str, Any]]:
    found = (gateway or endpoint.gateway).api("GET", f"/tenants/{endpoint.tenant}/sessions?limit=200")["items"]
    return list(found)


def states(endpoint: Endpoint, gateway: Gateway | None = None) -> list[str]:
    return [each["state"] for each in sessions(endpoint, gateway)]


def processes(endpoint: Endpoint) -> list[dict[str, Any]]:
    return endpoint.gateway.serving(endpoint.tenant)


def use(endpoint: Endpoint) -> dict[str, Any]:
    return dict(endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}")["use"])


async def is_parked(endpoint: Endpoint, count: int = 1, gateway: Gateway | None = None) -> None:
    await until(
        lambda: states(endpoint, gateway) == ["parked"] * count, WITHIN_S, lambda: str(states(endpoint, gateway))
    )


async def is_open(endpoint: Endpoint, session: Wire, gateway: Gateway | None = None) -> None:
    """What it was sent has woken it."""
    await is_awake(endpoint, lambda: session.post(rpc("ping")), gateway)


async def is_awake(endpoint: Endpoint, ask: Callable[[], Awaitable[object]], gateway: Gateway | None = None) -> None:
    """Its session is open: now, or right after it was asked something. On a machine that stands still for a second it
    is parked again before somebody looks."""
    with anyio.fail_after(WITHIN_S):
        while states(endpoint, gateway) != ["open"]:
            await ask()


async def whoami(session: Wire) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await session.call("whoami"))
    return found


@asynccontextmanager
async def opened(http: httpx2.AsyncClient, endpoint: Endpoint) -> AsyncIterator[Wire]:
    session = Wire(http, endpoint)
    await session.open()
    yield session
    await session.close()
