"""The audit trail: /api/v1/audit for the platform, …/tenants/{tenant}/audit for one tenant."""

from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter, Path, Query
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field

from app.admin.context import MayAudit, Platform
from app.admin.paging import AskedPage, Page, PageQuery
from app.admin.route import AdminRoute
from app.domain import NAME_PATTERN
from app.http.problems import responses
from app.storage.audit import AuditEntry

MAX_ID = 2**63 - 1

router = APIRouter(route_class=AdminRoute, tags=["audit"])


class ActorAnswer(BaseModel):
    """Who did it."""

    tenant: str
    issuer: str = Field(description="`key` for an API key, `cli` for the command line.")
    subject: str


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
        )


@router.get("/audit")
async def read_audit(
    access: Platform,
    asked: AskedPage,
    tenant: Annotated[str | None, Query(pattern=NAME_PATTERN, description="Only what concerns this tenant.")] = None,
) -> Page[AuditAnswer]:
    """What was done in all tenants, deleted ones included, newest first."""
    found = await access.admin.audit.list(tenant, before=_before(asked), limit=asked.fetch)
    return asked.page(found, lambda entry: str(entry.id), AuditAnswer.of)


@router.get("/tenants/{tenant}/audit", responses=responses(404))
async def read_tenant_audit(
    access: MayAudit, asked: AskedPage, tenant: Annotated[str, Path(description="The tenant's name.")]
) -> Page[AuditAnswer]:
    """What was done in one tenant, newest first."""
    found = await access.admin.audit.list(tenant, before=_before(asked), limit=asked.fetch)
    return asked.page(found, lambda entry: str(entry.id), AuditAnswer.of)


def _before(asked: PageQuery) -> int | None:
    if not asked.after:
        return None
    if not (asked.after.isascii() and asked.after.isdigit()) or len(asked.after) > 19 or int(asked.after) > MAX_ID:
        message = "this is no cursor of the audit trail"
        raise RequestValidationError([{"type": "cursor", "loc": ("query", "cursor"), "msg": message}])
    return int(asked.after)
