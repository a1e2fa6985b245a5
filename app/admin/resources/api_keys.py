"""…/keys, of one tenant."""

from dataclasses import asdict, replace
from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter, Path, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field

from app.admin.changes import changes_of
from app.admin.conditions import AskedState, tagged
from app.admin.context import Access, MayManage, MayRead
from app.admin.idempotency import ONCE
from app.admin.paging import AskedPage, Page
from app.admin.route import AdminRoute
from app.admin.schemas.api_keys import DEFAULT_KEY_LIFE, MAX_KEY_LIFE, KeyAnswer, KeyBody, KeyPatch, NewKeyAnswer
from app.admin.switches import Switch, switched
from app.auth.api_keys import ISSUER
from app.auth.credential_uses import MAX_ADDRESSES, MAX_PRINCIPALS
from app.auth.policy import is_platform_scope, may_grant, may_revoke
from app.domain import DEFAULT_TENANT, Scope
from app.errors import Conflict, Disabled, Forbidden, InvalidRequest, NotFound
from app.http.problems import responses
from app.storage import ApiKey
from app.this_node.listing import Gathered
from app.this_node.views import AddressUse

router = APIRouter(route_class=AdminRoute, tags=["keys"])

MAX_SHOWN = 200  # addresses, of all nodes

KeyId = Annotated[str, Path(description="The key's id: its 8 characters after `tlk_`.")]


class KeyUse(BaseModel):
    """An address from which a key was used, at one node."""

    address: str = Field(description="Of the client; behind TRUSTED_PROXIES the one that the proxy names.")
    requests: int
    first_at: datetime
    last_at: datetime
    node: str


class ShownKey(KeyAnswer):
    """A key, and from where it was used."""

    used_from: list[KeyUse] = Field(
        description=f"What the nodes remember since they started, the last use first: {MAX_ADDRESSES} addresses each, "
        f"of {MAX_PRINCIPALS:,} principals. A request counts at the node that has let it in."
    )
    silent_nodes: list[str] = Field(description="Nodes that did not answer within a second: what they know is missing.")

    @classmethod
    def shown(cls, record: ApiKey, uses: Gathered[AddressUse]) -> Self:
        """Shows the value, and the last MAX_SHOWN uses of it."""
        last_first = sorted(uses.rows, key=lambda use: (use.last_at, use.first_at), reverse=True)
        return cls(
            **KeyAnswer.of(record).model_dump(),
            used_from=[KeyUse(**asdict(use)) for use in last_first[:MAX_SHOWN]],
            silent_nodes=list(uses.silent),
        )


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
    changes = changes_of(None, KeyAnswer.of(key))
    act = access.act("key.create", f"keys/{key.id}", detail=" ".join(sorted(scopes)), changes=changes)
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
async def get_key(access: MayRead, key: KeyId, response: Response) -> ShownKey:
    """One key, and from which addresses it was used at which node. The tag is that of the key: use does not change
    it."""
    found = await _find(access, key)
    tagged(response, KeyAnswer.of(found))
    return ShownKey.shown(found, await access.admin.node.credential_uses((found.tenant, ISSUER, found.id)))


@router.patch("/{key}", responses=responses(409, 412))
async def change_key(
    access: MayManage, key: KeyId, patch: KeyPatch, response: Response, if_match: AskedState
) -> KeyAnswer:
    """Switches a key off: its sessions end within a second on every node, and it opens nothing until it is on again.
    Nobody switches off the key that he uses. What the platform has switched off the platform switches on."""
    found = await _find(access, key)
    if_match.require(KeyAnswer.of(found))
    switch = switched(access, Switch(found.enabled, found.reason, found.off_by_platform), patch)
    changed = replace(found, enabled=switch.enabled, reason=switch.reason, off_by_platform=switch.off_by_platform)
    if changed == found:
        return tagged(response, KeyAnswer.of(found))
    _require_reach(access, found, switch)
    detail, changes = " ".join(sorted(patch.model_fields_set)), changes_of(KeyAnswer.of(found), KeyAnswer.of(changed))
    with if_match.still():
        act = access.act("key.change", f"keys/{found.id}", detail, changes=changes)
        await access.admin.keys.switch(found, changed, act=act)
    off = None if changed.enabled else Disabled("key", changed.id, changed.reason)
    access.admin.effects.principal_changed((found.tenant, ISSUER, found.id), off)
    return tagged(response, KeyAnswer.of(changed))


def _require_reach(access: Access, key: ApiKey, switch: Switch) -> None:
    if not may_revoke(access.principal, access.tenant, key.scopes):
        raise Forbidden([Scope.PLATFORM_ADMIN])
    if key.revoked_at is not None:
        raise Conflict("the key is revoked, for ever; make another one")
    if not switch.enabled and (key.tenant, ISSUER, key.id) == access.principal.identity:
        raise Conflict("this is the key that you use; switch it off with another one, or revoke it")


@router.delete("/{key}", status_code=204, responses=responses(412))
async def revoke_key(access: MayManage, key: KeyId, if_match: AskedState) -> None:
    """Makes a key worthless and ends its holder's sessions. The key stays in the list, with its date."""
    found = await _find(access, key)
    if not may_revoke(access.principal, access.tenant, found.scopes):
        raise Forbidden([Scope.PLATFORM_ADMIN])
    if_match.require(KeyAnswer.of(found))
    now = access.admin.now()
    changes = changes_of(KeyAnswer.of(found), KeyAnswer.of(replace(found, revoked_at=found.revoked_at or now)))
    act = access.act("key.revoke", f"keys/{found.id}", changes=changes)
    await access.admin.keys.revoke(access.tenant, found.id, now, act=act)
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
