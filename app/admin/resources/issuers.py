"""…/issuers, of one tenant: the issuers whose tokens it accepts."""

import secrets
from dataclasses import replace
from typing import Annotated

import anyio
from fastapi import Path, Response

from app.admin._conditions import AskedState, tagged
from app.admin._merge_patch import patched
from app.admin._paging import AskedPage, Page
from app.admin._route import ResourceRouter
from app.admin.audit_changes import changes_of_issuer
from app.admin.context import Access, MayManage, MayRead
from app.admin.idempotency import ONCE
from app.admin.schemas.issuers import IssuerAnswer, IssuerBody, IssuerMade, IssuerPatch
from app.auth.outbound_urls import UrlRefused
from app.auth.policy import is_platform_admin, may_revoke
from app.auth.provider_client import client_secret_place
from app.auth.tokens import place_of, source_of
from app.domain import DEFAULT_TENANT, Issuer, Scope
from app.errors import Conflict, Forbidden, InvalidRequest, NotFound
from app.http.problems import responses
from app.storage.audit import Act

router = ResourceRouter(tags=["issuers"])

IssuerId = Annotated[str, Path(description="The issuer's id, as in the answer to POST.")]

LIST_CHANGED = "issuer.tenants"  # of an issuer of the platform; nothing changes for `default`
LOOK_S = 5.0  # for fetching the keys of a new or changed issuer
_STORED = "*" * 32  # placeholder for the stored secret when a patched body is validated


@router.post("/issuers", status_code=201, dependencies=[ONCE], responses=responses(409))
async def create_issuer(access: MayManage, body: IssuerBody, response: Response) -> IssuerMade:
    """Adds an issuer whose tokens are accepted in this tenant, with `max_scopes` at most.

    Its keys are fetched once as a test. If that fails it is created nevertheless, and `warnings` say why.
    """
    access.require_grant(body.max_scopes, "max_scopes")
    if body.tenants is not None:
        require_platform(access)
    _require_fetchable(access, body)
    issuer = _sealed(access, _record(access, body, secrets.token_hex(8)), body)
    issuer = _client_sealed(access, issuer, body)
    await _require_tenants(access, issuer)
    warnings = await _warnings(access, issuer)
    acts = _acts(access, "issuer.create", None, issuer)
    issuer = await access.admin.issuers.create(access.tenant, issuer, acts=acts)
    response.headers["Location"] = f"/api/v1/tenants/{issuer.tenant}/issuers/{issuer.id}"
    return IssuerMade(**dict(tagged(response, IssuerAnswer.of(issuer))), warnings=warnings)


@router.get("/issuers")
async def list_issuers(access: MayRead, asked: AskedPage) -> Page[IssuerAnswer]:
    """The tenant's issuers, by id."""
    found = await access.admin.issuers.list(access.tenant, after=asked.after, limit=asked.fetch)
    return asked.page([_seen(access, each) for each in found], lambda issuer: issuer.id, IssuerAnswer.of)


@router.get("/issuers/{issuer}")
async def get_issuer(access: MayRead, issuer: IssuerId, response: Response) -> IssuerAnswer:
    """One issuer."""
    return tagged(response, IssuerAnswer.of(await find_issuer(access, issuer)))


@router.patch("/issuers/{issuer}", responses=responses(409, 412))
async def change_issuer(
    access: MayManage, issuer: IssuerId, patch: IssuerPatch, response: Response, if_match: AskedState
) -> IssuerMade:
    """Changes an issuer. Its tokens are verified again, and sessions that they opened end.

    If its keys come from another URL now, `warnings` say whether they can be fetched.
    """
    found = await find_issuer(access, issuer)
    if found.tenants is not None:
        require_platform(access)
    if_match.require(IssuerAnswer.of(found))
    body = _patched(found, patch)
    if (body.tenants is None) != (found.tenants is None):
        raise InvalidRequest(
            "`tenants` cannot be added to an issuer or removed from it: create another", field="tenants"
        )
    # Both: whoever may not grant these scopes must not give the issuer keys of their own either.
    access.require_grant({*found.max_scopes, *body.max_scopes}, "max_scopes")
    _require_fetchable(access, body)
    changed = replace(_record(access, body, found.id), created_at=found.created_at, version=found.version)
    changed = _with_secrets(access, changed, body, patch, found)
    warnings = list[str]()
    if changed != found:
        await _require_tenants(access, changed)
        if _keys_of(changed) != _keys_of(found):
            warnings = await _warnings(access, changed)
        acts = _acts(access, "issuer.change", found, changed)
        with if_match.still():
            changed = await access.admin.issuers.replace(access.tenant, changed, acts=acts)
    return IssuerMade(**dict(tagged(response, IssuerAnswer.of(changed))), warnings=warnings)


@router.delete("/issuers/{issuer}", status_code=204, responses=responses(409, 412))
async def delete_issuer(access: MayManage, issuer: IssuerId, if_match: AskedState) -> None:
    """Removes an issuer: its tokens are refused, and sessions that they opened end."""
    found = await find_issuer(access, issuer)
    if not may_revoke(access.principal, access.tenant, found.max_scopes):
        raise Forbidden([Scope.PLATFORM_ADMIN])
    if found.tenants is not None:
        require_platform(access)
    if_match.require(IssuerAnswer.of(found))
    acts = _acts(access, "issuer.delete", found, None)
    with if_match.still():
        await access.admin.issuers.delete(access.tenant, found.id, version=if_match.version(found.version), acts=acts)


async def find_issuer(access: Access, issuer_id: str) -> Issuer:
    """Raises NotFound."""
    if not (issuer_id.isascii() and issuer_id.isalnum()):
        raise NotFound("Issuer not found")
    return _seen(access, await access.admin.issuers.get(access.tenant, issuer_id))


def sees_all(access: Access) -> bool:
    """Whether the request may see the whole list of tenants of a platform issuer, or only its own tenant's part."""
    return access.tenant == DEFAULT_TENANT and is_platform_admin(access.principal)


def _seen(access: Access, issuer: Issuer) -> Issuer:
    return issuer if sees_all(access) else issuer.seen_from(access.tenant)


def require_platform(access: Access) -> None:
    """Issuers of the platform belong to the tenant `default` and to platform administrators."""
    if not is_platform_admin(access.principal):
        raise Forbidden([Scope.PLATFORM_ADMIN], held=access.principal.scopes)
    if access.tenant != DEFAULT_TENANT:
        raise InvalidRequest("an issuer with `tenants` belongs to the platform: use /api/v1/issuers")


async def _require_tenants(access: Access, issuer: Issuer) -> None:
    """All tenants of its list must exist. The database checks it again when the issuer is stored."""
    for tenant in sorted(issuer.opens() - {access.tenant}):
        try:
            await access.admin.tenants.get(tenant)
        except NotFound:
            raise InvalidRequest(f"there is no tenant {tenant}", field="tenants/map") from None


def _require_fetchable(access: Access, body: IssuerBody) -> None:
    for name in ("jwks_url", "discovery_url"):
        url = getattr(body, name)
        try:
            if url is not None:
                access.admin.check_url(url)
        except UrlRefused as problem:
            raise InvalidRequest(str(problem), field=name) from None


def _keys_of(issuer: Issuer) -> tuple[object, ...]:
    return issuer.jwks_url, issuer.discovery_url, issuer.algorithms


async def _warnings(access: Access, issuer: Issuer) -> list[str]:
    """Why the issuer's tokens cannot be accepted now. Asked before the change, so that a client that gives up waiting
    for a slow host has changed nothing."""
    if issuer.sealed_secret is not None:
        return []
    problem: str | None = f"its host does not answer within {LOOK_S:.0f} s"
    try:
        with access.alone("issuers", "Its keys were not fetched, because another issuer is being saved; use `:check`."):
            with anyio.move_on_after(LOOK_S):
                keys = await access.admin.issuer_check.fetch_keys(source_of(issuer))
                problem = keys.problem(issuer.algorithms)
    except Conflict as error:
        return [str(error)]
    return [] if problem is None else [f"No token of this issuer can be accepted now: {problem}."]


def _record(access: Access, body: IssuerBody, issuer_id: str) -> Issuer:
    issuer: Issuer = body.made(
        id=issuer_id,
        tenant=access.tenant,
        algorithms=tuple(dict.fromkeys(body.algorithms)),
        claims=body.claims.kept(),
        created_at=access.admin.now(),
        tenants=None if body.tenants is None else body.tenants.served(),
    )
    return issuer


def _with_secrets(access: Access, changed: Issuer, body: IssuerBody, patch: IssuerPatch, found: Issuer) -> Issuer:
    """With those that the patch has, and else those that there are, if they are still wanted.

    Raises InvalidRequest: the client's secret would go to where it was not given for.
    """
    if patch.secret is None and body.secret is not None:
        changed = replace(changed, sealed_secret=found.sealed_secret)
    else:
        changed = _sealed(access, changed, body)
    is_sent = patch.sign_in is not None and patch.sign_in.client_secret is not None
    if is_sent or body.sign_in is None or body.sign_in.client_secret is None:
        return _client_sealed(access, changed, body)
    if changed.discovery_url != found.discovery_url:
        words = "it was given for another `discovery_url`; give it again, or null to remove it"
        raise InvalidRequest(words, field="sign_in/client_secret")
    return replace(changed, sealed_client_secret=found.sealed_client_secret)


def _client_sealed(access: Access, issuer: Issuer, body: IssuerBody) -> Issuer:
    secret = None if body.sign_in is None else body.sign_in.client_secret
    if secret is None:
        return issuer
    sealed = access.admin.sealer.seal(secret.encode(), client_secret_place(issuer))
    return replace(issuer, sealed_client_secret=sealed)


def _sealed(access: Access, issuer: Issuer, body: IssuerBody) -> Issuer:
    if body.secret is None:
        return issuer
    place = place_of(issuer.tenant, issuer.issuer, issuer.id)
    return replace(issuer, sealed_secret=access.admin.sealer.seal(body.secret.encode(), place))


def _acts(access: Access, action: str, old: Issuer | None, new: Issuer | None) -> list[Act]:
    """The acts for the audit trail of each tenant that the change concerns; the issuer's own tenant gets all of it.

    Nodes that read `issuer.change` end the issuer's sessions in the act's tenant. Therefore a change of one entry of
    `tenants` is an `issuer.change` of the tenant of that entry, but an `issuer.tenants` of `default`.
    """
    issuer = new or old
    assert issuer is not None
    tenants = concerned(old, new)
    own = action if issuer.tenant in tenants else LIST_CHANGED
    whole = access.act(own, f"issuers/{issuer.id}", issuer.issuer, changes=changes_of_issuer(old, new))
    acts = [whole]
    for tenant in sorted(tenants - {issuer.tenant}):
        seen = [each.seen_from(tenant) if each and tenant in each.opens() else None for each in (old, new)]
        changes = changes_of_issuer(*seen)
        acts.append(access.act(action, whole.target, issuer.issuer, tenant=tenant, changes=changes))
    return acts


def concerned(old: Issuer | None, new: Issuer | None) -> frozenset[str]:
    """The tenants whose sessions or cached keys the change affects: if only `tenants` has changed, those whose entries
    have; else all old and new ones, and the issuer's own."""
    before, after = (each.opens() | {each.tenant} if each else frozenset[str]() for each in (old, new))
    if old is None or new is None or replace(old, tenants=None) != replace(new, tenants=None):
        return before | after
    return frozenset(each for each in before | after if old.seen_from(each) != new.seen_from(each))


def _patched(issuer: Issuer, patch: IssuerPatch) -> IssuerBody:
    members = IssuerAnswer.of(issuer).model_dump(include=set(IssuerBody.model_fields))
    members["secret"] = None if issuer.sealed_secret is None else _STORED
    if (sign_in := members["sign_in"]) is not None:
        sign_in["client_secret"] = _STORED if sign_in.pop("has_client_secret") else None
    return patched(IssuerBody, members, patch.model_dump(exclude_unset=True))
