"""The audit trail: /api/v1/audit for the platform, …/tenants/{tenant}/audit for one tenant."""

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from fastapi import Depends, Path, Query
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from app.admin._paging import AskedPage, Page, PageQuery, wrong_cursor
from app.admin._route import ResourceRouter
from app.admin.context import Access, MayAudit, Platform
from app.admin.schemas.fields import SpelledAsName, one_line
from app.http.problems import responses
from app.storage.audit_queries import AuditEntry, Which

MAX_ID = 2**63 - 1

router = ResourceRouter(tags=["audit"])


class ActorAnswer(BaseModel):
    """Who did it."""

    tenant: str
    issuer: str = Field(description="`key` for an API key, `cli` for the command line.")
    subject: str


class ChangeAnswer(BaseModel):
    """One member that has changed. null: it had, or has, no value."""

    member: str = Field(examples=["limits.sessions", "env.TOKEN"])
    old: Any = Field(description="`***` for a secret; a long value is cut, with `…`.")
    new: Any


class AuditAnswer(BaseModel):
    """One act."""

    id: int
    at: datetime
    tenant: str = Field(description="The tenant that it concerns.")
    actor: ActorAnswer
    action: str = Field(examples=["backend.create"])
    target: str = Field(description="Path below the tenant; empty for the tenant itself.", examples=["backends/time"])
    request_id: str = Field(description="As in the log; the client's own `X-Request-Id` if it sent one.")
    detail: str = Field(description="Names of changed members, or scopes. Never a value.")
    changes: list[ChangeAnswer] = Field(description="Values before and after, without secrets.")
    changes_left_out: int = Field(description="How many more changes there were: an entry keeps 8 KiB.")

    @classmethod
    def of(cls, entry: AuditEntry) -> Self:
        actor = dict(zip(ActorAnswer.model_fields, entry.act.actor, strict=True))
        return cls(**{**asdict(entry.act), "id": entry.id, "actor": actor, "changes_left_out": entry.left_out})


def _moment(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("timestamp", "must be in the years 1 to 9999") from None


def _no_number(value: object) -> object:
    """Pydantic would take `7491` for a Unix time."""
    if isinstance(value, str) and value.strip().lstrip("+-").replace(".", "", 1).isdigit():
        raise PydanticCustomError("timestamp", "must be a time like 2030-01-31T12:00:00Z")
    return value


_LIKE = "Exact match; with `*` at its end, a prefix"
_Printable = AfterValidator(one_line)
_Action = Annotated[str, StringConstraints(max_length=65), _Printable]
_Text = Annotated[str, StringConstraints(max_length=256), _Printable]
Moment = Annotated[AwareDatetime, BeforeValidator(_no_number), AfterValidator(_moment)]


async def _which(
    action: Annotated[_Action | None, Query(description=f"{_LIKE}: `key.revoke`, `backend.*`.")] = None,
    target: Annotated[
        _Text | None,
        Query(description=f"{_LIKE}: `backends/time`, `keys/*`; empty for the tenant itself."),
    ] = None,
    actor: Annotated[
        _Text | None,
        Query(description=f"The subject of the actor. {_LIKE}: a key's id, a token's subject, `uid *`."),
    ] = None,
    request_id: Annotated[_Text | None, Query(description="The `X-Request-Id` of the act.")] = None,
    since: Annotated[Moment | None, Query(description="At this time or later: 2030-01-31T12:00:00Z.")] = None,
    until: Annotated[Moment | None, Query(description="Before this time.")] = None,
) -> Which:
    return Which(None, action, target, actor, request_id, since, until)


AskedEntries = Annotated[Which, Depends(_which)]


@router.get("/audit")
async def read_audit(
    access: Platform,
    asked: AskedPage,
    which: AskedEntries,
    tenant: Annotated[
        Annotated[str, SpelledAsName] | None, Query(description="Only acts that concern this tenant.")
    ] = None,
) -> Page[AuditAnswer]:
    """The acts of all tenants, including deleted ones, newest first."""
    return await _page(access, asked, replace(which, tenant=tenant))


@router.get("/tenants/{tenant}/audit", responses=responses(404))
async def read_tenant_audit(
    access: MayAudit,
    asked: AskedPage,
    which: AskedEntries,
    tenant: Annotated[str, Path(description="The tenant's name.")],
) -> Page[AuditAnswer]:
    """The acts of one tenant, newest first."""
    return await _page(access, asked, replace(which, tenant=tenant))


async def _page(access: Access, asked: PageQuery, which: Which) -> Page[AuditAnswer]:
    found = await access.admin.audit.list(which, before=_before(asked), limit=asked.fetch)
    return asked.page(found, lambda entry: str(entry.id), AuditAnswer.of)


def _before(asked: PageQuery) -> int | None:
    if not asked.after:
        return None
    if not (asked.after.isascii() and asked.after.isdigit()) or len(asked.after) > 19 or int(asked.after) > MAX_ID:
        raise wrong_cursor("this is not a cursor of the audit trail")
    return int(asked.after)
