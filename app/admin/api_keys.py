"""…/keys, of one tenant."""

from typing import Annotated

from fastapi import APIRouter, Path, Response
from fastapi.exceptions import RequestValidationError

from app.admin.conditions import AskedState, tagged
from app.admin.context import Access, MayManage, MayRead
from app.admin.idempotency import ONCE
from app.admin.paging import AskedPage, Page
from app.admin.route import AdminRoute
from app.admin.schemas import DEFAULT_KEY_LIFE, MAX_KEY_LIFE, KeyAnswer, KeyBody, NewKeyAnswer
from app.auth.api_keys import ISSUER
from app.auth.policy import is_platform_scope, may_grant, may_revoke
from app.domain import DEFAULT_TENANT, Scope
from app.errors import Forbidden, InvalidRequest, NotFound
from app.http.problems import responses
from app.storage import ApiKey

router = APIRouter(route_class=AdminRoute, tags=["keys"])

KeyId = Annotated[str, Path(description="The key's id: its 8 characters after `tlk_`.")]


@router.post("", status_code=201, dependencies=[ONCE], responses=responses(409))
async def create_key(access: MayManage, body: KeyBody, response: Response) -> NewKeyAnswer:
    """Makes a key. The answer is the only place where the key itself appears; with an `Idempotency-Key` also in the
    answers to its repetitions, which the gateway keeps sealed for a day."""
    scopes = frozenset(body.scopes)
    if access.tenant != DEFAULT_TENANT and any(map(is_platform_scope, scopes)):
        raise InvalidRequest("platform scopes exist in the tenant `default` only", field="scopes")
    if not may_grant(access.principal, access.tenant, scopes):
        raise Forbidden(sorted(scopes))
    new = access.admin.key_maker.make()
    key = _record(access, body, new.id, new.digest, new.pepper_version)
    act = access.act("key.create", f"keys/{key.id}", detail=" ".join(sorted(scopes)))
    await access.admin.keys.create(access.tenant, key, act=act)
    response.headers.update({
        "Location": f"/api/v1/tenants/{key.tenant}/keys/{key.id}",
        "Cache-Control": "no-store",
    })  # fmt: skip
    return tagged(response, NewKeyAnswer.of(key, key=new.text))


@router.get("")
async def list_keys(access: MayRead, asked: AskedPage) -> Page[KeyAnswer]:
    """The tenant's keys by id, revoked and expired ones included."""
    found = await access.admin.keys.list(access.tenant, after=asked.after, limit=asked.fetch)
    return asked.page(found, lambda key: key.id, KeyAnswer.of)


@router.get("/{key}")
async def get_key(access: MayRead, key: KeyId, response: Response) -> KeyAnswer:
    """One key."""
    return tagged(response, KeyAnswer.of(await _find(access, key)))


@router.delete("/{key}", status_code=204, responses=responses(412))
async def revoke_key(access: MayManage, key: KeyId, if_match: AskedState) -> None:
    """Makes a key worthless and ends its holder's sessions. The key stays in the list, with its date."""
    found = await _find(access, key)
    if not may_revoke(access.principal, access.tenant, found.scopes):
        raise Forbidden([Scope.PLATFORM_ADMIN])
    if_match.require(KeyAnswer.of(found))
    act = access.act("key.revoke", f"keys/{found.id}")
    await access.admin.keys.revoke(access.tenant, found.id, act.at, act=act)
    identity = (found.tenant, ISSUER, found.id)
    access.admin.authenticator.forget(identity)
    access.admin.effects.key_revoked(identity)


async def _find(access: Access, key_id: str) -> ApiKey:
    if not (key_id.isascii() and key_id.isalnum()):
        raise NotFound("Key not found")
    return await access.admin.keys.get(access.tenant, key_id)


def _record(access: Access, body: KeyBody, key_id: str, digest: bytes, pepper_version: int) -> ApiKey:
    now = access.admin.now()
    expires_at = body.expires_at if "expires_at" in body.model_fields_set else now + DEFAULT_KEY_LIFE
    if expires_at is not None and not now < expires_at <= now + MAX_KEY_LIFE:
        message = "must be in the future, and within ten years"
        raise RequestValidationError([{"type": "future", "loc": ("body", "expires_at"), "msg": message}])
    return ApiKey(key_id, access.tenant, body.name, digest, pepper_version, frozenset(body.scopes), now, expires_at)
