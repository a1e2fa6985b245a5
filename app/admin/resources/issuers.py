"""…/issuers, of one tenant: whose tokens it believes."""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Path, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from app.admin.changes import changes_of_issuer
from app.admin.conditions import AskedState, tagged
from app.admin.context import Access, IssuerContext, Issuers, MayManage, MayRead
from app.admin.idempotency import ONCE
from app.admin.paging import AskedPage, Page
from app.admin.route import AdminRoute
from app.admin.schemas.issuers import IssuerAnswer, IssuerBody, IssuerMade, IssuerPatch, TenantsBody
from app.auth.outbound import UrlRefused
from app.auth.policy import is_platform_admin, is_platform_scope, may_grant, may_revoke
from app.auth.tokens import place_of, source_of
from app.domain import DEFAULT_TENANT, Scope
from app.errors import Forbidden, InvalidRequest, NotFound
from app.http.problems import responses
from app.storage.audit_act import Act
from app.storage.issuers import Issuer

router = APIRouter(route_class=AdminRoute, tags=["issuers"])

IssuerId = Annotated[str, Path(description="The issuer's id, as in the answer to POST.")]

LIST_CHANGED = "issuer.tenants"  # of an issuer of the platform, which opens `default` as before
LOOK_S = 5.0  # for the keys of an issuer that is being made
_STORED = "*" * 32  # stands for the secret that is sealed already, when a patch is checked as a whole


@router.post("", status_code=201, dependencies=[ONCE], responses=responses(409))
async def create_issuer(access: MayManage, issuers: Issuers, body: IssuerBody, response: Response) -> IssuerMade:
    """Names an issuer whose tokens open this tenant, as far as `max_scopes` goes.

    Its keys are fetched once, to see whether they can be: if not, it is made nevertheless, and `warnings` say why.
    """
    _require_grant(access, body.max_scopes)
    if body.tenants is not None:
        _require_platform(access)
    _require_fetchable(issuers, body)
    issuer = _record(access, body, secrets.token_hex(8))
    issuer = _sealed(issuers, issuer, body)
    await _require_tenants(access, issuer)
    warnings = await _warnings(access, issuers, issuer)
    acts = _acts(access, "issuer.create", None, issuer)
    issuer = await issuers.repository.create(access.tenant, issuer, acts=acts)
    _tell(access, acts)
    response.headers["Location"] = f"/api/v1/tenants/{issuer.tenant}/issuers/{issuer.id}"
    return IssuerMade.with_warnings(tagged(response, IssuerAnswer.of(issuer)), warnings)


@router.get("")
async def list_issuers(access: MayRead, issuers: Issuers, asked: AskedPage) -> Page[IssuerAnswer]:
    """The tenant's issuers, by id."""
    found = await issuers.repository.list(access.tenant, after=asked.after, limit=asked.fetch)
    return asked.page([_seen(access, each) for each in found], lambda issuer: issuer.id, IssuerAnswer.of)


@router.get("/{issuer}")
async def get_issuer(access: MayRead, issuers: Issuers, issuer: IssuerId, response: Response) -> IssuerAnswer:
    """One issuer."""
    return tagged(response, IssuerAnswer.of(await find_issuer(access, issuers, issuer)))


@router.patch("/{issuer}", responses=responses(409, 412))
async def change_issuer(
    access: MayManage,
    issuers: Issuers,
    issuer: IssuerId,
    patch: IssuerPatch,
    response: Response,
    if_match: AskedState,
) -> IssuerMade:
    """Changes an issuer. Its tokens are looked at again, and sessions that they opened end.

    Where its keys come from somewhere else now, `warnings` say whether they can be had.
    """
    found = await find_issuer(access, issuers, issuer)
    if found.tenants is not None:
        _require_platform(access)
    if_match.require(IssuerAnswer.of(found))
    body = patched(found, patch)
    if (body.tenants is None) != (found.tenants is None):
        raise InvalidRequest("an issuer becomes none of the platform, nor ceases to be: make another", field="tenants")
    # Both: who may not confer what the issuer can must not give it keys of their own either.
    _require_grant(access, {*found.max_scopes, *body.max_scopes})
    _require_fetchable(issuers, body)
    changed = replace(_record(access, body, found.id), created_at=found.created_at, version=found.version)
    if patch.secret is None and body.secret is not None:
        changed = replace(changed, sealed_secret=found.sealed_secret)
    else:
        changed = _sealed(issuers, changed, body)
    warnings = list[str]()
    if changed != found:
        await _require_tenants(access, changed)
        if _keys_of(changed) != _keys_of(found):
            warnings = await _warnings(access, issuers, changed)
        acts = _acts(access, "issuer.change", found, changed)
        with if_match.still():
            changed = await issuers.repository.replace(access.tenant, changed, acts=acts)
        _tell(access, acts)
    return IssuerMade.with_warnings(tagged(response, IssuerAnswer.of(changed)), warnings)


@router.delete("/{issuer}", status_code=204, responses=responses(409, 412))
async def delete_issuer(access: MayManage, issuers: Issuers, issuer: IssuerId, if_match: AskedState) -> None:
    """Removes an issuer: its tokens are worth nothing any more, and sessions that they opened end."""
    found = await find_issuer(access, issuers, issuer)
    if not may_revoke(access.principal, access.tenant, found.max_scopes):
        raise Forbidden([Scope.PLATFORM_ADMIN])
    if found.tenants is not None:
        _require_platform(access)
    if_match.require(IssuerAnswer.of(found))
    version = found.version if if_match.is_given else None
    acts = _acts(access, "issuer.delete", found, None)
    with if_match.still():
        await issuers.repository.delete(access.tenant, found.id, version=version, acts=acts)
    _tell(access, acts)


async def find_issuer(access: Access, issuers: IssuerContext, issuer_id: str) -> Issuer:
    """The tenant's issuer of this id.

    Raises:
        NotFound: there is none.
    """
    if not (issuer_id.isascii() and issuer_id.isalnum()):
        raise NotFound("Issuer not found")
    return _seen(access, await issuers.repository.get(access.tenant, issuer_id))


def sees_all(access: Access) -> bool:
    """Whether who asks sees the whole list of an issuer of the platform: else what it says of the tenant."""
    return access.tenant == DEFAULT_TENANT and is_platform_admin(access.principal)


def _seen(access: Access, issuer: Issuer) -> Issuer:
    return issuer if sees_all(access) else issuer.seen_from(access.tenant)


def _require_platform(access: Access) -> None:
    """Issuers of the platform are made and changed where they belong, by who may do everything."""
    if not is_platform_admin(access.principal):
        raise Forbidden([Scope.PLATFORM_ADMIN], held=access.principal.scopes)
    if access.tenant != DEFAULT_TENANT:
        raise InvalidRequest("an issuer with `tenants` is of the platform: it stands below /api/v1/issuers")


async def _require_tenants(access: Access, issuer: Issuer) -> None:
    """The tenants of its list exist; that they still do when it is written is for the database."""
    for tenant in sorted(issuer.opens() - {access.tenant}):
        try:
            await access.admin.tenants.get(tenant)
        except NotFound:
            raise InvalidRequest(f"there is no tenant {tenant}", field="tenants/map") from None


def _require_grant(access: Access, scopes: Iterable[str]) -> None:
    if access.tenant != DEFAULT_TENANT and any(map(is_platform_scope, scopes)):
        raise InvalidRequest("platform scopes exist in the tenant `default` only", field="max_scopes")
    if not may_grant(access.principal, access.tenant, scopes):
        raise Forbidden(sorted(scopes))


def _require_fetchable(issuers: IssuerContext, body: IssuerBody) -> None:
    for name in ("jwks_url", "discovery_url"):
        url = getattr(body, name)
        try:
            if url is not None:
                issuers.check_url(url)
        except UrlRefused as problem:
            raise InvalidRequest(str(problem), field=name) from None


def _keys_of(issuer: Issuer) -> tuple[object, ...]:
    return issuer.jwks_url, issuer.discovery_url, issuer.algorithms


async def _warnings(access: Access, issuers: IssuerContext, issuer: Issuer) -> list[str]:
    """What keeps the issuer's tokens from being believed now. Asked before the change, so that who gives up waiting for
    a slow host has changed nothing."""
    if issuer.sealed_secret is not None:
        return []
    with issuers.checking(access.tenant, "") as is_alone:
        if not is_alone:
            return ["Its keys were not looked at, because another issuer of the tenant is being made; `:check` does."]
        problem: str | None = f"its host does not answer within {LOOK_S:.0f} s"
        with anyio.move_on_after(LOOK_S):
            look = await issuers.check.look(source_of(issuer))
            problem = look.problem(issuer.algorithms)
    return [] if problem is None else [f"No token of this issuer can be believed now: {problem}."]


def _record(access: Access, body: IssuerBody, issuer_id: str) -> Issuer:
    return Issuer(
        id=issuer_id,
        tenant=access.tenant,
        issuer=body.issuer,
        algorithms=tuple(dict.fromkeys(body.algorithms)),
        audience=tuple(body.audience),
        claims=body.claims.kept(),
        max_scopes=frozenset(body.max_scopes),
        created_at=access.admin.now(),
        jwks_url=body.jwks_url,
        discovery_url=body.discovery_url,
        tenants=None if body.tenants is None else body.tenants.served(),
    )


def _sealed(issuers: IssuerContext, issuer: Issuer, body: IssuerBody) -> Issuer:
    if body.secret is None:
        return issuer
    place = place_of(issuer.tenant, issuer.issuer, issuer.id)
    return replace(issuer, sealed_secret=issuers.sealer.seal(body.secret.encode(), place))


def _acts(access: Access, action: str, old: Issuer | None, new: Issuer | None) -> list[Act]:
    """What the change is to the trail of each tenant that it concerns; that of the issuer's own tenant has all of it.

    Nodes that read `issuer.change` end what the issuer has opened in the act's tenant. So a change of one entry of
    a list is told to the tenant that the entry names, and has another word in the trail of `default`.
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
    """The tenants in which the change makes a difference to somebody who is in, or to the keys that are remembered.

    Two cases: if only the list is another one, those whose entries are; else all that it opened or opens now, and
    its own.
    """
    before, after = (each.opens() | {each.tenant} if each else frozenset[str]() for each in (old, new))
    if old is None or new is None or replace(old, tenants=None) != replace(new, tenants=None):
        return before | after
    return frozenset(each for each in before | after if old.seen_from(each) != new.seen_from(each))


def _tell(access: Access, acts: Iterable[Act]) -> None:
    for act in acts:
        if act.action != LIST_CHANGED:
            access.admin.authenticator.forget_issuer(act.tenant, act.detail)
            access.admin.effects.issuer_changed(act.tenant, act.detail)


def patched(issuer: Issuer, patch: IssuerPatch) -> IssuerBody:
    """The issuer with the merge patch applied, checked as a whole.

    Raises:
        RequestValidationError: together they are no valid issuer.
    """
    members: dict[str, Any] = {name: getattr(issuer, name) for name in IssuerBody.model_fields if name != "secret"}
    members |= {
        "algorithms": list(issuer.algorithms),
        "audience": list(issuer.audience),
        "max_scopes": sorted(issuer.max_scopes),
        "claims": _merged(issuer.claims, {}),
        "tenants": None if issuer.tenants is None else TenantsBody.of(issuer.tenants).model_dump(),
        "secret": None if issuer.sealed_secret is None else _STORED,
    }
    try:
        return IssuerBody.model_validate(_merged(members, patch.model_dump(exclude_unset=True)))
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_input=False)]
        raise RequestValidationError(errors) from None


def _merged(members: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """RFC 7396: null takes a member away, an object goes into the one that is there."""
    merged = {name: value for name, value in members.items() if value is not None}
    for name, value in changes.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            before = merged.get(name)
            merged[name] = _merged(before if isinstance(before, Mapping) else {}, value)
        else:
            merged[name] = value
    return merged
