"""…/inspections, of one tenant: the messages of sessions, for an administrator who says why."""

import math
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Annotated, Literal, Self

import anyio
import msgspec
from fastapi import Path, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, BaseModel, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from app.admin._paging import AskedNewest
from app.admin._route import ResourceRouter
from app.admin._view import add_list
from app.admin.context import Access, MayManage, MayRead
from app.admin.idempotency import ONCE
from app.admin.resources.backends import find_backend
from app.admin.schemas.fields import SILENT, Name, Strict, one_line
from app.auth.policy import has_scope
from app.cluster.node_status.inspection_views import (
    OF_MANY,
    InspectionView,
    Seen,
    moment,
)
from app.cluster.node_status.listing import Window
from app.cluster.node_status.questions import (
    CLOSE_INSPECTION,
    CONFIRM_INSPECTION,
    INSPECT_BACKEND,
    INSPECT_SESSION,
    INSPECTED,
    INSPECTIONS,
    SESSIONS,
)
from app.domain import Scope, views
from app.domain.resources.fields import MAX_REASON
from app.errors import (
    BackendNotFound,
    Conflict,
    GatewayError,
    NotFound,
    QuotaExceeded,
    SessionNotFound,
    nodes_unavailable,
)
from app.http.problems import responses
from app.storage.audit_queries import Which
from app.telemetry.capture.captured_message import Direction, InspectedMessage, Kind, Side
from app.telemetry.capture.inspection import About, Ending

MAX_MINUTES = 60
MAX_MESSAGES = 500
PAGE_OF_FILE = 500
ID_BYTES = 8
GIVE_UP_S = 5.0
_is_id = re.compile(f"[0-9a-f]{{{2 * ID_BYTES}}}", re.ASCII).fullmatch

router = ResourceRouter(tags=["inspections"])

InspectionId = Annotated[str, Path(description="The inspection's id.")]


class InspectionBody(Strict):
    """What to look at, why and for how long. Either `session` or `backend`."""

    session: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = Field(
        default=None, description="Its id in the list of sessions."
    )
    backend: Name | None = Field(
        default=None, description="A backend or a toolset: its next sessions, from their `initialize` on."
    )
    payloads: bool = Field(
        default=False,
        description="Also what the messages say, secrets masked. Without: only what, when and how large.",
    )
    minutes: Annotated[int, Field(ge=1, le=MAX_MINUTES)] = Field(default=15, description="Then it ends by itself.")
    reason: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_REASON), AfterValidator(one_line)
    ] = Field(description="Why, in one line. The tenant sees it.")

    @model_validator(mode="after")
    def _has_one_object(self) -> Self:
        if (self.session is None) == (self.backend is None):
            raise PydanticCustomError("one_object", "needs either `session` or `backend`")
        return self


class InspectionAnswer(BaseModel):
    """An inspection, without what it has seen. `reason` and the opener are in the audit trail too."""

    id: str
    tenant: str
    backend: str = Field(description="Or the toolset.")
    session: str | None = Field(description="null: the next sessions of the backend.")
    transport: str | None = Field(description="That of the session.")
    nodes: list[str] = Field(description="The node of the session; or those whose sessions are seen.")
    payloads: bool
    reason: str
    opener_tenant: str = Field(description="The tenant of who has opened it: this one, or `default`.")
    issuer: str
    subject: str
    opened_at: datetime
    ends_at: datetime
    ended_at: datetime | None
    ending: Ending | None = Field(
        description="`time`; `session_ended`; `closed` by an administrator; `revoked`: the opener's credential; "
        "`forbidden` by the tenant; `not_confirmed`: whoever opened it might not any more; `standstill` of its node, "
        "or its `shutdown`."
    )
    sessions: int = Field(description="How many it has seen.")
    missed: int = Field(description="Sessions that it could not see: of a backend it sees 64 at a time on each node.")
    kept: int = Field(description="Messages that can be read.")
    dropped: int = Field(description="Messages that it has seen and could not keep: the oldest.")
    last: int = Field(description="The number of the last message that it has seen.")

    @classmethod
    def of(cls, view: InspectionView) -> Self:
        about = asdict(view.about)
        opener = dict(zip(("opener_tenant", "issuer", "subject"), about.pop("opener"), strict=True))
        times = {name: moment(about.pop(name)) for name in ("opened_at", "ends_at")}
        session = {name: about.pop(name) or None for name in ("session", "transport")}
        seen = {each.name: getattr(view, each.name) for each in fields(view) if each.name not in ("about", "nodes")}
        return cls(**about, **opener, **times, **session, **seen, nodes=list(view.nodes))


class MessageAnswer(BaseModel):
    """A message as it passed one side of the gateway."""

    number: int
    session: str = Field(description="Its id in the list of sessions.")
    at: datetime
    side: Side = Field(description="`client`: between client and gateway; `backend`: between gateway and process.")
    direction: Direction
    kind: Kind = Field(description="`invalid`: what a process has written is no message.")
    method: str = Field(description="Of an answer that of its request.")
    id: str = Field(description="The JSON-RPC id on this side, as JSON; empty for a notification.")
    tool: str = Field(description="The tool, the prompt or the resource that is named.")
    member: str = Field(description="The backend of a toolset's member; else empty.")
    size: int = Field(description="In bytes, on this side.")
    pair: int | None = Field(description="The number of the same message on the other side.")
    answers: int | None = Field(description="The number of the request that it answers, on the same side.")
    took_ms: float | None = Field(description="Of an answer: since its request.")
    payload: str | None = Field(
        description="The message in JSON, secrets masked as `•••`. null: without payloads, without `tenant:admin`, or "
        "it has more than 256 KiB."
    )
    is_cut: bool = Field(description="There was more than is shown.")
    secrets: int = Field(description="How many places are masked.")

    @classmethod
    def of(cls, message: InspectedMessage, *, in_full: bool) -> "MessageAnswer":
        members = msgspec.structs.asdict(message)
        members |= {"at": datetime.fromtimestamp(message.at, UTC), "pair": message.pair or None}
        members |= {"answers": message.answers or None, "payload": message.payload if in_full else None}
        return cls(**members)


class MessagesAnswer(BaseModel):
    """Messages of an inspection, oldest first."""

    inspection: InspectionAnswer
    items: list[MessageAnswer]
    next_after: int = Field(description="`after` of the next page. To follow the session, ask with it every second.")
    silent_nodes: list[str] = Field(description=SILENT)


@router.post("/inspections", status_code=201, dependencies=[ONCE], responses=responses(409))
async def open_inspection(access: MayManage, body: InspectionBody, response: Response) -> InspectionAnswer:
    """Looks at messages from now on: both directions, between client and gateway and between gateway and process; those
    of a session, or of the next sessions of a backend or toolset on all nodes. It ends by itself, with its session, and
    with the credential that has opened it. The tenant sees who has opened it and why, in its list, among its problems
    and in its audit trail; with `inspections: metadata` it allows none with payloads, with `forbidden` none at all."""
    await require_allowed(access, payloads=body.payloads)
    what = await _object(access, body)
    now = access.admin.now().timestamp()
    ends_at = min(now + body.minutes * 60.0, access.principal.expires_at or math.inf)
    about = About(
        id=secrets.token_hex(ID_BYTES),
        tenant=access.tenant,
        backend=body.backend or "",
        session=body.session or "",
        transport="",
        payloads=body.payloads,
        reason=body.reason,
        opener=access.principal.identity,
        opened_at=now,
        ends_at=ends_at,
    )
    how = f"{'with' if body.payloads else 'without'} payloads, {body.minutes} min: {body.reason}"
    await access.admin.audit.append(access.act("inspection.open", f"inspections/{about.id}", f"{what}, {how}"))
    view = await _opened(access, about)
    response.headers["Location"] = f"/api/v1/tenants/{access.tenant}/inspections/{about.id}"
    return InspectionAnswer.of(view)


add_list(router, views.INSPECTIONS, INSPECTIONS, InspectionAnswer, asked=AskedNewest)


@router.get("/inspections/{inspection}")
async def get_inspection(access: MayRead, inspection: InspectionId) -> InspectionAnswer:
    """One inspection."""
    return InspectionAnswer.of((await seen(access, inspection, 0, 0)).view)


@router.delete("/inspections/{inspection}", status_code=204)
async def close_inspection(access: MayManage, inspection: InspectionId) -> None:
    """Ends an inspection, and removes what it has seen; of one that is over, what can still be read. With 503 a node
    that may have a part of it did not answer, and goes on: send it again."""
    view = (await seen(access, inspection, 0, 0)).view
    is_over = view.ended_at is not None
    if is_over and not view.kept:
        raise await _not_found(access, inspection)
    await access.admin.audit.append(access.act("inspection.close", f"inspections/{inspection}", "closed"))
    closed = await access.admin.node.ask(CLOSE_INSPECTION, access.tenant, inspection)
    has_parts, was_open = not view.about.session, any(closed.rows)
    if closed.silent and (has_parts or not was_open):
        raise nodes_unavailable(closed.silent)
    if not was_open and not is_over:
        raise await _not_found(access, inspection)


@router.get(
    "/inspections/{inspection}/messages",
    response_model=MessagesAnswer,
    responses={200: {"content": {"application/jsonl": {"schema": {"type": "string"}}}}},
)
async def list_messages(
    access: MayRead,
    inspection: InspectionId,
    after: Annotated[int, Query(ge=0, le=1 << 53, description="Messages with higher numbers.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_MESSAGES)] = 100,
    format: Annotated[
        Literal["json", "jsonl"], Query(description="`jsonl`: all that are kept, one in each line, as a file.")
    ] = "json",
) -> MessagesAnswer | StreamingResponse:
    """What an inspection has seen, oldest first; payloads only for administrators. It can be read until ten minutes
    after its time, or the end of its session."""
    in_full = has_scope(access.principal, access.tenant, Scope.TENANT_ADMIN)
    needed = Scope.TENANT_ADMIN if in_full else Scope.TENANT_READ
    if format == "jsonl":
        first = await seen(access, inspection, after, PAGE_OF_FILE)
        if first.silent:
            raise nodes_unavailable(first.silent)
        await access.require_still(needed)
        lines = _lines(access, inspection, first, needed)
        name = f"inspection-{inspection}.jsonl"
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        return StreamingResponse(lines, headers=headers, media_type="application/jsonl; charset=utf-8")
    page = await seen(access, inspection, after, limit)
    await access.require_still(needed)  # they may have passed after it was lost
    return MessagesAnswer(
        inspection=InspectionAnswer.of(page.view),
        items=[MessageAnswer.of(each, in_full=in_full) for each in page.messages],
        next_after=page.messages[-1].number if page.messages else after,
        silent_nodes=list(page.silent),
    )


async def _lines(access: Access, inspection: str, page: Seen, needed: Scope) -> AsyncIterator[str]:
    """All messages that are kept, each as a line, a page at a time. Any error breaks the file off, so that nobody takes
    it for whole; also where the inspection, or the node that has a part of it, is gone before all was read. Whoever
    reads slowly follows the session, so the scope is asked for before each page."""
    nodes = set(page.view.nodes)
    while page.messages:
        yield "".join(_as_lines(page, in_full=needed is Scope.TENANT_ADMIN))
        last, is_over = page.messages[-1].number, page.view.ended_at is not None
        if is_over and last >= page.view.last:
            return
        page = await seen(access, inspection, last, PAGE_OF_FILE)
        if gone := [*page.silent, *(nodes - set(page.view.nodes))]:
            raise nodes_unavailable(gone)
        await access.require_still(needed)


def _as_lines(page: Seen, *, in_full: bool) -> Iterator[str]:
    for each in page.messages:
        yield MessageAnswer.of(each, in_full=in_full).model_dump_json() + "\n"


async def _object(access: Access, body: InspectionBody) -> str:
    """What is looked at, in words. Raises NodeUnavailable, SessionNotFound, BackendNotFound."""
    if body.backend is not None:
        try:
            await find_backend(access, body.backend)
        except BackendNotFound:
            await access.admin.toolsets.find(access.tenant, body.backend)
        return f"{OF_MANY}{body.backend}"
    assert body.session is not None
    found = await access.admin.node.ask(SESSIONS, access.tenant, Window(only=body.session))
    if not found.rows:
        raise nodes_unavailable(found.silent) if found.silent else SessionNotFound(hint="")
    return f"session {body.session} of {found.rows[0].backend}"


async def _opened(access: Access, about: About) -> InspectionView:
    """Opens it, and asks again whether that is allowed: an earlier change is noticed here, a later one ends it. If
    anything fails nothing stays open, and the trail says so.

    Raises:
        Conflict, QuotaExceeded, SessionNotFound: as the node that has the session says.
        Unauthenticated, Disabled, Forbidden: the credential was revoked meanwhile.
    """
    try:
        view = await _opened_at_nodes(access, about)
        await require_allowed(access, payloads=about.payloads)
        await access.require_still(Scope.TENANT_ADMIN)
        confirmed = await access.admin.node.ask(CONFIRM_INSPECTION, access.tenant, about.id)
        if confirmed is None or set(confirmed.nodes) != set(view.nodes):
            raise Conflict("the inspection has ended before it could be confirmed")
    except BaseException as error:
        with anyio.move_on_after(GIVE_UP_S, shield=True):
            await _give_up(access, about, str(error) or "cancelled")
        raise
    return confirmed


async def _opened_at_nodes(access: Access, about: About) -> InspectionView:
    nodes = access.admin.node
    if about.session:
        opened = await nodes.ask(INSPECT_SESSION, about, ())
    else:
        opened = await nodes.ask(INSPECT_BACKEND, about, nodes.ids)
    if opened is None:
        raise SessionNotFound(hint="")
    if opened.view is None:
        raise QuotaExceeded("inspections", opened.refusal) if opened.is_limit else Conflict(opened.refusal)
    return opened.view


async def _give_up(access: Access, about: About, why: str) -> None:
    """What does not answer now ends by itself in some seconds: it was not confirmed."""
    with suppress(GatewayError):
        await access.admin.node.ask(CLOSE_INSPECTION, access.tenant, about.id)
    with suppress(GatewayError):
        act = access.act("inspection.close", f"inspections/{about.id}", f"not opened: {why}")
        await access.admin.audit.append(act)


async def require_allowed(access: Access, *, payloads: bool) -> None:
    """Raises Conflict: the tenant does not allow it."""
    mode = (await access.admin.tenants.get(access.tenant)).inspections
    if mode == "forbidden":
        raise Conflict("this tenant forbids inspections; a platform administrator can allow them (`inspections`)")
    if mode == "metadata" and payloads:
        words = "this tenant allows inspections without payloads only; a platform administrator can allow more"
        raise Conflict(f"{words} (`inspections`)")


async def seen(access: Access, inspection: str, after: int, limit: int) -> Seen:
    """Raises NotFound."""
    found = await access.admin.node.ask(INSPECTED, access.tenant, inspection, after, limit)
    if found is None:
        raise await _not_found(access, inspection)
    return found


async def _not_found(access: Access, inspection: str) -> NotFound:
    """Of one that was open once the audit trail knows."""
    named = Which(access.tenant, action="inspection.open", target=f"inspections/{inspection}")
    if _is_id(inspection) and await access.admin.audit.list(named, limit=1):
        return NotFound("Inspection not found: it is over, or its node has ended; what it has seen is gone")
    return NotFound("Inspection not found")
