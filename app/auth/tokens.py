"""Tokens: checks JWTs of the issuers that a tenant has named.

Everything that security.md's "Authentication details" asks of a token is in `token_form.py` and `token_rules.py`; here
its issuer, its key and its signature are looked at. `jwks.py` has the public keys. A token is good for one target: the
tenant whose issuer signed it, and the resource it was issued for.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

import jwt

from app.auth import token_form, token_grants
from app.auth import token_rules as rules
from app.auth.jwks import KeyNotFound, KeySets, KeySource, PublicKey
from app.auth.sealing import SealBroken, Sealer
from app.auth.token_claims import shown
from app.auth.token_form import MAX_TOKEN_BYTES, REASONS, Finding, Sent, TokenRefused
from app.auth.token_grants import capped
from app.auth.token_rules import Case, IssuerRecord, Target
from app.domain import Principal, is_name, is_own_mark

__all__ = [
    "HMAC", "MAX_ISSUER", "MAX_TOKEN_BYTES", "REASONS", "IssuerRecord", "IssuerStore", "Target", "TokenRefused",
    "Tokens", "capped", "is_issuer", "is_secret", "place_of",
]  # fmt: skip

MAX_ISSUER = 512
HMAC = "HS256"
MIN_SECRET_BYTES = 32


class IssuerStore(Protocol):
    """Where issuers are kept."""

    async def find(self, tenant: str, issuer: str) -> IssuerRecord | None:
        """The issuer with exactly this `iss` whose tokens open the tenant: the platform's goes before its own."""


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
        sent = token_form.read(text)
        facts = {"issuer": shown(sent.claims.get("iss")), "kid": shown(sent.kid)}
        try:
            _require(rules.header(sent))
            issuer = await self._issuer(target.tenant, sent.claims.get("iss"))
            facts["issuer_id"] = issuer.id
            case = Case(sent, issuer, target.tenant, (target.resource,), self._now().timestamp())
            _require(rules.algorithm(case))
            _require(self.signature(sent, await self._key(issuer, sent)))
            for rule in rules.CLAIM_RULES:
                _require(rule(case))
        except TokenRefused as refusal:
            refusal.facts |= facts
            raise
        return token_grants.principal(case)

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

    def secret_of(self, issuer: IssuerRecord) -> bytes | None:
        """The secret that the issuer's tokens are signed with; None if it has public keys, or a seal that is broken."""
        if issuer.sealed_secret is None:
            return None
        try:
            return self._sealer.open(issuer.sealed_secret, place_of(issuer.tenant, issuer.issuer, issuer.id))
        except SealBroken:
            return None

    def signature(self, sent: Sent, key: PublicKey | bytes) -> Finding:
        """Whether the key has signed the token, by the algorithm that it names: one that `rules.algorithm` has passed.

        Of the claims PyJWT checks nothing: the rules do, which are stricter and say what was expected.
        """
        name = sent.header.get("alg")
        expected = "a signature by the issuer's " + ("secret" if isinstance(key, bytes) else "key of this `kid`")
        if not isinstance(name, str) or (name == HMAC) != isinstance(key, bytes):
            return Finding("signature", expected, shown(name), "algorithm")  # a public key is never an HMAC secret
        try:
            self._jwt.decode(
                sent.text,
                key,
                algorithms=[name],
                options={
                    "verify_exp": False, "verify_iat": False, "verify_nbf": False, "verify_aud": False,
                    "verify_iss": False, "verify_sub": False, "verify_jti": False,
                },
            )  # fmt: skip
        except jwt.InvalidSignatureError:
            return Finding("signature", expected, "another signature", "signature")
        except jwt.PyJWTError as problem:
            return Finding("signature", expected, type(problem).__name__, "malformed")
        return Finding("signature", expected, "that signature")

    async def _issuer(self, tenant: str, iss: object) -> IssuerRecord:
        # What no row can hold is not asked for: databases differ in what they make of it.
        is_possible = is_name(tenant) and isinstance(iss, str) and is_issuer(iss)
        issuer = await self._store.find(tenant, str(iss)) if is_possible else None
        if issuer is None:
            expected = f"an issuer of the tenant {shown(tenant)}"
            raise TokenRefused(Finding("issuer", expected, shown(iss), "unknown_issuer"))
        return issuer

    async def _key(self, issuer: IssuerRecord, sent: Sent) -> PublicKey | bytes:
        algorithm = sent.header["alg"]
        if issuer.sealed_secret is not None:
            secret = self.secret_of(issuer)
            if secret is None:
                problem = "it does not open under this SECRET_KEY: set it again"
                raise TokenRefused(Finding("key", "the secret of the issuer", problem, "keys_unavailable"))
            return secret
        if algorithm == HMAC:  # a public key is never an HMAC secret
            raise TokenRefused(Finding("algorithm", "one of public keys", algorithm, "algorithm"))
        try:
            return await self._keys.find(source_of(issuer), sent.kid, algorithm)
        except KeyNotFound as missing:
            raise TokenRefused(key_missing(sent.kid, algorithm, missing)) from None


def _require(finding: Finding) -> None:
    if finding.failure is not None:
        raise TokenRefused(finding)


def key_missing(kid: str | None, algorithm: str, missing: KeyNotFound) -> Finding:
    """What is to be said of a key that the issuer does not have."""
    actual = {"kid": shown(kid), "alg": algorithm}
    if missing.problem is not None:
        return Finding("key", "keys that can be fetched", missing.problem, "keys_unavailable")
    expected = {"kid": shown(list(missing.kids))}
    return Finding(
        "key", expected, actual, "unknown_key", "the issuer may have changed its keys, or not published them"
    )


def source_of(issuer: IssuerRecord) -> KeySource:
    """Where the issuer's keys are."""
    return KeySource(issuer.tenant, issuer.issuer, issuer.jwks_url, issuer.discovery_url)


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
