"""…/inspections, of one tenant: the messages of a session, for an administrator who says why."""

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import PlainTextResponse
from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from app.admin.context import Access, MayManage, MayRead
from app.admin.idempotency import ONCE
from app.admin.paging import AskedPage, RunningPage
from app.admin.route import AdminRoute
from app.admin.schemas.fields import MAX_REASON, Answer, Strict, one_line
from app.auth.policy import has_scope
from app.domain import Scope
from app.errors import Conflict, NotFound, QuotaExceeded, SessionNotFound, nodes_unavailable
from app.http.problems import responses
from app.inspections.inspection import Ending
from app.inspections.message import Direction, InspectedMessage, Kind, Side
from app.this_node.inspecting import InspectionAsked, InspectionView, Seen
from app.this_node.listing import Window, newest_first

MAX_MINUTES = 60
MAX_MESSAGES = 500
PAGE_OF_FILE = 500

router = APIRouter(route_class=AdminRoute, tags=["inspections"])

InspectionId = Annotated[str, Path(description="The inspection's id.")]


class InspectionBody(Strict):
    """Which session to look at, why and for how long."""

    session: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(
        description="Its id in the list of sessions."
    )
    payloads: bool = Field(
        default=False,
        description="Also what the messages say, secrets masked. Without: only what, when and how large.",
    )
    minutes: Annotated[int, Field(ge=1, le=MAX_MINUTES)] = Field(default=15, description="Then it ends by itself.")
    reason: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_REASON), AfterValidator(one_line)
    ] = Field(description="Why, in one line. The tenant sees it.")


class InspectionAnswer(Answer):
    """An inspection, without what it has seen. `reason` and the opener are in the audit trail too."""

    id: str
    tenant: str
    backend: str
    session: str
    transport: str
    node: str
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
        "`forbidden` by the tenant; `shutdown` of its node."
    )
    kept: int = Field(description="Messages that can be read.")
    dropped: int = Field(description="Messages that it has seen and could not keep: the oldest.")
    last: int = Field(description="The number of the last message that it has seen.")


class MessageAnswer(BaseModel):
    """A message as it passed one side of the gateway."""

    number: int
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


@router.post("/inspections", status_code=201, dependencies=[ONCE], responses=responses(409))
async def open_inspection(access: MayManage, body: InspectionBody, response: Response) -> InspectionAnswer:
    """Looks at the messages of a session from now on: both directions, between client and gateway and between gateway
    and process. It ends by itself, with its session, and with the credential that has opened it. The tenant sees who
    has opened it and why, in its list, among its problems and in its audit trail; with `inspections: metadata` it
    allows none with payloads, with `forbidden` none at all."""
    await require_allowed(access, payloads=body.payloads)
    found = await access.admin.node.sessions(access.tenant, Window(only=body.session))
    if not found.rows:
        raise nodes_unavailable(found.silent) if found.silent else SessionNotFound(hint="")
    asked = InspectionAsked(
        secrets.token_hex(8), body.session, body.payloads, body.minutes * 60.0, body.reason, access.principal.identity,
        access.principal.expires_at or 0.0,
    )  # fmt: skip
    target, what = f"inspections/{asked.id}", "with" if body.payloads else "without"
    where = f"session {body.session} of {found.rows[0].backend}, {what} payloads, {body.minutes} min"
    await access.admin.audit.append(access.act("inspection.open", target, f"{where}: {body.reason}"))
    view = await _opened(access, asked)
    try:
        await require_allowed(access, payloads=body.payloads)  # it may have been forbidden meanwhile
    except BaseException:
        await access.admin.node.close_inspection(access.tenant, asked.id)
        raise
    response.headers["Location"] = f"/api/v1/tenants/{access.tenant}/inspections/{asked.id}"
    return InspectionAnswer.of(view)


@router.get("/inspections")
async def list_inspections(access: MayRead, asked: AskedPage) -> RunningPage[InspectionAnswer]:
    """The open inspections of a tenant's sessions on all nodes, and the last ones that have ended, newest first: who
    has opened them, and why. The audit trail has all of them (`action=inspection.*`)."""
    found = await access.admin.node.inspections(access.tenant)
    every = sorted(found.rows, key=_position)
    page = asked.of_all(every, _position, InspectionAnswer.of)
    return RunningPage(**dict(page), total=len(every), silent_nodes=list(found.silent))


@router.get("/inspections/{inspection}")
async def get_inspection(access: MayRead, inspection: InspectionId) -> InspectionAnswer:
    """One inspection."""
    return InspectionAnswer.of((await seen(access, inspection, 0, 0)).view)


@router.delete("/inspections/{inspection}", status_code=204)
async def close_inspection(access: MayManage, inspection: InspectionId) -> None:
    """Ends an inspection, and removes what it has seen."""
    await seen(access, inspection, 0, 0)
    await access.admin.audit.append(access.act("inspection.close", f"inspections/{inspection}", "closed"))
    if not await access.admin.node.close_inspection(access.tenant, inspection):
        raise _not_found()


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
) -> MessagesAnswer | PlainTextResponse:
    """What an inspection has seen, oldest first; payloads only for administrators. It can be read until ten minutes
    after its time, or the end of its session."""
    in_full = has_scope(access.principal, access.tenant, Scope.TENANT_ADMIN)
    if format == "jsonl":
        lines = await _lines(access, inspection, after, in_full=in_full)
        name = f"inspection-{inspection}.jsonl"
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        return PlainTextResponse("".join(lines), headers=headers, media_type="application/jsonl")
    page = await seen(access, inspection, after, limit)
    return MessagesAnswer(
        inspection=InspectionAnswer.of(page.view),
        items=[MessageAnswer.of(each, in_full=in_full) for each in page.messages],
        next_after=page.messages[-1].number if page.messages else after,
    )


async def _lines(access: Access, inspection: str, after: int, *, in_full: bool) -> list[str]:
    """All messages that are kept, each as a line; a node keeps a bounded number."""
    lines = list[str]()
    while (page := await seen(access, inspection, after, PAGE_OF_FILE)).messages:
        lines += _as_lines(page, in_full=in_full)
        after = page.messages[-1].number
    return lines


def _as_lines(page: Seen, *, in_full: bool) -> Iterator[str]:
    for each in page.messages:
        yield MessageAnswer.of(each, in_full=in_full).model_dump_json() + "\n"


async def _opened(access: Access, asked: InspectionAsked) -> InspectionView:
    """Raises Conflict, QuotaExceeded, SessionNotFound: as the node that has the session says."""
    refusal: Exception
    try:
        opened = await access.admin.node.open_inspection(access.tenant, asked)
        if opened is not None and opened.view is not None:
            return opened.view
        if opened is None:
            refusal = SessionNotFound(hint="")
        else:
            refusal = QuotaExceeded("inspections", opened.refusal) if opened.is_limit else Conflict(opened.refusal)
        raise refusal
    except Exception as error:
        await access.admin.audit.append(
            access.act("inspection.close", f"inspections/{asked.id}", f"not opened: {error}")
        )
        raise


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
    found = await access.admin.node.inspected(access.tenant, inspection, after, limit)
    if found is None:
        raise _not_found()
    return found


def _position(view: InspectionView) -> str:
    return newest_first(view.opened_at.timestamp(), view.id)


def _not_found() -> NotFound:
    return NotFound("Inspection not found")
