"""Backends that are reached by URL: a server elsewhere behind a gateway."""

import uuid
from typing import Any

from tests.integration.gateway import Endpoint, Gateway

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
