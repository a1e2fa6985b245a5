"""`Idempotency-Key`: a POST that is repeated with the same key is carried out once and gets the first answer again.

A key belongs to a credential with its scopes, and to a path. Answers are kept for a day, encrypted with the node's
secret key, because one of them contains a new API key. Only successes are kept; failures are tried again.
"""

import hashlib
import hmac
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import anyio
from fastapi import Depends, Header, Response

from app.auth.sealing import SealBroken, Sealer
from app.domain import Principal
from app.errors import Conflict, GatewayError, InvalidRequest
from app.storage.idempotency import IdempotencyRepository

MAX_KEY_LENGTH = 255
AGAIN_S = 2.0  # while the first request is under way, such as the installation of a package
REPLAYED = "Idempotency-Replayed"

_KEPT_HEADERS = ("content-type", "location", "etag", "cache-control")
_LABEL = b"trunkline idempotency bodies 1"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Claim:
    """A request with a new key: it must be carried out."""

    tenant: str
    digest: bytes

    @property
    def place(self) -> str:
        return "idempotency/" + self.digest.hex()


class AnsweredOnce:
    """Remembers requests and their answers."""

    def __init__(self, repository: IdempotencyRepository, secret_key: bytes, now: Callable[[], datetime]) -> None:
        self._repository, self._now = repository, now
        self._sealer = Sealer(secret_key)
        # A plain digest of the body would let readers of the database guess secrets in it.
        self._body_key = hmac.digest(secret_key, _LABEL, "sha256")

    async def begin(self, principal: Principal, path: str, key: str, body: bytes) -> _Claim | Response:
        """A claim if the key is new, else the first answer.

        Raises:
            InvalidRequest: the key is malformed, or was used for another body.
            Conflict: the first request is still under way.
            QuotaExceeded: this credential has used too many keys.
            StorageUnavailable: the database does not answer.
        """
        if not (key.isascii() and key.isprintable() and 0 < len(key) <= MAX_KEY_LENGTH):
            raise InvalidRequest(f"Idempotency-Key must be 1 to {MAX_KEY_LENGTH} printable ASCII characters")
        caller = _digest(*principal.identity)
        claim = _Claim(principal.tenant, _digest(*principal.identity, *sorted(principal.scopes), "", path, key))
        body_digest = hmac.digest(self._body_key, body, "sha256")
        try:
            before = await self._repository.begin(claim.tenant, caller, claim.digest, body_digest, self._now())
        except Conflict:
            raise _under_way() from None
        if before is None:
            return claim
        if not hmac.compare_digest(before.body, body_digest):
            raise InvalidRequest("this Idempotency-Key was used for another body")
        if before.answer is None:
            raise _under_way()
        return self._opened(claim, before.answer)

    async def finish(self, claim: _Claim, response: Response | None) -> None:
        """Keeps the answer of a success; deletes the claim after a failure. Does not raise: the change was made."""
        with anyio.CancelScope(shield=True):  # the database has its own time-outs
            try:
                if response is not None and response.status_code < 300:
                    await self._repository.keep(claim.tenant, claim.digest, self._sealed(claim, response))
                else:
                    await self._repository.release(claim.tenant, claim.digest)
            except GatewayError:
                _log.warning(
                    "Could not save the answer to a request with an Idempotency-Key; repetitions get 409 for 5 minutes"
                )

    def _sealed(self, claim: _Claim, response: Response) -> bytes:
        headers = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
        answer = {"status": response.status_code, "headers": headers, "body": bytes(response.body).decode()}
        return self._sealer.seal(json.dumps(answer).encode(), claim.place)

    def _opened(self, claim: _Claim, sealed: bytes) -> Response:
        try:
            answer = json.loads(self._sealer.open(sealed, claim.place))
        except SealBroken:
            raise Conflict("the answer was saved with another secret key") from None
        return Response(answer["body"], answer["status"], {**answer["headers"], REPLAYED: "true"})


async def _describe_key(
    _: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            min_length=1,
            max_length=MAX_KEY_LENGTH,
            description="A repetition with the same key and body within a day is answered like the first request.",
        ),
    ] = None,
) -> None:
    """Only for OpenAPI: `AdminRoute` reads the header."""


ONCE = Depends(_describe_key)  # in the `dependencies` of every POST


def _digest(*parts: str) -> bytes:
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _under_way() -> Conflict:
    return Conflict("a request with this Idempotency-Key is under way; try again in a moment").again_after(AGAIN_S)
