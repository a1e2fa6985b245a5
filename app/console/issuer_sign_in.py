"""IssuerSignIn: signing in to the console with an identity provider.

What must be known again when the person comes back is in a sealed cookie of its own, so any node can take them. The
token that comes back is a credential like any other: REST is asked with it who that is.
"""

import base64
import hmac
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import NamedTuple, NoReturn

from app.auth.outbound_urls import FetchFailed, UrlRefused
from app.auth.provider_client import ProviderClient, ProviderRefused, ProviderTokens
from app.auth.sealing import SealBroken, Sealer
from app.domain import Issuer, SignInClient
from app.errors import NotFound
from app.storage.access.issuers import IssuerRepository

WITHIN_S = 600.0  # for a person to sign in at the provider
DONE = "/console/sign-in/done"
_PLACE = "console sign-in"


class NotSignedIn(Exception):
    """Why somebody could not sign in, in words for them."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """What is in the cookie while a person is at the provider."""

    tenant: str
    issuer: str
    to: str
    until: float  # Unix time
    state: str = field(repr=False)
    verifier: str = field(repr=False)


class CameBack(NamedTuple):
    """Somebody whom a provider has let in: to this tenant, on the way to this page."""

    tenant: str
    tokens: ProviderTokens
    to: str


class IssuerSignIn:
    """Sends people to the provider, and takes them back."""

    def __init__(
        self, issuers: IssuerRepository, provider: ProviderClient, sealer: Sealer, now: Callable[[], datetime]
    ) -> None:
        self._issuers, self._provider, self._sealer, self._now = issuers, provider, sealer, now

    async def choices(self, tenant: str) -> Sequence[Issuer]:
        """The issuers with which one can sign in to this tenant; none for a tenant that does not exist."""
        found = await self._issuers.list(tenant)
        return [each for each in found if each.sign_in is not None and tenant in each.opens()]

    async def begin(self, tenant: str, issuer_id: str, to: str, base_url: str) -> tuple[str, bytes]:
        """The URL of the provider for this person, and the cookie until they come back.

        Raises:
            NotSignedIn: there is no such issuer, or it cannot be reached.
            StorageUnavailable: the database is away.
        """
        issuer, client = await self._client(tenant, issuer_id)
        verifier, until = secrets.token_urlsafe(48), self._now().timestamp() + WITHIN_S
        begun = _Begun(tenant, issuer_id, to, until, secrets.token_urlsafe(24), verifier)
        asked = {"redirect_uri": base_url + DONE, "state": begun.state}
        try:
            url = await self._provider.address(issuer, client, verifier=verifier, **asked)
        except FetchFailed as error:
            _cannot_reach(issuer, error)
        sealed = self._sealer.seal(json.dumps(asdict(begun)).encode(), _PLACE)
        return url, base64.urlsafe_b64encode(sealed)

    async def finish(self, cookie: bytes | None, answer: dict[str, str], base_url: str) -> CameBack:
        """Whom the provider has let in, of a person who has come back with this query.

        Raises:
            NotSignedIn: the provider has refused, or this is no answer to what was begun with the cookie.
            StorageUnavailable: the database is away.
        """
        begun = self._begun(cookie)
        if not hmac.compare_digest(answer.get("state", "").encode(), begun.state.encode()):
            raise NotSignedIn("This is no answer to your sign-in. Start again.")
        if "error" in answer:
            words = answer.get("error_description") or answer["error"]
            raise NotSignedIn(f"Your identity provider says: {words[:300]}")
        issuer, client = await self._client(begun.tenant, begun.issuer)
        if answer.get("iss", issuer.issuer) != issuer.issuer:  # RFC 9207
            raise NotSignedIn("The answer is from another identity provider.")
        given = {"code": answer.get("code", ""), "verifier": begun.verifier, "redirect_uri": base_url + DONE}
        try:
            tokens = await self._provider.redeemed(issuer, client, **given)
        except ProviderRefused as refusal:
            raise NotSignedIn(f"Your identity provider has not let you in: {refusal}.") from None
        except FetchFailed as error:
            _cannot_reach(issuer, error)
        return CameBack(begun.tenant, tokens, begun.to)

    def _begun(self, cookie: bytes | None) -> _Begun:
        try:
            sealed = base64.b64decode(cookie or b"", altchars=b"-_", validate=True)
            begun = _Begun(**json.loads(self._sealer.open(sealed, _PLACE)))
        except (ValueError, SealBroken):
            raise NotSignedIn("Your sign-in was not begun in this browser. Start again.") from None
        if begun.until < self._now().timestamp():
            raise NotSignedIn("Your sign-in took too long. Start again.")
        return begun

    async def _client(self, tenant: str, issuer_id: str) -> tuple[Issuer, SignInClient]:
        try:
            issuer = await self._issuers.get(tenant, issuer_id)
        except NotFound:
            issuer = None
        if issuer is None or issuer.sign_in is None or tenant not in issuer.opens():
            raise NotSignedIn("This identity provider cannot be used here any more.")
        return issuer, issuer.sign_in


def _cannot_reach(issuer: Issuer, error: FetchFailed) -> NoReturn:
    kind = "may not be reached from here" if isinstance(error, UrlRefused) else "cannot be reached"
    raise NotSignedIn(f"Your identity provider {issuer.issuer} {kind}: {error}") from None
