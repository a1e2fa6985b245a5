"""Bodies: issuers of tokens."""

import json
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from app.admin.schemas.declared import DeclaredBody, patches
from app.admin.schemas.fields import Answer, KnownScope, Name, SortedTexts, Strict, no_items, one_line
from app.auth.issuer_rules import (
    ALGORITHMS,
    HMAC,
    MAX_CLIENT_KEY,
    MAX_CLIENT_SECRET,
    MAX_ISSUER,
    capped,
    is_issuer,
    is_key,
    is_secret,
)
from app.domain import DEFAULT_TENANT, Issuer, Scope, ServedTenants, TenantGrant, is_own_mark


def _issuer_name(text: str) -> str:
    if is_own_mark(text):
        raise PydanticCustomError("issuer", "is reserved: `key`, `cli` and `uid N` are names of the gateway itself")
    if not is_issuer(text):
        raise PydanticCustomError("issuer", "must be printable ASCII without spaces, exactly as in the claim `iss`")
    return text


def _known_algorithm(text: str) -> str:
    if text != HMAC and text not in ALGORITHMS:
        known = ", ".join(sorted(ALGORITHMS))
        raise PydanticCustomError("algorithm", "must be HS256, or some of {known}", {"known": known})
    return text


def _strong(text: str) -> str:
    if not is_secret(text):
        raise PydanticCustomError("secret", "must have 32 bytes or more, and must not be a public key")
    return text


def _of_client(text: str) -> str:
    if not is_key(text):
        if len(text) > MAX_CLIENT_SECRET:
            raise PydanticKnownError("string_too_long", {"max_length": MAX_CLIENT_SECRET})
        line: str = one_line(text)
        return line
    from app.auth.client_keys import ClientKey, KeyUnusable  # noqa: PLC0415 - 12 MB, where there is such a key

    try:
        ClientKey.read(text)
    except KeyUnusable as error:
        words = {"problem": str(error)}
        raise PydanticCustomError("client_key", "is a key that cannot be used: {problem}", words) from None
    return text


def _not_ours(name: str) -> str:
    if name in _OURS:
        raise PydanticCustomError("parameter", "is a parameter that the gateway sets itself")
    return name


MAX_GROUPS = 100
MAX_TENANTS = 200  # entries of a list
MAX_CLAIMS_BYTES = 32 * 1024

Claim = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(one_line)]
Algorithms = Annotated[list[Annotated[str, AfterValidator(_known_algorithm)]], Field(min_length=1, max_length=16)]
Secret = Annotated[
    str,
    StringConstraints(max_length=1024),
    AfterValidator(_strong),
    Field(description="Write-only: no answer contains it. Its UTF-8 bytes are the key."),
]
Url = Annotated[str, StringConstraints(min_length=1, max_length=2048)]
ClientSecret = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_CLIENT_KEY),
    AfterValidator(_of_client),
    Field(
        description="Of a confidential client: a secret of one line, 1024 characters at most; or a private key in PEM "
        "form (RSA, P-256 or Ed25519), perhaps with its certificate: then the gateway signs who it is "
        "(`private_key_jwt`). Write-only: answers say `has_client_secret`."
    ),
]
_OURS = frozenset({"response_type", "response_mode", "client_id", "redirect_uri", "scope", "state", "nonce", "request",
                   "request_uri", "code_challenge", "code_challenge_method", "client_secret"})  # fmt: skip
Parameter = Annotated[str, StringConstraints(pattern="^[a-z][a-z0-9_]{0,63}$"), AfterValidator(_not_ours)]
Asked = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(one_line)]
MAX_PARAMETERS = 16
Audience = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=512), AfterValidator(one_line)]],
    Field(max_length=16, description="`aud` must contain one of these; empty: the URL of the endpoint."),
]
MaxScopes = Annotated[
    list[KnownScope],
    Field(min_length=1, max_length=32, description="The most that tokens of this issuer can grant."),
]
Granted = Annotated[list[KnownScope], Field(max_length=16)]
_MAP = "What each group grants in addition to the token's own scopes, within `max_scopes`."


class ClaimsBody(Strict):
    """The names of the claims, or paths with dots (`realm_access.roles`). `tenant` must be the tenant of the path;
    `groups` goes with a `map` of what they grant."""

    subject: Claim = "sub"
    scopes: Claim = "scope"
    tenant: Claim | None = None
    groups: Claim | None = None
    map: dict[Claim, Granted] | None = Field(default=None, max_length=MAX_GROUPS, description=_MAP)

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.groups is None) != (self.map is None):
            raise PydanticCustomError("groups", "`groups` and `map` go together")
        if self.map is not None and len(json.dumps(self.map)) > MAX_CLAIMS_BYTES:
            raise PydanticCustomError("map", "`map` is at most {n} bytes of JSON", {"n": MAX_CLAIMS_BYTES})
        return self

    def kept(self) -> dict[str, Any]:
        """What is stored, as before there were groups if there are none."""
        return {**self.model_dump(include={"subject", "scopes", "tenant"}), **self.model_dump(exclude_none=True)}


class TenantGrantBody(Strict):
    """A tenant, and what is granted there in addition to the token's own scopes, within `max_scopes`."""

    tenant: Name
    scopes: Granted = Field(default_factory=no_items)


class TenantsBody(Strict):
    """The tenants of an issuer of the platform: those for which the values of a claim stand, and no other."""

    claim: Claim
    map: dict[Claim, Name | TenantGrantBody] = Field(
        max_length=MAX_TENANTS, description="The tenant of each value, perhaps with scopes there."
    )

    @classmethod
    def of(cls, served: ServedTenants) -> Self:
        entries = sorted(served.map.items())
        grants = ((value, TenantGrantBody(tenant=each.tenant, scopes=list(each.scopes))) for value, each in entries)
        return cls(claim=served.claim, map=dict(grants))

    def served(self) -> ServedTenants:
        grants = {
            value: TenantGrant(each) if isinstance(each, str) else TenantGrant(each.tenant, tuple(each.scopes))
            for value, each in sorted(self.map.items())
        }
        return ServedTenants(self.claim, grants)


class SignInBody(Strict):
    """How people sign in with this issuer: authorization code with PKCE, as a public client or with `client_secret`."""

    client_id: Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(one_line)]
    scope: Annotated[str, StringConstraints(min_length=1, max_length=512), AfterValidator(one_line)] = "openid"
    token: Literal["access_token", "id_token"] = Field(
        default="access_token", description="Which token is the credential; it is checked like any other."
    )
    client_secret: ClientSecret | None = None
    parameters: dict[Parameter, Asked] = Field(
        default_factory=dict,
        max_length=MAX_PARAMETERS,
        description="What else people are sent to the provider with.",
        examples=[{"access_type": "offline", "prompt": "consent"}],
    )


class SignInPatch(Strict):
    """A merge patch."""

    client_id: str | None = None
    scope: str | None = None
    token: Literal["access_token", "id_token"] | None = None
    client_secret: ClientSecret | None = None
    parameters: dict[Parameter, Asked | None] | None = Field(default=None, max_length=2 * MAX_PARAMETERS)


class IssuerBody(DeclaredBody):
    """A new issuer: only HS256 with a `secret`, or other algorithms with a `jwks_url` or a `discovery_url`.

    With `tenants` it belongs to the platform: only in the tenant `default`, only for platform administrators.
    """

    model: ClassVar[type[Any]] = Issuer

    issuer: Annotated[str, StringConstraints(max_length=MAX_ISSUER), AfterValidator(_issuer_name)]
    algorithms: Algorithms
    secret: Secret | None = None
    jwks_url: Url | None = None
    discovery_url: Url | None = None
    audience: Audience = Field(default_factory=no_items)
    claims: ClaimsBody = Field(default_factory=ClaimsBody)
    max_scopes: MaxScopes = Field(default_factory=lambda: [str(Scope.CONNECT)])
    tenants: TenantsBody | None = None
    sign_in: SignInBody | None = None

    @model_validator(mode="after")
    def _can_sign_in(self) -> Self:
        if self.sign_in is not None and self.discovery_url is None:
            raise PydanticCustomError("sign_in", "`sign_in` needs a `discovery_url`: it names where people sign in")
        return self

    @model_validator(mode="after")
    def _one_family(self) -> Self:
        if sum(each is not None for each in (self.secret, self.jwks_url, self.discovery_url)) != 1:
            raise PydanticCustomError("source", "needs exactly one of secret, jwks_url and discovery_url")
        if (self.secret is not None) != (HMAC in self.algorithms):
            raise PydanticCustomError("family", "HS256 goes with a secret, every other algorithm with a URL")
        if HMAC in self.algorithms and set(self.algorithms) != {HMAC}:
            raise PydanticCustomError(
                "family",
                "HS256 must be the only algorithm: whoever knows a secret must not be able to sign for a key pair",
            )
        return self

    @model_validator(mode="after")
    def _within_the_cap(self) -> Self:
        cap = frozenset(self.max_scopes)
        for scope in dict.fromkeys(scope for granted in (self.claims.map or {}).values() for scope in granted):
            if not capped([scope], DEFAULT_TENANT, cap):
                raise PydanticCustomError("map", "`map` grants {scope}, which is not in `max_scopes`", {"scope": scope})
        return self

    @model_validator(mode="after")
    def _of_the_platform(self) -> Self:
        if self.tenants is None:
            return self
        if self.claims.tenant is not None:
            raise PydanticCustomError("tenants", "`claims.tenant` names one tenant: it does not go with `tenants`")
        cap = frozenset(self.max_scopes)
        for grant in self.tenants.served().map.values():
            for scope in grant.scopes:
                if not capped([scope], grant.tenant, cap):
                    wrong = {"scope": scope, "tenant": grant.tenant}
                    raise PydanticCustomError("tenants", "{scope} in {tenant} is beyond `max_scopes`", wrong)
        return self


@patches(ClaimsBody)
class ClaimsPatch(Strict):
    """A merge patch."""

    map: dict[Claim, Granted | None] | None = Field(default=None, max_length=2 * MAX_GROUPS, description=_MAP)


@patches(TenantGrantBody)
class TenantGrantPatch(Strict):
    """A merge patch."""


class TenantsPatch(Strict):
    """A merge patch: null removes an entry of `map`."""

    claim: Claim | None = None
    map: dict[Claim, Name | TenantGrantPatch | None] | None = Field(default=None, max_length=2 * MAX_TENANTS)


@patches(IssuerBody, without=["issuer"])
class IssuerPatch(Strict):
    """A merge patch (RFC 7396): null removes a member or restores its default. `issuer` cannot be changed, nor whether
    the issuer belongs to the platform."""

    secret: Secret | None = None
    claims: ClaimsPatch | None = None
    tenants: TenantsPatch | None = None
    sign_in: SignInPatch | None = None


class SignInAnswer(Answer):
    """How people sign in with this issuer."""

    client_id: str
    scope: str
    token: str
    has_client_secret: bool = Field(
        False, description="Whether the gateway has a secret or a key for it, which is not shown."
    )
    parameters: dict[str, str]


def _tenants(served: object) -> object:
    return TenantsBody.of(served) if isinstance(served, ServedTenants) else served


class IssuerAnswer(Answer):
    """An issuer without its secret. One with `tenants` belongs to the platform; a tenant sees only its own entries."""

    id: str
    tenant: str
    issuer: str
    algorithms: list[str]
    jwks_url: str | None
    discovery_url: str | None
    audience: list[str]
    claims: ClaimsBody
    max_scopes: SortedTexts
    tenants: Annotated[TenantsBody | None, BeforeValidator(_tenants)]
    sign_in: SignInAnswer | None
    created_at: datetime
    version: int

    @classmethod
    def of(cls, value: Issuer) -> Self:
        shown = super().of(value)
        if shown.sign_in is None:
            return shown
        has_secret = {"has_client_secret": value.sealed_client_secret is not None}
        return shown.model_copy(update={"sign_in": shown.sign_in.model_copy(update=has_secret)})


class IssuerMade(IssuerAnswer):
    """A new or changed issuer, and why its tokens cannot be accepted now."""

    warnings: list[str]
