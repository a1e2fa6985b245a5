"""The audit trail: /api/v1/audit for the platform, …/tenants/{tenant}/audit for one tenant."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends, Path, Query
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, StringConstraints
from pydantic_core import PydanticCustomError

from app.admin.context import Access, MayAudit, Platform
from app.admin.paging import AskedPage, Page, PageQuery
from app.admin.route import AdminRoute
from app.admin.schemas.fields import one_line
from app.domain import NAME_PATTERN
from app.http.problems import responses
from app.storage.audit import AuditEntry, Which
from app.storage.audit_act import Change

MAX_ID = 2**63 - 1

router = APIRouter(route_class=AdminRoute, tags=["audit"])


class ActorAnswer(BaseModel):
    """Who did it."""

    tenant: str
    issuer: str = Field(description="`key` for an API key, `cli` for the command line.")
    subject: str


class ChangeAnswer(BaseModel):
    """One member that is another now. null: there was none, or is none."""

    member: str = Field(examples=["limits.sessions", "env.TOKEN"])
    old: Any = Field(description="`***` for what is secret; a long value's beginning, with `…`.")
    new: Any

    @classmethod
    def of(cls, change: Change) -> Self:
        """Shows the value."""
        return cls(member=change.member, old=change.old, new=change.new)


class AuditAnswer(BaseModel):
    """One act."""

    id: int
    at: datetime
    tenant: str = Field(description="Whom it concerns.")
    actor: ActorAnswer
    action: str = Field(examples=["backend.create"])
    target: str = Field(description="Path below the tenant; empty for the tenant itself.", examples=["backends/time"])
    request_id: str = Field(description="As in the log; the client's own `X-Request-Id` if it sent one.")
    detail: str = Field(description="Names of changed members, or scopes. Never a value.")
    changes: list[ChangeAnswer] = Field(description="What was before and after, without secrets.")
    changes_left_out: int = Field(description="How many more there were: an entry keeps 8 KiB.")

    @classmethod
    def of(cls, entry: AuditEntry) -> Self:
        """Shows the value."""
        act = entry.act
        tenant, issuer, subject = act.actor
        return cls(
            id=entry.id,
            at=act.at,
            tenant=act.tenant,
            actor=ActorAnswer(tenant=tenant, issuer=issuer, subject=subject),
            action=act.action,
            target=act.target,
            request_id=act.request_id,
            detail=act.detail,
            changes=[ChangeAnswer.of(each) for each in act.changes],
            changes_left_out=entry.left_out,
        )


def _moment(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("timestamp", "must be a moment of the years 1 to 9999") from None


_LIKE = "Exactly this; with `*` at its end, everything that begins so"
_Printable = AfterValidator(one_line)
_Action = Annotated[str, StringConstraints(max_length=65), _Printable]
_Text = Annotated[str, StringConstraints(max_length=256), _Printable]
_Moment = Annotated[AwareDatetime, AfterValidator(_moment)]


def _which(
    action: Annotated[_Action | None, Query(description=f"{_LIKE}: `key.revoke`, `backend.*`.")] = None,
    target: Annotated[
        _Text | None,
        Query(description=f"{_LIKE}: `backends/time`, `keys/*`; empty for the tenant itself."),
    ] = None,
    actor: Annotated[
        _Text | None,
        Query(description=f"The subject of who did it. {_LIKE}: a key's id, a token's subject, `uid *`."),
    ] = None,
    request_id: Annotated[_Text | None, Query(description="The `X-Request-Id` that the act has.")] = None,
    since: Annotated[_Moment | None, Query(description="Done then or later: 2030-01-31T12:00:00Z.")] = None,
    until: Annotated[_Moment | None, Query(description="Done before that.")] = None,
) -> Which:
    return Which(None, action, target, actor, request_id, since, until)


AskedEntries = Annotated[Which, Depends(_which)]


@router.get("/audit")
async def read_audit(
    access: Platform,
    asked: AskedPage,
    which: AskedEntries,
    tenant: Annotated[str | None, Query(pattern=NAME_PATTERN, description="Only what concerns this tenant.")] = None,
) -> Page[AuditAnswer]:
    """What was done in all tenants, deleted ones included, newest first."""
    return await _page(access, asked, replace(which, tenant=tenant))


@router.get("/tenants/{tenant}/audit", responses=responses(404))
async def read_tenant_audit(
    access: MayAudit,
    asked: AskedPage,
    which: AskedEntries,
    tenant: Annotated[str, Path(description="The tenant's name.")],
) -> Page[AuditAnswer]:
    """What was done in one tenant, newest first."""
    return await _page(access, asked, replace(which, tenant=tenant))


async def _page(access: Access, asked: PageQuery, which: Which) -> Page[AuditAnswer]:
    found = await access.admin.audit.list(which, before=_before(asked), limit=asked.fetch)
    return asked.page(found, lambda entry: str(entry.id), AuditAnswer.of)


def _before(asked: PageQuery) -> int | None:
    if not asked.after:
        return None
    if not (asked.after.isascii() and asked.after.isdigit()) or len(asked.after) > 19 or int(asked.after) > MAX_ID:
        message = "this is no cursor of the audit trail"
        raise RequestValidationError([{"type": "cursor", "loc": ("query", "cursor"), "msg": message}])
    return int(asked.after)
