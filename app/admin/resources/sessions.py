"""…/sessions, of one tenant."""

from typing import Annotated

from fastapi import Path

from app.admin._route import ResourceRouter
from app.admin._view import add_list
from app.admin.context import MayManage
from app.admin.schemas.rows import answer_of
from app.cluster.node_status.listing import Window
from app.cluster.node_status.questions import END_SESSION, SESSIONS
from app.cluster.node_status.views import SessionView
from app.domain import views
from app.errors import SessionNotFound, nodes_unavailable

router = ResourceRouter(tags=["sessions"])

SessionId = Annotated[str, Path(description="The session's id in the list, not the one that its client sends.")]


add_list(router, views.SESSIONS, SESSIONS, answer_of(SessionView, "SessionAnswer"))


@router.delete("/sessions/{session}", status_code=204)
async def end_session(access: MayManage, session: SessionId) -> None:
    """Ends a session: its streams end, its calls fail, its process stops. The client can open a new one."""
    found = await access.admin.node.ask(SESSIONS, access.tenant, Window(only=session))
    if not found.rows:
        raise nodes_unavailable(found.silent) if found.silent else SessionNotFound(hint="")
    await access.admin.audit.append(access.act("session.end", f"sessions/{session}"))
    if not await access.admin.node.ask(END_SESSION, access.tenant, session):
        raise SessionNotFound(hint="")
