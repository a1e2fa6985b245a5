"""…/backends/{backend}:compare and …/issuers/{issuer}:compare: are these the secrets that are stored?

Answers never show secrets; who keeps them in files needs to know whether the gateway still has the same ones. Only
those may ask who may replace them, and each question is in the audit trail: it could be a guess.
"""

import hmac
import json
from collections.abc import Callable, Sequence
from functools import partial

from app.admin._route import ResourceRouter
from app.admin.context import MayManage, MayPerhapsManage
from app.admin.idempotency import ONCE
from app.admin.resources.backends import BackendName, find_removable
from app.admin.resources.issuers import IssuerId, find_issuer, require_platform
from app.admin.schemas.comparisons import BackendComparison, Comparison, IssuerComparison
from app.auth.provider_client import client_secret_place
from app.auth.sealing import SealBroken, Sealer
from app.auth.tokens import place_of
from app.backends.upstreams.upstream_secrets import opened
from app.text.credentials import restored

router = ResourceRouter()


@router.post("/backends/{backend}:compare", dependencies=[ONCE], tags=["backends"])
async def compare_backend(access: MayPerhapsManage, backend: BackendName, body: BackendComparison) -> Comparison:
    """Which of these values of `env`, `headers`, `connect`, `args` and `url` the backend has not. Changes nothing."""
    spec = await find_removable(access, backend)
    of_process = {f"env.{name}": value for name, value in spec.env.items()}
    open_one, values = opened(access.admin.sealer, spec), body.values()
    different = [
        name
        for name, value in values.items()
        if not _is_same(value, partial(of_process.__getitem__ if name.startswith("env.") else open_one, name))
    ]
    for name, given, known in (("args", body.args, spec.args), ("url", body.url and [body.url], [spec.url or ""])):
        if given is not None and not _is_same(_joined(restored(given, known)), partial(_joined, known)):
            different.append(name)
    await access.admin.audit.append(access.act("backend.compare", f"backends/{spec.name}", " ".join(body.names())))
    return Comparison(different=different)


@router.post("/issuers/{issuer}:compare", dependencies=[ONCE], tags=["issuers"])
async def compare_issuer(access: MayManage, issuer: IssuerId, body: IssuerComparison) -> Comparison:
    """Which of these secrets the issuer has not. Changes nothing."""
    found = await find_issuer(access, issuer)
    if found.tenants is not None:
        require_platform(access)
    access.require_grant(found.max_scopes, "secret")
    secrets = (
        ("secret", body.secret, found.sealed_secret, place_of(found.tenant, found.issuer, found.id)),
        ("sign_in.client_secret", body.sign_in.client_secret, found.sealed_client_secret, client_secret_place(found)),
    )
    different = [
        name
        for name, given, sealed, place in secrets
        if given is not None and not _is_same(given, partial(_opened, access.admin.sealer, sealed, place))
    ]
    await access.admin.audit.append(access.act("issuer.compare", f"issuers/{found.id}", found.issuer))
    return Comparison(different=different)


def _opened(sealer: Sealer, sealed: bytes | None, place: str) -> str:
    return sealer.open(sealed or b"", place).decode()


def _joined(words: Sequence[str]) -> str:
    return json.dumps([*words])


def _is_same(value: str, stored: Callable[[], str]) -> bool:
    """A secret that is not there, or that this SECRET_KEY does not open, is another one."""
    try:
        return hmac.compare_digest(value.encode(), stored().encode())
    except (KeyError, SealBroken):
        return False
