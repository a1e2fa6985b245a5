"""…/sessions, of one tenant: who is connected, and an end to it."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter, Path
from pydantic import Field

from app.admin.context import MayManage, MayReadOfAll
from app.admin.resources.use import UseMembers, flat
from app.admin.route import AdminRoute
from app.admin.windows import AskedWindow, RunningPage
from app.errors import SessionNotFound
from app.this_node.listing import Window
from app.this_node.views import SessionView

router = APIRouter(route_class=AdminRoute, tags=["sessions"])

SessionId = Annotated[str, Path(description="The session's id as the list shows it: not the one its client sends.")]


class SessionAnswer(UseMembers):
    """A session. What it takes is what its process does, which a shared backend's sessions have together."""

    id: str = Field(description="Public: derived from the id that the client sends, which is half of a credential.")
    tenant: str
    backend: str
    principal_tenant: str = Field(description="Whose credential it is: the tenant, or `default`.")
    issuer: str = Field(description="Who vouches for the principal; `key` for an API key.")
    subject: str = Field(description="Who it is; the id of an API key.")
    client_name: str | None = Field(description="Of the program, as it says in `initialize`, cut to 80 characters.")
    client_version: str | None
    address: str | None = Field(
        description="From where it was opened, see TRUSTED_PROXIES; null where another node has taken it over."
    )
    transport: str
    state: str
    protocol_version: str
    opened_at: datetime
    age_s: float
    idle_s: float = Field(description="Since the client was heard last.")
    process: str | None
    node: str = Field(description="Which node has it.")

    @classmethod
    def of(cls, view: SessionView) -> Self:
        """Shows the value."""
        return cls(**{**asdict(view), **flat(view.use)})


@router.get("")
async def list_sessions(access: MayReadOfAll, asked: AskedWindow) -> RunningPage[SessionAnswer]:
    """The sessions of a tenant on all nodes, or of all tenants: `/tenants/-/sessions`, for platform administrators."""
    return asked.page(await access.admin.node.sessions(access.reach, asked.window), SessionAnswer.of)


@router.delete("/{session}", status_code=204)
async def end_session(access: MayManage, session: SessionId) -> None:
    """Ends a session: its streams end, its calls fail, its process stops. The client can begin a new one."""
    if not (await access.admin.node.sessions(access.tenant, Window(only=session))).rows:
        raise SessionNotFound
    await access.admin.audit.append(access.act("session.end", f"sessions/{session}"))
    await access.admin.node.end_session(access.tenant, session)
