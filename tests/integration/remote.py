"""Backends that are reached by URL: a server elsewhere behind a gateway."""

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.integration.gateway import ROOT, Endpoint, Gateway
from tests.integration.servers import EVERYTHING

LOOPBACK = {"UPSTREAM_ALLOW": "127.0.0.0/8"}


def behind(front: Gateway, server: Endpoint, *, transport: str = "streamable-http", **fields: Any) -> Endpoint:
    """The backend of another gateway, by its URL, as one of this gateway."""
    headers = {"Authorization": server.headers["Authorization"]}
    url = server.sse if transport == "sse" else server.mcp
    return reached(front, url, transport=transport, headers=headers, **fields)


def reached(front: Gateway, url: str, *, tenant: str | None = None, **fields: Any) -> Endpoint:
    """A backend with this URL in a tenant of its own (or this one), and a key for it."""
    tenant, name = tenant or front.add_tenant(), f"u-{uuid.uuid4().hex[:8]}"
    front.api("POST", f"/tenants/{tenant}/backends", {"name": name, "url": url, **fields})
    return Endpoint(front, tenant, name, f"{front.url}/t/{tenant}/{name}", front.key(tenant))


SDK = [sys.executable, str(ROOT / "tests/integration/sdk_server.py")]
EVERYTHING_REMOTE = [*EVERYTHING[:2], "streamableHttp"]
READY_S = 30.0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def is_listened_to(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextmanager
def listening(command: Sequence[str], port: int, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server that listens on this port; ended with the block."""
    process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + READY_S
        while not is_listened_to(port):
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()
