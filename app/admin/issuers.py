"""…/issuers, of one tenant: whose tokens it believes."""

import secrets
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from app.admin.conditions import AskedState, tagged
from app.admin.context import Access, IssuerContext, Issuers, MayManage, MayRead
from app.admin.idempotency import ONCE
from app.admin.issuer_schemas import IssuerAnswer, IssuerBody, IssuerPatch
from app.admin.paging import AskedPage, Page
from app.admin.route import AdminRoute
from app.auth.outbound import UrlRefused
from app.auth.policy import is_platform_scope, may_grant, may_revoke
from app.auth.tokens import place_of
from app.domain import DEFAULT_TENANT, Scope
from app.errors import Forbidden, InvalidRequest, NotFound
from app.http.problems import responses
from app.storage.acts import Act
from app.storage.issuers import Issuer

router = APIRouter(route_class=AdminRoute, tags=["issuers"])

IssuerId = Annotated[str, Path(description="The issuer's id, as in the answer to POST.")]

_STORED = "*" * 32  # stands for the secret that is sealed already, when a patch is checked as a whole


@router.post("", status_code=201, dependencies=[ONCE], responses=responses(409))
async def create_issuer(access: MayManage, issuers: Issuers, body: IssuerBody, response: Response) -> IssuerAnswer:
    """Names an issuer whose tokens open this tenant, as far as `max_scopes` goes."""
    _require_grant(access, body.max_scopes)
    _require_fetchable(issuers, body)
    issuer = _record(access, body, secrets.token_hex(8))
    issuer = await issuers.repository.create(
        access.tenant, _sealed(issuers, issuer, body), act=_act(access, "issuer.create", issuer)
    )
    _tell(access, issuer)
    response.headers["Location"] = f"/api/v1/tenants/{issuer.tenant}/issuers/{issuer.id}"
    return tagged(response, IssuerAnswer.of(issuer))


@router.get("")
async def list_issuers(access: MayRead, issuers: Issuers, asked: AskedPage) -> Page[IssuerAnswer]:
    """The tenant's issuers, by id."""
    found = await issuers.repository.list(access.tenant, after=asked.after, limit=asked.fetch)
    return asked.page(found, lambda issuer: issuer.id, IssuerAnswer.of)


@router.get("/{issuer}")
async def get_issuer(access: MayRead, issuers: Issuers, issuer: IssuerId, response: Response) -> IssuerAnswer:
    """One issuer."""
    return tagged(response, IssuerAnswer.of(await _find(access, issuers, issuer)))


@router.patch("/{issuer}", responses=responses(409, 412))
async def change_issuer(
    access: MayManage,
    issuers: Issuers,
    issuer: IssuerId,
    patch: IssuerPatch,
    response: Response,
    if_match: AskedState,
) -> IssuerAnswer:
    """Changes an issuer. Its tokens are looked at again, and sessions that they opened end."""
    found = await _find(access, issuers, issuer)
    if_match.require(IssuerAnswer.of(found))
    body = patched(found, patch)
    # Both: who may not confer what the issuer can must not give it keys of their own either.
    _require_grant(access, {*found.max_scopes, *body.max_scopes})
    _require_fetchable(issuers, body)
    changed = replace(_record(access, body, found.id), created_at=found.created_at, version=found.version)
    if patch.secret is None and body.secret is not None:
        changed = replace(changed, sealed_secret=found.sealed_secret)
    else:
        changed = _sealed(issuers, changed, body)
    if changed != found:
        act = _act(access, "issuer.change", changed)
        with if_match.still():
            changed = await issuers.repository.replace(access.tenant, changed, act=act)
        _tell(access, changed)
    return tagged(response, IssuerAnswer.of(changed))


@router.delete("/{issuer}", status_code=204, responses=responses(409, 412))
async def delete_issuer(access: MayManage, issuers: Issuers, issuer: IssuerId, if_match: AskedState) -> None:
    """Removes an issuer: its tokens are worth nothing any more, and sessions that they opened end."""
    found = await _find(access, issuers, issuer)
    if not may_revoke(access.principal, access.tenant, found.max_scopes):
        raise Forbidden([Scope.PLATFORM_ADMIN])
    if_match.require(IssuerAnswer.of(found))
    version = found.version if if_match.is_given else None
    with if_match.still():
        act = _act(access, "issuer.delete", found)
        await issuers.repository.delete(access.tenant, found.id, version=version, act=act)
    _tell(access, found)


async def _find(access: Access, issuers: IssuerContext, issuer_id: str) -> Issuer:
    if not (issuer_id.isascii() and issuer_id.isalnum()):
        raise NotFound("Issuer not found")
    return await issuers.repository.get(access.tenant, issuer_id)


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


def _record(access: Access, body: IssuerBody, issuer_id: str) -> Issuer:
    return Issuer(
        id=issuer_id,
        tenant=access.tenant,
        issuer=body.issuer,
        algorithms=tuple(dict.fromkeys(body.algorithms)),
        audience=tuple(body.audience),
        claims=body.claims.model_dump(),
        max_scopes=frozenset(body.max_scopes),
        created_at=access.admin.now(),
        jwks_url=body.jwks_url,
        discovery_url=body.discovery_url,
    )


def _sealed(issuers: IssuerContext, issuer: Issuer, body: IssuerBody) -> Issuer:
    if body.secret is None:
        return issuer
    place = place_of(issuer.tenant, issuer.issuer, issuer.id)
    return replace(issuer, sealed_secret=issuers.sealer.seal(body.secret.encode(), place))


def _act(access: Access, action: str, issuer: Issuer) -> Act:
    return access.act(action, f"issuers/{issuer.id}", issuer.issuer)


def _tell(access: Access, issuer: Issuer) -> None:
    access.admin.authenticator.forget_issuer(issuer.tenant, issuer.issuer)
    access.admin.effects.issuer_changed(issuer.tenant, issuer.issuer)


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
        "secret": None if issuer.sealed_secret is None else _STORED,
    }
    changes = patch.model_dump(exclude_unset=True)
    if changes.get("claims"):
        changes["claims"] = _without_nulls({**issuer.claims, **changes["claims"]})
    try:
        return IssuerBody.model_validate(_without_nulls({**members, **changes}))
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_input=False)]
        raise RequestValidationError(errors) from None


def _without_nulls(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
