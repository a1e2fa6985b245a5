"""…/connections, of one tenant: what people have allowed programs. Everybody sees and ends their own."""

import re
from datetime import datetime
from typing import Annotated, Self

from fastapi import Path, Query
from pydantic import Field

from app.admin._paging import AskedPage, Page
from app.admin._route import ResourceRouter
from app.admin.context import Access, OfTenant
from app.admin.schemas.fields import Answer, SortedTexts
from app.auth.authorization.clients import document_host
from app.auth.policy import has_scope
from app.domain import Connection, Scope
from app.errors import NotFound

router = ResourceRouter(tags=["connections"])

ConnectionId = Annotated[str, Path(description="The connection's id.")]
_is_id = re.compile(r"[0-9a-f]{16}").fullmatch


class ConnectionAnswer(Answer):
    """What a person has allowed a program."""

    id: str
    client_id: str
    client_title: str = Field(description="What the program calls itself.")
    client_host: str = Field(description="Whose it is, where its id is a URL.")
    issuer: str = Field(description="Who knows the person; `key` for the holder of an API key.")
    subject: str
    backend: str = Field(description="For which backend or toolset; empty: for all of the tenant.")
    scopes: SortedTexts
    created_at: datetime
    used_at: datetime = Field(description="When it got an access token, within ten minutes of its last use.")
    ends_at: datetime = Field(description="If it is not used until then.")

    @classmethod
    def of(cls, value: Connection) -> Self:
        host = document_host(value.client_id) if "://" in value.client_id else ""
        names = ("id", "client_id", "client_title", "issuer", "subject", "backend", "created_at", "ends_at")
        members = {name: getattr(value, name) for name in names}
        return cls(**members, client_host=host, scopes=sorted(value.scopes), used_at=value.turned_at)


@router.get("/connections")
async def list_connections(
    access: OfTenant,
    asked: AskedPage,
    mine: Annotated[bool, Query(description="Only those of who asks.")] = False,
) -> Page[ConnectionAnswer]:
    """What is connected, by id: of the whole tenant for `tenant:read`, else of who asks."""
    sees_all = not mine and has_scope(access.principal, access.tenant, Scope.TENANT_READ)
    person = None if sees_all else (access.principal.issuer, access.principal.subject)
    found = await access.admin.connections.list(
        access.tenant, access.admin.now(), person=person, after=asked.after, limit=asked.fetch
    )
    return asked.page(found, lambda connection: connection.id, ConnectionAnswer.of)


@router.get("/connections/{connection}")
async def get_connection(access: OfTenant, connection: ConnectionId) -> ConnectionAnswer:
    """One connection."""
    return ConnectionAnswer.of(await _find(access, connection, Scope.TENANT_READ))


@router.delete("/connections/{connection}", status_code=204)
async def end_connection(access: OfTenant, connection: ConnectionId) -> None:
    """Ends a connection: its tokens are refused and its sessions end within a second, on every node. One's own, or any
    with `tenant:admin`."""
    found = await _find(access, connection, Scope.TENANT_ADMIN)
    act = access.act("connection.end", f"connections/{found.id}", f"{found.issuer} {found.subject} {found.client_id}")
    await access.admin.connections.end(access.tenant, found.id, act=act)


async def _find(access: Access, connection_id: str, scope: Scope) -> Connection:
    """One's own, or any for who has this scope. Raises NotFound."""
    found = None
    if _is_id(connection_id) is not None:
        found = await access.admin.connections.find(access.tenant, connection_id, access.admin.now())
    is_own = found is not None and found.identity == access.principal.identity
    if found is None or not (is_own or has_scope(access.principal, access.tenant, scope)):
        raise NotFound("Connection not found")
    return found
