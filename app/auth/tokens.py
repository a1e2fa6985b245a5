"""Tokens: verifies JWTs of the issuers that a tenant has registered (docs/sign-in.md).

The rules are in `token_form.py` and `token_rules.py`, the public keys in `jwks.py`; here are the issuer, the signature
and the scopes. A token is good for one target: the tenant of its issuer, and the resource it was issued for.
"""

import importlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from app.auth import _token_form as token_form
from app.auth import token_rules as rules
from app.auth._refusal import CredentialRefused, Finding
from app.auth._token_form import MAX_TOKEN_BYTES, REASONS, Sent, claim, named_in, scopes_in, shown
from app.auth.issuer_rules import HMAC, capped, is_issuer
from app.auth.jwks import KeyNotFound, KeySets, KeySource
from app.auth.sealing import SealBroken, Sealer
from app.auth.token_rules import LEEWAY_S, Case, Target
from app.domain import Issuer, Principal, is_name

if TYPE_CHECKING:
    from app.auth._ciphers import PublicKey

__all__ = ["MAX_TOKEN_BYTES", "REASONS", "IssuerStore", "Target", "Tokens", "place_of"]


class IssuerStore(Protocol):
    """Where issuers are kept."""

    async def find(self, tenant: str, issuer: str) -> Issuer | None:
        """The issuer with exactly this `iss` for the tenant: one of the platform takes precedence over its own."""


class Tokens:
    """Verifies tokens of the issuers in the store."""

    def __init__(
        self, store: IssuerStore, sealer: Sealer, keys: KeySets, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._store, self._sealer, self._keys, self._now = store, sealer, keys, now

    async def verify(self, text: str, target: Target) -> Principal:
        """The principal of a token, in the tenant of the target.

        Raises:
            CredentialRefused: the token is not valid, or not for this target.
            StorageUnavailable: the store does not answer.
        """
        return await self.verify_for(token_form.read(text), target.tenant, resources=(target.resource,))

    async def verify_for(
        self,
        sent: Sent,
        tenant: str,
        as_if: Callable[[Issuer], Issuer] = lambda issuer: issuer,
        resources: Sequence[str] = (),
    ) -> Principal:
        """As `verify`; the issuer is as it is registered, but for what `as_if` changes of it."""
        facts = {"issuer": shown(sent.claims.get("iss")), "kid": shown(sent.kid)}
        try:
            _require(rules.header(sent))
            issuer = as_if(await self._issuer(tenant, sent.claims.get("iss")))
            facts["issuer_id"] = issuer.id
            case = Case(sent, issuer, tenant, resources, self._now().timestamp())
            _require(rules.algorithm(case))
            _require(self.signature(sent, await self._key(issuer, sent)))
            for rule in rules.CLAIM_RULES:
                _require(rule(case))
        except CredentialRefused as refusal:
            raise CredentialRefused(refusal.finding, facts) from None
        return holder(case)

    async def confirm(self, principal: Principal) -> None:
        """Checks that the issuer of a principal that another node has let in still exists.

        Raises:
            CredentialRefused: it does not.
            StorageUnavailable: the store does not answer.
        """
        await self._issuer(principal.tenant, principal.issuer)

    @staticmethod
    def get_ready() -> None:
        """To be called where there is an issuer: else its first token would take 30 ms longer."""
        importlib.import_module("app.auth._ciphers")

    def forget(self, tenant: str, issuer: str | None = None) -> None:
        """Forgets the keys of an issuer, or of all issuers of the tenant, so that they are fetched again."""
        if issuer is not None:
            self.get_ready()  # it may be new
        self._keys.forget(tenant, issuer)

    def secret_of(self, issuer: Issuer) -> bytes | None:
        """The secret that signs the issuer's tokens; None if it has public keys, or the secret cannot be decrypted."""
        if issuer.sealed_secret is None:
            return None
        try:
            return self._sealer.open(issuer.sealed_secret, place_of(issuer.tenant, issuer.issuer, issuer.id))
        except SealBroken:
            return None

    def signature(self, sent: Sent, key: "PublicKey | bytes") -> Finding:
        """Whether the key has signed the token, which must have passed the rules."""
        from app.auth._ciphers import signature  # noqa: PLC0415 - 12 MB, where there is an issuer

        return signature(sent, key)

    async def _issuer(self, tenant: str, iss: object) -> Issuer:
        # The database is not asked for a name that it cannot contain: databases differ in how they treat these.
        is_possible = is_name(tenant) and isinstance(iss, str) and is_issuer(iss)
        issuer = await self._store.find(tenant, str(iss)) if is_possible else None
        if issuer is None:
            expected = f"an issuer of the tenant {shown(tenant)}"
            raise CredentialRefused(Finding("issuer", expected, shown(iss), "unknown_issuer"))
        return issuer

    async def _key(self, issuer: Issuer, sent: Sent) -> "PublicKey | bytes":
        algorithm = sent.header["alg"]
        if issuer.sealed_secret is not None:
            secret = self.secret_of(issuer)
            if secret is None:
                problem = "it cannot be decrypted with this SECRET_KEY: set it again"
                raise CredentialRefused(Finding("key", "the secret of the issuer", problem, "keys_unavailable"))
            return secret
        if algorithm == HMAC:  # a public key is never an HMAC secret
            raise CredentialRefused(Finding("algorithm", "one of public keys", algorithm, "algorithm"))
        try:
            return await self._keys.find(source_of(issuer), sent.kid, algorithm)
        except KeyNotFound as missing:
            raise CredentialRefused(key_missing(sent.kid, algorithm, missing)) from None


def _require(finding: Finding) -> None:
    if finding.failure is not None:
        raise CredentialRefused(finding)


def key_missing(kid: str | None, algorithm: str, missing: KeyNotFound) -> Finding:
    """The finding about a key that the issuer does not have."""
    actual = {"kid": shown(kid), "alg": algorithm}
    if missing.problem is not None:
        return Finding("key", "keys that can be fetched", missing.problem, "keys_unavailable")
    expected = {"kid": shown(list(missing.kids))}
    return Finding(
        "key", expected, actual, "unknown_key", "the issuer may have changed its keys, or not published them"
    )


def source_of(issuer: Issuer) -> KeySource:
    """Where the issuer publishes its keys."""
    return KeySource(issuer.tenant, issuer.issuer, issuer.jwks_url, issuer.discovery_url)


def holder(case: Case) -> Principal:
    """The principal of a token that has passed every rule."""
    claims, record = case.sent.claims, case.issuer
    exp: int = claims["exp"]
    expires_at = exp if case.now < exp else exp + LEEWAY_S  # in the leeway it expires with the leeway
    named = claim(claims, record.claims.get("subject") or "sub")
    return Principal(case.tenant, record.issuer, str(named), granted(case), expires_at, groups=_groups(case))


def _groups(case: Case) -> frozenset[str]:
    """Those that the issuer maps to scopes: a provider may name hundreds that mean nothing here."""
    names = case.issuer.claims
    if names.get("groups") is None:
        return frozenset()
    known = names.get("map") or {}
    return frozenset(each for each in named_in(claim(case.sent.claims, names["groups"])) or () if each in known)


def granted(case: Case) -> frozenset[str]:
    """The scopes that the token confers by its own scopes, its groups and the values that name the tenant, capped by
    what its issuer may confer."""
    claims, names = case.sent.claims, case.issuer.claims
    asked = set(scopes_in(claim(claims, names.get("scopes") or "scope")) or ())
    for group in _groups(case):
        asked.update(names["map"][group])
    if case.issuer.tenants is not None:
        here = case.issuer.tenants.within(case.tenant)
        for value in named_in(claim(claims, here.claim)) or ():
            if value in here.map:
                asked.update(here.map[value].scopes)
    return capped(asked, case.tenant, case.issuer.max_scopes)


def place_of(tenant: str, issuer: str, issuer_id: str) -> str:
    """The place that an issuer's secret is sealed for. Neither the first part nor the last can contain a `|`."""
    return f"{tenant}|{issuer}|{issuer_id}"
