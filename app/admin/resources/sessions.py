"""…/sessions, of one tenant."""

from datetime import datetime
from typing import Annotated

from fastapi import Path
from pydantic import Field

from app.admin._paging import AskedWindow, RunningPage
from app.admin._route import ResourceRouter
from app.admin.context import MayManage, MayReadOfAll
from app.admin.schemas.fields import UseMembers
from app.cluster.node_status.listing import Window
from app.cluster.node_status.questions import END_SESSION, SESSIONS
from app.errors import SessionNotFound, nodes_unavailable

router = ResourceRouter(tags=["sessions"])

SessionId = Annotated[str, Path(description="The session's id in the list, not the one that its client sends.")]


class SessionAnswer(UseMembers):
    """A session. Its use is that of its process, which the sessions of a shared backend have in common."""

    id: str = Field(description="Derived from the id that the client sends, which is secret.")
    tenant: str
    backend: str
    principal_tenant: str = Field(description="The tenant of the credential: this one, or `default`.")
    issuer: str = Field(description="The issuer of the token; `key` for an API key.")
    subject: str = Field(description="The subject of the token, or the id of the API key.")
    client_name: str | None = Field(description="As the client says in `initialize`, cut to 80 characters.")
    client_version: str | None
    address: str | None = Field(
        description="Of the client that opened it, see TRUSTED_PROXIES; null if another node has taken it over."
    )
    transport: str
    state: str = Field(
        description="`open`; `parked`, `frozen`: idle, without a process until its next message, or with one "
        "that stands still; or being opened."
    )
    protocol_version: str
    opened_at: datetime
    age_s: float
    idle_s: float = Field(description="Since the client sent something last.")
    process: str | None
    node: str


@router.get("/sessions")
async def list_sessions(access: MayReadOfAll, asked: AskedWindow) -> RunningPage[SessionAnswer]:
    """The sessions of a tenant on all nodes; for platform administrators also of all tenants: `/tenants/-/sessions`."""
    return asked.page(await access.admin.node.ask(SESSIONS, access.reach, asked.window), SessionAnswer.of)


@router.delete("/sessions/{session}", status_code=204)
async def end_session(access: MayManage, session: SessionId) -> None:
    """Ends a session: its streams end, its calls fail, its process stops. The client can open a new one."""
    found = await access.admin.node.ask(SESSIONS, access.tenant, Window(only=session))
    if not found.rows:
        raise nodes_unavailable(found.silent) if found.silent else SessionNotFound(hint="")
    await access.admin.audit.append(access.act("session.end", f"sessions/{session}"))
    if not await access.admin.node.ask(END_SESSION, access.tenant, session):
        raise SessionNotFound(hint="")
