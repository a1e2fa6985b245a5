"""…/me: who sends the request, and what it may do."""

from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from pydantic import BaseModel, Field

from app.admin._route import READ_COST, ResourceRouter
from app.admin.context import WhoAsks, who_asks
from app.auth.policy import has_scope, is_platform_admin
from app.domain import Principal, Scope
from app.http.dependencies import authenticate

router = ResourceRouter(tags=["principals"])


class MeAnswer(BaseModel):
    """The principal of the request."""

    tenant: str
    issuer: str = Field(description="The issuer of the token; `key` for an API key.")
    subject: str = Field(description="The subject of the token, or the id of the API key.")
    scopes: list[str] = Field(description="As granted.")
    groups: list[str] = Field(description="Those of the token that the issuer's `claims.map` has.")
    is_platform_admin: bool
    may: list[str] = Field(description="The scopes that it has in its tenant, also by implication.")
    expires_at: datetime | None = Field(description="When the credential expires.")


@router.get("/me")
async def show_me(principal: WhoAsks) -> MeAnswer:
    """Who sends this request. Every credential may ask: a way to try one."""
    return _answer(principal)


async def me_at_once(request: Request) -> dict[str, Any]:
    """The same for the console, without the way through the routes. Raises the GatewayErrors that they would answer."""
    principal = await authenticate(request)
    request.app.state.admin_context.rates.spend(principal.identity, READ_COST)
    return _answer(await who_asks(request, principal)).model_dump(mode="json")


def _answer(principal: Principal) -> MeAnswer:
    expires_at = principal.expires_at
    return MeAnswer(
        tenant=principal.tenant,
        issuer=principal.issuer,
        subject=principal.subject,
        scopes=sorted(principal.scopes),
        groups=sorted(principal.groups),
        is_platform_admin=is_platform_admin(principal),
        may=sorted(scope for scope in Scope if has_scope(principal, principal.tenant, scope)),
        expires_at=None if expires_at is None else datetime.fromtimestamp(expires_at, UTC),
    )
