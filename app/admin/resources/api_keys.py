"""…/keys, of one tenant."""

from dataclasses import replace
from datetime import datetime
from typing import Annotated

from fastapi import Path, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field

from app.admin._conditions import AskedState, tagged
from app.admin._paging import AskedPage, Page
from app.admin._route import ResourceRouter
from app.admin._switches import Switch, switched
from app.admin.audit_changes import changes_of
from app.admin.context import Access, MayManage, MayRead
from app.admin.idempotency import ONCE
from app.admin.schemas.api_keys import DEFAULT_KEY_LIFE, MAX_KEY_LIFE, KeyAnswer, KeyBody, KeyPatch, NewKeyAnswer
from app.admin.schemas.fields import SILENT, Answer
from app.auth.api_keys import NewKey
from app.auth.credential_uses import MAX_ADDRESSES, MAX_PRINCIPALS
from app.auth.policy import may_revoke
from app.cluster.node_status.questions import CREDENTIAL_USES
from app.domain import KEY_ISSUER, ApiKey, Scope
from app.errors import Conflict, Forbidden, NotFound
from app.http.problems import responses

router = ResourceRouter(tags=["keys"])

MAX_SHOWN = 200  # addresses, of all nodes

KeyId = Annotated[str, Path(description="The key's id: its 8 characters after `tlk_`.")]


class KeyUse(Answer):
    """An address from which a key was used, at one node."""

    address: str = Field(description="Of the client; behind TRUSTED_PROXIES the address that the proxy names.")
    requests: int
    first_at: datetime
    last_at: datetime
    node: str


class ShownKey(KeyAnswer):
    """A key, and the addresses from which it was used."""

    used_from: list[KeyUse] = Field(
        description=f"Since the start of each node, latest use first: at most {MAX_ADDRESSES} addresses per node, of "
        f"{MAX_PRINCIPALS:,} principals. A request counts at the node that has authenticated it."
    )
    silent_nodes: list[str] = Field(description=SILENT)


@router.post("/keys", status_code=201, dependencies=[ONCE], responses=responses(409))
async def create_key(access: MayManage, body: KeyBody, response: Response) -> NewKeyAnswer:
    """Creates a key. Only this answer contains the key itself; with an `Idempotency-Key`, so do the answers to its
    repetitions, which the gateway keeps encrypted for a day."""
    access.require_grant(frozenset(body.scopes), "scopes")
    new = access.admin.key_maker.make()
    key = _record(access, body, new)
    answer = KeyAnswer.of(key)
    act = access.act("key.create", f"keys/{key.id}", " ".join(answer.scopes), changes=changes_of(None, answer))
    await access.admin.keys.create(access.tenant, key, act=act)
    response.headers.update({
        "Location": f"/api/v1/tenants/{key.tenant}/keys/{key.id}",
        "Cache-Control": "no-store",
    })  # fmt: skip
    return tagged(response, NewKeyAnswer(**dict(answer), key=new.text))


@router.get("/keys")
async def list_keys(access: MayRead, asked: AskedPage) -> Page[KeyAnswer]:
    """The tenant's keys by id, including revoked and expired ones."""
    found = await access.admin.keys.list(access.tenant, after=asked.after, limit=asked.fetch)
    return asked.page(found, lambda key: key.id, KeyAnswer.of)


@router.get("/keys/{key}")
async def get_key(access: MayRead, key: KeyId, response: Response) -> ShownKey:
    """One key, and from which addresses it was used at which node. Use does not change its tag."""
    found = await _find(access, key)
    answer = tagged(response, KeyAnswer.of(found))
    uses = await access.admin.node.ask(CREDENTIAL_USES, (found.tenant, KEY_ISSUER, found.id))
    last_first = sorted(uses.rows, key=lambda use: (use.last_at, use.first_at), reverse=True)
    used_from = [KeyUse.of(use) for use in last_first[:MAX_SHOWN]]
    return ShownKey(**dict(answer), used_from=used_from, silent_nodes=list(uses.silent))


@router.patch("/keys/{key}", responses=responses(409, 412))
async def change_key(
    access: MayManage, key: KeyId, patch: KeyPatch, response: Response, if_match: AskedState
) -> KeyAnswer:
    """Switches a key off or on again. Off, its sessions end within a second on every node, and it cannot be used. A key
    cannot switch itself off. Only the platform switches on what the platform has switched off."""
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
    return tagged(response, KeyAnswer.of(changed))


def _require_reach(access: Access, key: ApiKey, switch: Switch) -> None:
    if not may_revoke(access.principal, access.tenant, key.scopes):
        raise Forbidden([Scope.PLATFORM_ADMIN])
    if key.revoked_at is not None:
        raise Conflict("the key is revoked for ever; create another one")
    if not switch.enabled and (key.tenant, KEY_ISSUER, key.id) == access.principal.identity:
        raise Conflict("you are using this key; switch it off with another one, or revoke it")


@router.delete("/keys/{key}", status_code=204, responses=responses(412))
async def revoke_key(access: MayManage, key: KeyId, if_match: AskedState) -> None:
    """Revokes a key for ever and ends its sessions. The key stays in the list, with the time of its revocation."""
    found = await _find(access, key)
    if not may_revoke(access.principal, access.tenant, found.scopes):
        raise Forbidden([Scope.PLATFORM_ADMIN])
    if_match.require(KeyAnswer.of(found))
    now = access.admin.now()
    changes = changes_of(KeyAnswer.of(found), KeyAnswer.of(replace(found, revoked_at=now)))
    act = access.act("key.revoke", f"keys/{found.id}", changes=changes)
    await access.admin.keys.revoke(access.tenant, found.id, now, act=act)


async def _find(access: Access, key_id: str) -> ApiKey:
    if not (key_id.isascii() and key_id.isalnum()):
        raise NotFound("Key not found")
    return await access.admin.keys.get(access.tenant, key_id)


def _record(access: Access, body: KeyBody, new: NewKey) -> ApiKey:
    now = access.admin.now()
    expires_at = body.expires_at if "expires_at" in body.model_fields_set else now + DEFAULT_KEY_LIFE
    if expires_at is not None and not now < expires_at <= now + MAX_KEY_LIFE:
        message = "must be in the future, and within ten years"
        raise RequestValidationError([{"type": "future", "loc": ("body", "expires_at"), "msg": message}])
    scopes = frozenset(body.scopes)
    return ApiKey(new.id, access.tenant, body.name, new.digest, new.pepper_version, scopes, now, expires_at)
