"""Assertions (RFC 7523): of a client that signs who it is, and of a tenant's provider about a person (ID-JAG)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from app.auth import _token_form as token_form
from app.auth import token_rules as rules
from app.auth._refusal import CredentialRefused, Finding
from app.auth.authorization.access_tokens import Holder, narrowed
from app.auth.authorization.addresses import Addresses
from app.auth.authorization.clients import Client
from app.auth.issuer_rules import ALGORITHMS
from app.auth.jwks import KeyNotFound, KeySets, KeySource
from app.auth.token_rules import Case
from app.auth.tokens import Tokens
from app.domain import Issuer

PERSON_TYPE = "oauth-id-jag+jwt"
MAX_LIFE_S = 3600  # of an assertion of a client: whoever steals one has it for so long


@dataclass(frozen=True)
class Assertions:
    """Verifies them by the rules for tokens (`token_rules.py`)."""

    tokens: Tokens
    keys: KeySets  # of clients
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @staticmethod
    def subject(form: Mapping[str, str]) -> str | None:
        """The client that an assertion in this form is of, as it says."""
        try:
            claims = token_form.read(form.get("client_assertion", "")).claims
        except CredentialRefused:
            return None
        subject = claims.get("sub")
        return subject if isinstance(subject, str) else None

    async def are_of(self, client: Client, to: Addresses, text: str) -> bool:
        """Whether this client has signed the assertion for this server, a short time ago."""
        stored = client.stored
        if stored is None or stored.jwks_url is None:
            return False
        try:
            sent = token_form.read(text)
            # An issuer as the rules want one: a client asserts itself.
            itself = Issuer(
                "", to.tenant, client.client_id, tuple(ALGORITHMS), (to.issuer, to.endpoint("token")), {}, frozenset(),
                self.now(), jwks_url=stored.jwks_url,
            )  # fmt: skip
            case = Case(sent, itself, to.tenant, (), self.now().timestamp())
            for finding in (rules.header(sent), rules.issuer(case), rules.algorithm(case)):
                _require(finding)
            algorithm = str(sent.header["alg"])
            key = await self.keys.find(
                KeySource(to.tenant, client.client_id, stored.jwks_url, None), sent.kid, algorithm
            )
            _require(self.tokens.signature(sent, key))
            for rule in (rules.required, rules.audience, rules.lifetime, rules.expiry, rules.start):
                _require(rule(case))
        except (CredentialRefused, KeyNotFound):
            return False
        return sent.claims.get("sub") == client.client_id and sent.claims["exp"] - sent.claims["iat"] <= MAX_LIFE_S

    async def person(self, client: Client, to: Addresses, text: str) -> Holder | None:
        """Whom a provider of the tenant vouches for, to this client and this server; None: for nobody.
        Raises StorageUnavailable."""
        try:
            sent = token_form.read(text)
            if sent.header.get("typ") != PERSON_TYPE or sent.claims.get("client_id") != client.client_id:
                return None
            principal = await self.tokens.verify_for(sent, to.tenant, _only(to.issuer))
        except CredentialRefused:
            return None
        scopes = _within(principal.scopes, sent.claims.get("resource"), to)
        return Holder(principal.issuer, principal.subject, scopes, client.grant, client.client_id, principal.groups)


def _within(scopes: frozenset[str], resource: object, to: Addresses) -> frozenset[str]:
    """Of these scopes, those for what an assertion is about, if it names something."""
    if resource is None:
        return scopes
    named = resource if isinstance(resource, list) else [resource]
    found = [to.backend_of(each) for each in named if isinstance(each, str)]
    return frozenset().union(*(narrowed(scopes, each) for each in found if each is not None))


def _only(audience: str) -> Callable[[Issuer], Issuer]:
    """The issuer, of which only assertions for this audience count, whatever it has for tokens."""
    return lambda issuer: replace(issuer, audience=(audience,))


def _require(finding: Finding) -> None:
    if finding.failure is not None:
        raise CredentialRefused(finding)
