"""…/me: who sends the request, and what it may do."""

from datetime import UTC, datetime

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.admin.context import WhoAsks
from app.admin.route import AdminRoute
from app.auth.policy import has_scope, is_platform_admin
from app.domain import Scope

router = APIRouter(route_class=AdminRoute, tags=["principals"])


class MeAnswer(BaseModel):
    """The principal of the request."""

    tenant: str
    issuer: str = Field(description="The issuer of the token; `key` for an API key.")
    subject: str = Field(description="The subject of the token, or the id of the API key.")
    scopes: list[str] = Field(description="As granted.")
    is_platform_admin: bool
    may: list[str] = Field(description="The scopes that it has in its tenant, also by implication.")
    expires_at: datetime | None = Field(description="When the credential expires.")


@router.get("/me")
async def show_me(principal: WhoAsks) -> MeAnswer:
    """Who sends this request. Every credential may ask: a way to try one."""
    expires_at = principal.expires_at
    return MeAnswer(
        tenant=principal.tenant,
        issuer=principal.issuer,
        subject=principal.subject,
        scopes=sorted(principal.scopes),
        is_platform_admin=is_platform_admin(principal),
        may=sorted(scope for scope in Scope if has_scope(principal, principal.tenant, scope)),
        expires_at=None if expires_at is None else datetime.fromtimestamp(expires_at, UTC),
    )
