"""Toolsets of toolboxes (tests/servers/toolbox.py), and of other servers with toolboxes beside them."""

import sys
from typing import Any

from tests.integration.gateway import ROOT, Endpoint, Gateway

TOOLBOX = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/toolbox.py")]
NAME = "all"


class Toolset(Endpoint):
    """A toolset, and a key for it. `made` is what the API said of it."""

    def __init__(self, gateway: Gateway, tenant: str, members: list[dict[str, Any]]) -> None:
        self.made = gateway.api("POST", f"/tenants/{tenant}/toolsets", {"name": NAME, "members": members})
        super().__init__(gateway, tenant, NAME, f"{gateway.url}/t/{tenant}/{NAME}", gateway.key(tenant))


def toolboxes(gateway: Gateway, *names: str, **fields: Any) -> Toolset:
    """A toolset with a toolbox of each name, in a tenant of its own."""
    tenant = gateway.add_tenant()
    for name in names:
        gateway.add_backend(tenant, name, TOOLBOX[0], [*TOOLBOX[1:], name], **fields)
    return Toolset(gateway, tenant, [{"backend": name} for name in names])


def in_flight(gateway: Gateway, toolset: Endpoint) -> int:
    """How many calls of its sessions are under way."""
    found = gateway.api("GET", f"/tenants/{toolset.tenant}/sessions")["items"]
    return sum(each["calls"] for each in found)


def among_toolboxes(endpoint: Endpoint) -> Toolset:
    """A toolset in which this backend has no prefix, and stands between two toolboxes."""
    gateway, tenant = endpoint.gateway, endpoint.tenant
    for name in ("red", "blue"):
        gateway.add_backend(tenant, name, TOOLBOX[0], [*TOOLBOX[1:], name])
    members = [{"backend": "red"}, {"backend": endpoint.name, "prefix": ""}, {"backend": "blue"}]
    return Toolset(gateway, tenant, members)
