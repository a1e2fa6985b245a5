"""…/sessions, of one tenant: who is connected, and an end to it."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from app.admin.context import MayManage, MayRead
from app.admin.paging import AskedPage, Page
from app.admin.route import AdminRoute
from app.errors import SessionNotFound
from app.sessions.overview import SessionView

router = APIRouter(route_class=AdminRoute, tags=["sessions"])

SessionId = Annotated[str, Path(description="The session's id as the list shows it: not the one its client sends.")]


class SessionAnswer(BaseModel):
    """A session."""

    id: str = Field(description="Public: derived from the id that the client sends, which is half of a credential.")
    backend: str
    issuer: str = Field(description="Who vouches for the principal; `key` for an API key.")
    subject: str = Field(description="Who it is; the id of an API key.")
    transport: str
    state: str
    protocol_version: str
    opened_at: datetime
    idle_s: float = Field(description="Since the client was heard last.")
    calls: int = Field(description="In flight.")
    process: str | None
    node: str = Field(description="Which node has it.")

    @classmethod
    def of(cls, view: SessionView) -> Self:
        """Shows the value."""
        return cls(**asdict(view))


@router.get("")
async def list_sessions(access: MayRead, asked: AskedPage) -> Page[SessionAnswer]:
    """The tenant's sessions on all nodes, by id. A node that does not answer within a second is left out."""
    return asked.of_all(await access.admin.node.sessions(access.tenant), lambda view: view.id, SessionAnswer.of)


@router.delete("/{session}", status_code=204)
async def end_session(access: MayManage, session: SessionId) -> None:
    """Ends a session: its streams end, its calls fail, its process stops. The client can begin a new one."""
    if not any(view.id == session for view in await access.admin.node.sessions(access.tenant)):
        raise SessionNotFound
    await access.admin.audit.append(access.act("session.end", f"sessions/{session}"))
    await access.admin.node.end_session(access.tenant, session)
