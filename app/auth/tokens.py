"""Tokens: checks JWTs of the issuers that a tenant has named.

Everything that security.md's "Authentication details" asks of a token is in this file; `jwks.py` has the
public keys. A token is good for one target: the tenant whose issuer signed it, and the resource it was issued for.
"""

import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import jwt

from app.auth.jwks import KeyNotFound, KeySets, KeySource, PublicKey
from app.auth.policy import CONNECT_ONE, has_scope, is_scope
from app.auth.sealing import SealBroken, Sealer
from app.domain import Principal, Scope, is_name, is_own_mark

MAX_TOKEN_BYTES = 8192
MAX_KID = 128
MAX_ISSUER = 512
MAX_SUBJECT = 255
MAX_SCOPES = 100
MAX_LIFE_S = 24 * 3600
LEEWAY_S = 30.0
HMAC = "HS256"
MIN_SECRET_BYTES = 32

# Why a token was refused: label values of `auth_failures`. The caller is not told which it was.
REASONS = (
    "malformed", "header", "unknown_issuer", "algorithm", "unknown_key", "keys_unavailable", "signature", "expired",
    "not_yet_valid", "audience", "claims", "reserved",
)  # fmt: skip

_form = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+").fullmatch
# Headers that bring a key along, or say that the rest is to be read differently.
_REFUSED_HEADERS = frozenset({"crit", "b64", "jku", "x5u", "x5c", "jwk"})
_REQUIRED = ("exp", "iat", "iss", "aud", "sub")


class Target(NamedTuple):
    """What a request is for. A token is good for one target only, a key for every one."""

    tenant: str
    backend: str  # "" for the REST API
    base_url: str  # under which the client reaches us, without a slash at the end

    @property
    def resource(self) -> str:
        """The canonical URL (RFC 8707): the audience that a token must have, if its issuer names no other."""
        if self.backend:
            return f"{self.base_url}/t/{self.tenant}/{self.backend}/mcp"
        return f"{self.base_url}/api/v1/tenants/{self.tenant}"


class IssuerRecord(Protocol):
    """What the store remembers of an issuer."""

    @property
    def id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def issuer(self) -> str: ...
    @property
    def algorithms(self) -> Sequence[str]: ...
    @property
    def sealed_secret(self) -> bytes | None: ...
    @property
    def jwks_url(self) -> str | None: ...
    @property
    def discovery_url(self) -> str | None: ...
    @property
    def audience(self) -> Sequence[str]: ...
    @property
    def claims(self) -> Mapping[str, str | None]: ...
    @property
    def max_scopes(self) -> frozenset[str]: ...


class IssuerStore(Protocol):
    """Where issuers are kept."""

    async def find(self, tenant: str, issuer: str) -> IssuerRecord | None:
        """The tenant's issuer with exactly this `iss`."""


class TokenRefused(Exception):
    """The token opens nothing. `reason` is for metrics; the caller is not told which it was."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Tokens:
    """Checks tokens against the issuers in the store."""

    def __init__(
        self, store: IssuerStore, sealer: Sealer, keys: KeySets, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._store, self._sealer, self._keys, self._now = store, sealer, keys, now
        self._jwt = jwt.PyJWT({"enforce_minimum_key_length": True})

    async def verify(self, text: str, target: Target) -> Principal:
        """The token's holder, in the tenant of the target.

        Raises:
            TokenRefused: it is not a valid one, or not for this target.
            StorageUnavailable: the store does not answer.
        """
        header, claims = _parts(text)
        kid = _kid(header)
        issuer = await self._issuer(target.tenant, claims.get("iss"))
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in issuer.algorithms:
            raise TokenRefused("algorithm")
        key = await self._key(issuer, kid, algorithm)
        claims = self._signed_claims(text, key, algorithm, issuer, target)
        expires_at = self._check_times(claims)
        return _principal(claims, issuer, expires_at)

    async def confirm(self, principal: Principal) -> None:
        """Whether there still is the issuer of a principal that was let in elsewhere.

        Raises:
            TokenRefused: there is not.
            StorageUnavailable: the store does not answer.
        """
        await self._issuer(principal.tenant, principal.issuer)

    def forget_issuer(self, tenant: str, issuer: str) -> None:
        """The issuer was changed: its keys are fetched anew."""
        self._keys.forget(tenant, issuer)

    def forget_tenant(self, tenant: str) -> None:
        """The same for all issuers of a tenant."""
        self._keys.forget_tenant(tenant)

    async def _issuer(self, tenant: str, iss: object) -> IssuerRecord:
        # What no row can hold is not asked for: databases differ in what they make of it.
        if not (is_name(tenant) and isinstance(iss, str) and is_issuer(iss)):
            raise TokenRefused("unknown_issuer")
        issuer = await self._store.find(tenant, iss)
        if issuer is None:
            raise TokenRefused("unknown_issuer")
        return issuer

    async def _key(self, issuer: IssuerRecord, kid: str | None, algorithm: str) -> PublicKey | bytes:
        if issuer.sealed_secret is not None:
            if algorithm != HMAC:
                raise TokenRefused("algorithm")
            try:
                return self._sealer.open(issuer.sealed_secret, place_of(issuer.tenant, issuer.issuer, issuer.id))
            except SealBroken:
                raise TokenRefused("keys_unavailable") from None
        if algorithm == HMAC:  # a public key is never an HMAC secret
            raise TokenRefused("algorithm")
        source = KeySource(issuer.tenant, issuer.issuer, issuer.jwks_url, issuer.discovery_url)
        try:
            return await self._keys.find(source, kid, algorithm)
        except KeyNotFound as problem:
            raise TokenRefused("keys_unavailable" if problem.unavailable else "unknown_key") from None

    def _signed_claims(
        self, text: str, key: PublicKey | bytes, algorithm: str, issuer: IssuerRecord, target: Target
    ) -> dict[str, Any]:
        """The claims, once signature, issuer and audience are right. Times are ours to check: PyJWT rounds them."""
        try:
            claims: dict[str, Any] = self._jwt.decode(
                text,
                key,
                algorithms=[algorithm],
                audience=list(issuer.audience) or [target.resource],
                issuer=issuer.issuer,
                options={
                    "require": list(_REQUIRED), "verify_exp": False, "verify_iat": False, "verify_nbf": False,
                },
            )  # fmt: skip
        except jwt.InvalidAudienceError:
            raise TokenRefused("audience") from None
        except jwt.InvalidSignatureError:
            raise TokenRefused("signature") from None
        except jwt.MissingRequiredClaimError:
            raise TokenRefused("claims") from None
        except jwt.PyJWTError:
            raise TokenRefused("malformed") from None
        return claims

    def _check_times(self, claims: Mapping[str, Any]) -> float:
        """When the token expires: at `exp`; if that has just passed, at the end of the leeway."""
        exp, iat, nbf = (_seconds(claims, name) for name in ("exp", "iat", "nbf"))
        now = self._now().timestamp()
        if exp is None or iat is None or not 0 < exp - iat <= MAX_LIFE_S:
            raise TokenRefused("claims")
        if now >= exp + LEEWAY_S:
            raise TokenRefused("expired")
        if now < iat - LEEWAY_S or (nbf is not None and now < nbf - LEEWAY_S):
            raise TokenRefused("not_yet_valid")
        return exp if now < exp else exp + LEEWAY_S


def is_issuer(text: str) -> bool:
    """Whether this may stand in `iss`. Not `key` or `cli`: who has such an issuer is let in otherwise."""
    is_text = 0 < len(text) <= MAX_ISSUER and text.isascii() and text.isprintable() and " " not in text
    return is_text and not is_own_mark(text)


def is_secret(text: str) -> bool:
    """Whether this can sign tokens: long enough, and no public key, which everybody knows."""
    try:
        jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).prepare_key(text)
    except jwt.InvalidKeyError:
        return False
    return len(text.encode()) >= MIN_SECRET_BYTES


def place_of(tenant: str, issuer: str, issuer_id: str) -> str:
    """Where an issuer's secret is sealed to. Neither the first part nor the last can have a `|` in it."""
    return f"{tenant}|{issuer}|{issuer_id}"


def capped(scopes: Iterable[str], tenant: str, max_scopes: frozenset[str]) -> frozenset[str]:
    """The scopes that the token asks for, as far as its issuer may confer them.

    Two cases: what the cap implies is kept; and `mcp:connect` under a cap of single backends means those.
    """
    asked = {scope for scope in scopes if is_scope(scope)}
    cap = Principal(tenant, "", "", max_scopes)
    kept = {scope for scope in asked if has_scope(cap, tenant, scope)}
    if Scope.CONNECT in asked - kept:
        kept |= {scope for scope in max_scopes if scope.startswith(CONNECT_ONE)}
    return frozenset(kept)


def _parts(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims of what has the form of a token, without belief in either."""
    if len(text) > MAX_TOKEN_BYTES or _form(text) is None:
        raise TokenRefused("malformed")
    header, claims, _ = text.split(".")
    return _json(header), _json(claims)


def _json(segment: str) -> dict[str, Any]:
    """Strictly: a second reader of the same bytes must not find another key, number or text."""
    try:
        text = urlsafe_b64decode(segment + "=" * (-len(segment) % 4)).decode("utf-8")
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise TokenRefused("malformed") from None
    if not isinstance(found, dict):
        raise TokenRefused("malformed")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name stands twice")
    return members


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _kid(header: Mapping[str, Any]) -> str | None:
    if not _REFUSED_HEADERS.isdisjoint(header):
        raise TokenRefused("header")
    if "kid" not in header:
        return None
    kid = header["kid"]
    if not isinstance(kid, str) or len(kid) > MAX_KID:
        raise TokenRefused("header")
    return kid


def _seconds(claims: Mapping[str, Any], name: str) -> int | None:
    """A numeric date, if there is one. An integer, although RFC 7519 allows fractions; `True` is none."""
    value = claims.get(name)
    if (value is not None and type(value) is not int) or (value is None and name in claims):
        raise TokenRefused("claims")
    if value is not None and not 0 <= value < 2**40:
        raise TokenRefused("claims")
    return value


def _principal(claims: Mapping[str, Any], issuer: IssuerRecord, expires_at: float) -> Principal:
    names = issuer.claims
    subject = _claim(claims, names.get("subject") or "sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT or not subject.isprintable():
        raise TokenRefused("claims")
    if is_own_mark(subject):
        raise TokenRefused("reserved")
    tenant = names.get("tenant")
    if tenant is not None and _claim(claims, tenant) != issuer.tenant:
        raise TokenRefused("claims")
    asked = _scopes(_claim(claims, names.get("scopes") or "scope"))
    scopes = capped(asked, issuer.tenant, issuer.max_scopes)
    return Principal(issuer.tenant, issuer.issuer, subject, scopes, expires_at)


def _claim(claims: Mapping[str, Any], path: str) -> object:
    """The claim of this name, dots and all (`https://example.com/scopes`), or else the one down this path."""
    if path in claims:
        found: object = claims[path]
        return found
    found = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _scopes(value: object) -> Sequence[str]:
    """A text with spaces (RFC 8693) or an array. A token without scopes is valid, and may do nothing."""
    scopes = value.split() if isinstance(value, str) else [] if value is None else value
    if not isinstance(scopes, list) or len(scopes) > MAX_SCOPES or not all(isinstance(each, str) for each in scopes):
        raise TokenRefused("claims")
    return scopes
