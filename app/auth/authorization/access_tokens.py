"""Access tokens of a tenant's own authorization server (RFC 9068): how they are made, and verified.

The keys that sign them are derived from the secret key, the tenant and the month: every node has them, none is stored,
and who verifies finds the next one published before it signs. A token is for one endpoint or for all of its tenant: its
audience becomes its scopes, so that it can be remembered like a key, whatever the request is for.
"""

import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from app.auth import _token_form as token_form
from app.auth._refusal import CredentialRefused, Finding
from app.auth._token_form import Sent, scopes_in, shown
from app.auth.api_keys import ApiKeys
from app.auth.authorization.addresses import Addresses
from app.auth.policy import CONNECT_ONE
from app.auth.tokens import Tokens
from app.domain import CLIENT_GRANT, CLIENT_ISSUER, KEY_ISSUER, Principal, Scope, is_name
from app.text.memo import memo

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LIFE_S = 600
PERIOD_S = 30 * 86400  # so long a key signs; the one before it is good for as long as its last tokens
LEEWAY_S = 30.0
_LABEL = b"trunkline access tokens 1"
_KID, _TYPE, _ALGORITHM = "trunkline-", "at+jwt", "EdDSA"
_KEPT = 256  # keys, of tenants and months


class Standing(Protocol):
    """Which grants go on (`storage.access.connections.ConnectionRepository`)."""

    async def standing(self, tenant: str, grants: Collection[str], now: datetime) -> set[str]:
        """Those of these grants that are not over."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who gets a token, and on what it stands: see `Principal`. `client_id` is the client that holds it."""

    issuer: str
    subject: str
    scopes: Collection[str]
    grant: str
    client_id: str
    groups: frozenset[str] = frozenset()


class SigningKeys:
    """The Ed25519 keys of all tenants."""

    def __init__(self, secret_key: bytes) -> None:
        self._root = hmac.digest(secret_key, _LABEL, "sha256")
        self._key = memo(_KEPT)(self._derived)

    def current(self, tenant: str, now: float) -> tuple[str, "Ed25519PrivateKey"]:
        """The key that signs now, and its `kid`."""
        period = int(now // PERIOD_S)
        return f"{_KID}{period}", self._key(f"{period} {tenant}")

    def of(self, tenant: str, kid: str | None, now: float) -> "Ed25519PrivateKey | None":
        """The key of this `kid`, if it may have signed a token that is still good."""
        for period in {int((now - LIFE_S - LEEWAY_S) // PERIOD_S), int((now + LEEWAY_S) // PERIOD_S)}:
            if kid == f"{_KID}{period}":
                return self._key(f"{period} {tenant}")
        return None

    def published(self, tenant: str, now: float) -> list[dict[str, str]]:
        """The JWK set: the keys of the month before, of this one and of the next."""
        period = int(now // PERIOD_S)
        return [self._jwk(tenant, each) for each in (period - 1, period, period + 1)]

    def _jwk(self, tenant: str, period: int) -> dict[str, str]:
        public = urlsafe_b64encode(self._key(f"{period} {tenant}").public_key().public_bytes_raw())
        common = {"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": _ALGORITHM}
        return {**common, "kid": f"{_KID}{period}", "x": public.rstrip(b"=").decode()}

    def _derived(self, place: str) -> "Ed25519PrivateKey":
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - 12 MB, where there are tokens
            Ed25519PrivateKey,
        )

        return Ed25519PrivateKey.from_private_bytes(hmac.digest(self._root, place.encode(), "sha256"))


class OwnTokens:
    """Makes access tokens, and verifies them. Fulfils `authenticator.OwnTokens`."""

    def __init__(
        self,
        signing: SigningKeys,
        standing: Standing,
        keys: ApiKeys,
        tokens: Tokens,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._signing, self._standing, self._keys, self._tokens, self._now = signing, standing, keys, tokens, now

    def make(self, to: Addresses, backend: str, holder: Holder) -> str:
        """A token for this endpoint, or for all of the tenant where `backend` is empty."""
        import jwt  # noqa: PLC0415 - 12 MB, where there are tokens

        now = self._now().timestamp()
        kid, key = self._signing.current(to.tenant, now)
        claims = {
            "iss": to.issuer,
            "sub": holder.subject,
            "aud": to.audience(backend),
            "iat": int(now),
            "exp": int(now) + LIFE_S,
            "jti": secrets.token_hex(8),
            "client_id": holder.client_id,
            "scope": " ".join(sorted(holder.scopes)),
            "idp": holder.issuer,
            "grant": holder.grant,
            **({"groups": sorted(holder.groups)} if holder.groups else {}),
        }
        return jwt.encode(claims, key, algorithm=_ALGORITHM, headers={"kid": kid, "typ": _TYPE})

    @staticmethod
    def is_own(text: str) -> bool:
        """Whether the token says that it is one of these; nothing is verified."""
        header = text.partition(".")[0]
        try:
            found = json.loads(urlsafe_b64decode(header + "=" * (-len(header) % 4)))
        except (ValueError, RecursionError):
            return False
        kid = found.get("kid") if isinstance(found, dict) else None
        return isinstance(kid, str) and kid.startswith(_KID)

    async def verify(self, text: str) -> Principal:
        """The principal of a token, of the tenant whose server has made it.

        Raises:
            CredentialRefused: it is not valid, or what it stands on is over.
            StorageUnavailable: that cannot be looked up now.
        """
        principal = self.read(text)
        await self.confirm(principal)
        return principal

    def read(self, text: str) -> Principal:
        """As `verify`, by the token alone."""
        sent = token_form.read(text)
        base_url, _, tenant = str(sent.claims.get("iss")).rpartition("/oauth/")
        if not is_name(tenant):
            raise _refused("issuer", "an authorization server of ours", sent.claims.get("iss"), "unknown_issuer")
        now = self._now().timestamp()
        self._require_signed(sent, tenant, now)
        claims = sent.claims
        exp, scopes = claims.get("exp"), scopes_in(claims.get("scope"))
        if type(exp) is not int or exp <= now:
            raise _refused("expiry", "a time that has not passed", exp, "expired")
        backend = Addresses(base_url, tenant).backend_of(str(claims.get("aud")))
        if backend is None or scopes is None:
            raise _refused("audience", "an endpoint of the tenant", claims.get("aud"), "audience")
        who = str(claims.get("idp")), str(claims.get("sub"))
        groups = frozenset(claims.get("groups") or ())
        return Principal(tenant, *who, narrowed(scopes, backend), exp, str(claims.get("grant")), groups)

    def _require_signed(self, sent: Sent, tenant: str, now: float) -> None:
        key = self._signing.of(tenant, sent.kid, now)
        if sent.header.get("alg") != _ALGORITHM or sent.header.get("typ") != _TYPE or key is None:
            raise _refused("header", "as this gateway makes it", _named(sent.header), "unknown_key")
        finding = self._tokens.signature(sent, key.public_key())
        if finding.failure is not None:
            raise CredentialRefused(finding)

    async def confirm(self, principal: Principal) -> None:
        """Checks that what a token stands on goes on: the connection or the client, and the person's key or issuer.

        Raises:
            CredentialRefused: it does not.
            StorageUnavailable: it cannot be looked up now.
        """
        if not await self._standing.standing(principal.tenant, [principal.grant], self._now()):
            what = "client" if principal.grant.startswith(CLIENT_GRANT) else "connection"
            raise _refused("grant", f"a {what} that goes on", principal.grant, "revoked")
        if principal.issuer == KEY_ISSUER:
            await self._keys.confirm(principal)
        elif principal.issuer != CLIENT_ISSUER:
            await self._tokens.confirm(principal)


def narrowed(scopes: Collection[str], backend: str) -> frozenset[str]:
    """Of these scopes, what connects: to this backend, or to all that they name where it is empty."""
    if not backend:
        return frozenset(each for each in scopes if each == Scope.CONNECT or each.startswith(CONNECT_ONE))
    one = CONNECT_ONE + backend
    return frozenset({one}) if one in scopes or Scope.CONNECT in scopes else frozenset()


def _refused(rule: str, expected: str, actual: object, failure: str) -> CredentialRefused:
    return CredentialRefused(Finding(rule, expected, shown(actual), failure))


def _named(header: Mapping[str, Any]) -> object:
    return [f"{name}={header.get(name)}" for name in ("alg", "typ", "kid")]
