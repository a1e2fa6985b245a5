"""The documents of the MCP registry's read API (v0.1) for the servers of one tenant. Pure.

A server has one version at a time: its number grows with each change of the backend or toolset. Nothing in a document
says what is behind the gateway.
"""

import hashlib
import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
OFFICIAL = "io.modelcontextprotocol.registry/official"
LATEST = "latest"
MAX_TEXT = 100  # characters of a title and of a description, by the schema
_LOCAL = "local.gateway"  # in names, where the gateway is reached by an address


class Server(Protocol):
    """What a document is made of."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def is_toolset(self) -> bool: ...
    @property
    def version(self) -> int: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def changed_at(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request for a list wants. `after` is the name of the last server of the page before."""

    after: str = ""
    limit: int = 30
    search: str = ""
    updated_since: datetime | None = None
    version: str = ""


@dataclass(frozen=True, slots=True)
class Documents:
    """Writes the documents of a tenant for those who reach the gateway under `base_url`. With `can_sign_in` a key is
    not required: a client can sign in with an issuer of the tenant."""

    tenant: str
    base_url: str
    can_sign_in: bool = False

    def name_of(self, server: Server) -> str:
        """`com.example.gateway/acme.time`: it changes only with the host."""
        return f"{_reversed(_host(self.base_url))}/{self.tenant}.{server.name}"

    def page(self, servers: Sequence[Server], asked: Asked) -> dict[str, Any]:
        """A page of those servers, which are sorted by name, that match."""
        wanted = [server for server in servers if server.name > asked.after and self._matches(server, asked)]
        shown = wanted[: asked.limit]
        metadata: dict[str, Any] = {"count": len(shown)}
        if len(wanted) > len(shown):
            metadata["nextCursor"] = shown[-1].name
        return {"servers": [self.answer(server) for server in shown], "metadata": metadata}

    def found(self, servers: Sequence[Server], name: str) -> Server | None:
        """The server of this name."""
        return next((server for server in servers if self.name_of(server) == name), None)

    def answer(self, server: Server) -> dict[str, Any]:
        """One server, with what the registry says of it."""
        about = {
            "status": "active",
            "statusChangedAt": _moment(server.created_at),
            "publishedAt": _moment(server.created_at),
            "updatedAt": _moment(server.changed_at),
            "isLatest": True,
        }
        return {"server": self._server(server), "_meta": {OFFICIAL: about}}

    def _server(self, server: Server) -> dict[str, Any]:
        kind = "Toolset" if server.is_toolset else "Server"
        return {
            "$schema": SCHEMA,
            "name": self.name_of(server),
            "title": (server.title or server.name)[:MAX_TEXT],
            "description": f"{kind} {server.name} of {self.tenant}"[:MAX_TEXT],
            "version": version_of(server),
            "remotes": [
                {
                    "type": "streamable-http",
                    "url": f"{self.base_url}/t/{self.tenant}/{server.name}/mcp",
                    "headers": [self._header()],
                }
            ],
        }

    def _header(self) -> dict[str, Any]:
        how = f"A key for tenant {self.tenant}, from its administrator"
        key = {"description": how, "isRequired": not self.can_sign_in, "isSecret": True, "format": "string"}
        if self.can_sign_in:
            # A value with a variable would be asked for, and then sent empty.
            return {
                "name": "Authorization",
                **key,
                "description": f"`Bearer` and a key; leave it out to sign in. {how}",
            }
        return {"name": "Authorization", "value": "Bearer {key}", **key, "variables": {"key": key}}

    def _matches(self, server: Server, asked: Asked) -> bool:
        if asked.updated_since is not None and server.changed_at < asked.updated_since:
            return False
        if asked.version not in ("", LATEST, version_of(server)):
            return False
        text = asked.search.lower()
        return text in self.name_of(server) or text in server.title.lower()


def version_of(server: Server) -> str:
    """A semantic version, of which the last number grows with each change."""
    return f"1.0.{server.version}"


def etag_of(document: Mapping[str, Any]) -> str:
    """The same for the same document, on every node."""
    return f'"{hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]}"'


def _host(base_url: str) -> str:
    """Of PUBLIC_URL, or of a Host that was checked: without the port, and without the brackets of an address."""
    authority = base_url.partition("://")[2].partition("/")[0]
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def _reversed(host: str) -> str:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return ".".join(reversed(host.split(".")))
    return _LOCAL


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S}Z"
