"""The bodies of the REST API about issuers of tokens, as strict as those in schemas.py."""

from datetime import datetime
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from app.admin.schemas import Strict, known_scope, one_line
from app.auth.jwks import ALGORITHMS
from app.auth.tokens import HMAC, MAX_ISSUER, is_issuer, is_secret
from app.domain import Scope
from app.storage.issuers import Issuer


def _issuer_name(text: str) -> str:
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
        raise PydanticCustomError("secret", "must have 32 bytes or more, and be no public key")
    return text


Claim = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(one_line)]
Algorithms = Annotated[list[Annotated[str, AfterValidator(_known_algorithm)]], Field(min_length=1, max_length=16)]
Secret = Annotated[
    str,
    StringConstraints(max_length=1024),
    AfterValidator(_strong),
    Field(description="Write-only: no answer shows it. Its UTF-8 bytes are the key."),
]
Url = Annotated[str, StringConstraints(min_length=1, max_length=2048)]
Audience = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=512), AfterValidator(one_line)]],
    Field(max_length=16, description="One of these must be in `aud`; empty: the URL of the endpoint itself."),
]
MaxScopes = Annotated[
    list[Annotated[str, AfterValidator(known_scope)]],
    Field(min_length=1, max_length=32, description="The most that tokens of this issuer can confer."),
]


class ClaimsBody(Strict):
    """Which claim says what: a name, or a path with dots. `tenant` is only compared with that of the path."""

    subject: Claim = "sub"
    scopes: Claim = "scope"
    tenant: Claim | None = None


class IssuerBody(Strict):
    """A new issuer: HS256 alone with a `secret`, or other algorithms with a `jwks_url` or a `discovery_url`."""

    issuer: Annotated[str, StringConstraints(max_length=MAX_ISSUER), AfterValidator(_issuer_name)]
    algorithms: Algorithms
    secret: Secret | None = None
    jwks_url: Url | None = None
    discovery_url: Url | None = None
    audience: Audience = Field(default_factory=list)
    claims: ClaimsBody = Field(default_factory=ClaimsBody)
    max_scopes: MaxScopes = Field(default_factory=lambda: [str(Scope.CONNECT)])

    @model_validator(mode="after")
    def _one_family(self) -> Self:
        if sum(each is not None for each in (self.secret, self.jwks_url, self.discovery_url)) != 1:
            raise PydanticCustomError("source", "needs exactly one of secret, jwks_url and discovery_url")
        if (self.secret is not None) != (HMAC in self.algorithms):
            raise PydanticCustomError("family", "HS256 goes with a secret, every other algorithm with a URL")
        if HMAC in self.algorithms and set(self.algorithms) != {HMAC}:
            raise PydanticCustomError("family", "HS256 stands alone: who knows a secret must not sign for a key pair")
        return self


class ClaimsPatch(Strict):
    """A merge patch."""

    subject: Claim | None = None
    scopes: Claim | None = None
    tenant: Claim | None = None


class IssuerPatch(Strict):
    """A merge patch (RFC 7396): null removes a member, or brings its default back. `issuer` itself stays."""

    algorithms: Algorithms | None = None
    secret: Secret | None = None
    jwks_url: Url | None = None
    discovery_url: Url | None = None
    audience: Audience | None = None
    claims: ClaimsPatch | None = None
    max_scopes: MaxScopes | None = None


class IssuerAnswer(BaseModel):
    """An issuer, without its secret."""

    id: str
    tenant: str
    issuer: str
    algorithms: list[str]
    jwks_url: str | None
    discovery_url: str | None
    audience: list[str]
    claims: ClaimsBody
    max_scopes: list[str]
    created_at: datetime
    version: int

    @classmethod
    def of(cls, record: Issuer) -> Self:
        """Shows the value."""
        shown = {name: getattr(record, name) for name in cls.model_fields}
        lists = {"algorithms": list(record.algorithms), "audience": list(record.audience)}
        return cls(**{**shown, **lists, "claims": dict(record.claims), "max_scopes": sorted(record.max_scopes)})
