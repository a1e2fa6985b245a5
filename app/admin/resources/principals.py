"""…/principals, of one tenant: who comes with tokens, and is switched off.

The body names the principal: its subject can have any characters, which a path cannot.
"""

from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter
from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from app.admin.changes import changes_of
from app.admin.context import Access, MayManage, MayRead
from app.admin.paging import AskedPage, Page
from app.admin.route import AdminRoute
from app.admin.schemas.fields import Reason, Strict, one_line
from app.admin.switches import Switch, switched
from app.auth.policy import is_platform_admin
from app.auth.token_rules import MAX_SUBJECT
from app.auth.tokens import MAX_ISSUER, is_issuer
from app.domain import DEFAULT_TENANT, KEY_ISSUER, Scope
from app.errors import Conflict, Disabled, Forbidden, InvalidRequest
from app.http.problems import responses
from app.storage.switches import PrincipalOff, principal_id

router = APIRouter(route_class=AdminRoute, tags=["principals"])

_ON = Switch(True, "")


class PrincipalPatch(Strict):
    """Whom it is about, and a merge patch."""

    issuer: Annotated[str, StringConstraints(min_length=1, max_length=MAX_ISSUER), AfterValidator(one_line)] = Field(
        description="As sessions show it: the `iss` of the tokens."
    )
    subject: Annotated[str, StringConstraints(min_length=1, max_length=MAX_SUBJECT), AfterValidator(one_line)]
    enabled: bool | None = None
    reason: Reason | None = None


class PrincipalAnswer(BaseModel):
    """A principal."""

    id: str = Field(description="What the audit trail calls it, behind `principals/`.")
    tenant: str
    issuer: str
    subject: str
    enabled: bool
    reason: str
    off_by_platform: bool = Field(description="Only a platform administrator can switch it on again.")
    at: datetime | None = Field(description="When it was switched off; null: it is on.")

    @classmethod
    def of(cls, off: PrincipalOff) -> Self:
        """Shows one that is switched off."""
        return cls(
            id=off.id,
            tenant=off.tenant,
            issuer=off.issuer,
            subject=off.subject,
            enabled=False,
            reason=off.reason,
            off_by_platform=off.off_by_platform,
            at=off.at,
        )


@router.get("")
async def list_principals(access: MayRead, asked: AskedPage) -> Page[PrincipalAnswer]:
    """The tenant's principals that are switched off, by id. Those that are on are known to their issuer only; keys are
    in a list of their own."""
    found = await access.admin.switches.list(access.tenant, after=asked.after, limit=asked.fetch)
    return asked.page(found, lambda each: each.id, PrincipalAnswer.of)


@router.patch("", responses=responses(409))
async def change_principal(access: MayManage, patch: PrincipalPatch) -> PrincipalAnswer:
    """Switches a principal off, whether or not it has ever come: its sessions end within a second and its tokens open
    nothing; or on again. 1,000 of a tenant can be off."""
    _require_reach(access, patch)
    switches = access.admin.switches
    old = await switches.find(access.tenant, patch.issuer, patch.subject)
    was = _ON if old is None else Switch(False, old.reason, old.off_by_platform)
    switch = switched(access, was, patch)
    if not switch.enabled and (access.tenant, patch.issuer, patch.subject) == access.principal.identity:
        raise Conflict("this is who you are; somebody else must switch you off")
    if switch != was:
        at = access.admin.now() if old is None else old.at
        off = PrincipalOff(access.tenant, patch.issuer, patch.subject, switch.reason, switch.off_by_platform, at)
        new = None if switch.enabled else off
        before, after = (_shown(access.tenant, patch, each) for each in (old, new))
        act = access.act(
            "principal.change", f"principals/{off.id}", f"{off.issuer} {off.subject}", changes=changes_of(before, after)
        )
        await switches.change(old, new, act=act)
        why = None if new is None else Disabled("principal", new.subject, new.reason)
        access.admin.effects.principal_changed(off.identity, why)
        old = new
    return _shown(access.tenant, patch, old)


def _require_reach(access: Access, patch: PrincipalPatch) -> None:
    if patch.issuer == KEY_ISSUER:
        raise InvalidRequest("this is a key; switch it off with PATCH …/keys/{key}", field="issuer")
    if not is_issuer(patch.issuer):
        raise InvalidRequest("must be the `iss` of tokens, as in the list of sessions", field="issuer")
    # What a token's scopes are only its issuer knows: it may be a platform administrator's.
    if access.tenant == DEFAULT_TENANT and not is_platform_admin(access.principal):
        raise Forbidden([Scope.PLATFORM_ADMIN])


def _shown(tenant: str, patch: PrincipalPatch, off: PrincipalOff | None) -> PrincipalAnswer:
    if off is not None:
        return PrincipalAnswer.of(off)
    return PrincipalAnswer(
        id=principal_id(patch.issuer, patch.subject),
        tenant=tenant,
        issuer=patch.issuer,
        subject=patch.subject,
        enabled=True,
        reason="",
        off_by_platform=False,
        at=None,
    )
