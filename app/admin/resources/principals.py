"""…/principals, of one tenant: the subjects of tokens that are switched off.

The principal is in the body, because a path cannot contain all characters of a subject.
"""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Self

from fastapi import Response
from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from app.admin._conditions import AskedState, tagged
from app.admin._paging import AskedPage, Page
from app.admin._route import ResourceRouter
from app.admin._switches import Switch, switched
from app.admin.audit_changes import changes_of
from app.admin.context import Access, MayManage, MayRead
from app.admin.schemas.fields import SwitchPatch, one_line
from app.auth.issuer_rules import MAX_ISSUER, is_issuer
from app.auth.policy import is_platform_admin
from app.auth.token_rules import MAX_SUBJECT
from app.domain import DEFAULT_TENANT, KEY_ISSUER, Scope
from app.errors import Conflict, Forbidden, InvalidRequest
from app.http.problems import responses
from app.storage.access.switches import PrincipalOff, principal_id

router = ResourceRouter(tags=["principals"])

_ON = Switch(True, "")


class PrincipalPatch(SwitchPatch):
    """The principal, and a merge patch."""

    issuer: Annotated[str, StringConstraints(min_length=1, max_length=MAX_ISSUER), AfterValidator(one_line)] = Field(
        description="The `iss` of the tokens, as in the list of sessions."
    )
    subject: Annotated[str, StringConstraints(min_length=1, max_length=MAX_SUBJECT), AfterValidator(one_line)]


class PrincipalAnswer(BaseModel):
    """A principal."""

    id: str = Field(description="Its id in the audit trail, after `principals/`.")
    tenant: str
    issuer: str
    subject: str
    enabled: bool
    reason: str
    off_by_platform: bool = Field(description="Only a platform administrator can switch it on again.")
    at: datetime | None = Field(description="When it was switched off; null: it is on.")

    @classmethod
    def of(cls, off: PrincipalOff) -> Self:
        return cls(id=off.id, enabled=False, **asdict(off))


@router.get("/principals")
async def list_principals(access: MayRead, asked: AskedPage) -> Page[PrincipalAnswer]:
    """The tenant's principals that are switched off, by id. Only their issuer knows the others; keys are listed under
    `keys`."""
    found = await access.admin.switches.list(access.tenant, after=asked.after, limit=asked.fetch)
    return asked.page(found, lambda each: each.id, PrincipalAnswer.of)


@router.patch("/principals", responses=responses(409, 412))
async def change_principal(
    access: MayManage, patch: PrincipalPatch, response: Response, if_match: AskedState
) -> PrincipalAnswer:
    """Switches a principal off or on again, whether or not it has ever signed in. Off, its sessions end within a second
    and its tokens are refused. At most 1,000 per tenant can be off."""
    _require_reach(access, patch)
    who = (access.tenant, patch.issuer, patch.subject)
    old = new = await access.admin.switches.find(*who)
    if_match.require(_shown(who, old))
    was = _ON if old is None else Switch(False, old.reason, old.off_by_platform)
    switch = switched(access, was, patch)
    if not switch.enabled and who == access.principal.identity:
        raise Conflict("you cannot switch yourself off; somebody else must do it")
    if switch != was:
        at = access.admin.now() if old is None else old.at
        off = PrincipalOff(*who, switch.reason, switch.off_by_platform, at)
        new = None if switch.enabled else off
        changes = changes_of(_shown(who, old), _shown(who, new))
        act = access.act("principal.change", f"principals/{off.id}", f"{off.issuer} {off.subject}", changes=changes)
        with if_match.still():
            await access.admin.switches.change(old, new, act=act)
    return tagged(response, _shown(who, new))


def _require_reach(access: Access, patch: PrincipalPatch) -> None:
    if patch.issuer == KEY_ISSUER:
        raise InvalidRequest("API keys are switched off with PATCH …/keys/{key}", field="issuer")
    if not is_issuer(patch.issuer):
        raise InvalidRequest("must be the `iss` of tokens, as in the list of sessions", field="issuer")
    # Only the issuer knows the scopes of its tokens: the principal may be a platform administrator.
    if access.tenant == DEFAULT_TENANT and not is_platform_admin(access.principal):
        raise Forbidden([Scope.PLATFORM_ADMIN])


def _shown(who: tuple[str, str, str], off: PrincipalOff | None) -> PrincipalAnswer:
    if off is not None:
        return PrincipalAnswer.of(off)
    tenant, issuer, subject = who
    on = {"enabled": True, "reason": "", "off_by_platform": False, "at": None}
    return PrincipalAnswer(id=principal_id(issuer, subject), tenant=tenant, issuer=issuer, subject=subject, **on)
