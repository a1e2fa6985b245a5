"""The values of the domain: tenants, backends, principals, credentials, and how they are named. No I/O."""

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from app.domain.resources.backends import (
    HOME_WORD,
    BackendSpec,
    Guarantee,
    Member,
    Network,
    Package,
    ProcessLimits,
    Rest,
    Sandbox,
    Selection,
    Timeouts,
    Toolset,
    Transport,
)
from app.domain.resources.fields import DERIVED, NAME_PATTERN, NAME_RULE, Id, Reason, stored
from app.domain.resources.tenants import InspectionMode, Limits, RegistryMode, SignIn, Tenant

DEFAULT_TENANT = "default"
KEY_ISSUER = "key"  # `Principal.issuer` of the holder of an API key
CLIENT_ISSUER = "oauth-client"  # ... of a client that has connected by itself
_is_mark = re.compile(r"key|cli|oauth-client|uid ?[0-9]*").fullmatch
_is_name = re.compile(NAME_PATTERN.strip("^$")).fullmatch
_is_home = re.compile(NAME_PATTERN.strip("^$") + r"(\.[0-9a-f]{1,16})?").fullmatch


def is_name(text: str) -> bool:
    """Whether this is a valid name of a tenant or a backend."""
    return _is_name(text) is not None


def home_of(tenant: str, created_at: datetime) -> str:
    """The name of the home of the tenant's backends. A tenant that is deleted and created again gets another one."""
    return f"{tenant}.{(created_at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1):x}"


def is_home(text: str) -> bool:
    """Whether this is a valid name of a home."""
    return _is_home(text) is not None


def is_own_mark(text: str) -> bool:
    """Whether it reads like a name that the gateway itself uses for who has done something: `key`, the issuer of API
    keys; `oauth-client`, that of clients; `cli`, the command line; `uid 0`, who used it. No issuer may be called so."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return _is_mark(plain) is not None


def public_id(session_id: str) -> str:
    """The id of a session for everybody but its owner: the real one is half of a credential."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:12]


class Scope(StrEnum):
    """What a credential allows. `mcp:connect:<backend>` narrows CONNECT to one backend."""

    CONNECT = "mcp:connect"
    TENANT_ADMIN = "tenant:admin"
    TENANT_READ = "tenant:read"
    AUDIT_READ = "audit:read"
    METRICS_READ = "metrics:read"
    PLATFORM_ADMIN = "platform:admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a request. Credentials with the same `identity` are the same caller; a token's bytes do not matter.

    For an API key `issuer` is "key" and `subject` the key's id. At `expires_at` (Unix time) the credential expires, and
    what was opened with it ends. `grant`: on what a token of our own stands, the id of a Connection, or CLIENT_GRANT
    with the name and `mark` of a client; such a token is for MCP endpoints only. `groups`: those of its token that the
    issuer's `claims.map` has.
    """

    tenant: str
    issuer: str
    subject: str
    scopes: frozenset[str]
    expires_at: float | None = None
    grant: str = ""
    groups: frozenset[str] = frozenset()

    @property
    def identity(self) -> tuple[str, str, str]:
        """The owner of sessions."""
        return (self.tenant, self.issuer, self.subject)

    @property
    def name(self) -> str:
        """For a log: `key 8Jd0sA2f`, or the issuer of the token and its subject."""
        return f"{self.issuer} {self.subject}"


@dataclass(frozen=True, slots=True)
class TenantGrant:
    """What one value of a claim grants: access to a tenant, with these scopes in addition to the token's own."""

    tenant: str
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServedTenants:
    """The tenants that an issuer of the platform opens, by the values of a claim."""

    claim: str
    map: Mapping[str, TenantGrant] = field(default_factory=dict, hash=False)

    def names(self) -> frozenset[str]:
        return frozenset(grant.tenant for grant in self.map.values())

    def within(self, tenant: str) -> "ServedTenants":
        """The same, without the values for other tenants."""
        return ServedTenants(self.claim, {value: each for value, each in self.map.items() if each.tenant == tenant})


@dataclass(frozen=True, slots=True)
class SignInClient:
    """The gateway as a client of an issuer (OpenID Connect, authorization code with PKCE). `token`: which of the tokens
    that it gets is the credential. It has a secret or a key where `Issuer.sealed_client_secret` is one. `parameters`:
    what else its authorization request has."""

    client_id: str
    scope: str
    token: Literal["access_token", "id_token"]
    parameters: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Issuer:
    """One token issuer of one tenant, with exactly one of `sealed_secret`, `jwks_url` and `discovery_url`.

    If `audience` is empty, a token must be for the endpoint that it is sent to. `claims` has the names of the claims of
    subject, scopes, tenant and groups, and the scopes of groups (`map`). Its tokens confer `max_scopes` at most. With
    `tenants` it is an issuer of the platform. `sign_in`: how people sign in to the console with it, if they may.
    """

    id: Id
    tenant: str
    issuer: Annotated[str, stored(512)]
    algorithms: tuple[str, ...]
    audience: tuple[str, ...]
    claims: Mapping[str, Any]
    max_scopes: frozenset[str]
    created_at: datetime
    sealed_secret: bytes | None = field(default=None, repr=False)
    jwks_url: str | None = None
    discovery_url: str | None = None
    version: int = 1
    tenants: ServedTenants | None = field(default=None, metadata=DERIVED)
    sign_in: SignInClient | None = None
    sealed_client_secret: bytes | None = field(default=None, repr=False)

    def opens(self) -> frozenset[str]:
        """The tenants that its tokens give access to."""
        return frozenset({self.tenant}) if self.tenants is None else self.tenants.names()

    def seen_from(self, tenant: str) -> "Issuer":
        """The same issuer, as another tenant may see it: without the values for other tenants."""
        return self if self.tenants is None else replace(self, tenants=self.tenants.within(tenant))


CLIENT_GRANT = "client "  # no id has a space


@dataclass(frozen=True, slots=True)
class Connection:
    """What a person has allowed a client (an authorization): from its code, then from refresh tokens, come the access
    tokens that stand on it. Neither is stored: both are derived from `id` and `turn`.

    `backend`: for which endpoint, "" for all of the tenant. `scopes`: what the person may connect to, narrowed to that.
    `turn`: 0 while the code waits, then how many refresh tokens there were, the last one since `turned_at`.
    """

    id: Id
    tenant: str
    client_id: Annotated[str, stored(1000)]
    client_title: Annotated[str, stored(200)]
    issuer: Annotated[str, stored(512)]
    subject: Annotated[str, stored(255)]
    backend: Annotated[str, stored(63)]
    scopes: frozenset[str]
    base_url: Annotated[str, stored(1000)] = field(repr=False)  # under which the client reaches the gateway
    redirect_uri: Annotated[str, stored(1000)] = field(repr=False)
    challenge: Annotated[str, stored(43)] = field(repr=False)
    created_at: datetime
    turned_at: datetime
    ends_at: datetime
    turn: int = 0
    groups: frozenset[str] = field(default=frozenset(), metadata=DERIVED)  # of the person, when it was asked last

    @property
    def identity(self) -> tuple[str, str, str]:
        """As that of the person's Principal."""
        return (self.tenant, self.issuer, self.subject)


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who has signed in with an identity provider: what it allowed when it was `asked_at`, the groups that
    count (as those of the Principal), and its refresh token, with which it is asked again; None: it gave none."""

    tenant: str
    issuer: Annotated[str, stored(512)]
    subject: Annotated[str, stored(255)]
    scopes: frozenset[str]
    asked_at: datetime
    sealed: bytes | None = field(default=None, repr=False)
    groups: frozenset[str] = frozenset()

    @property
    def identity(self) -> tuple[str, str, str]:
        """As that of the person's Principal."""
        return (self.tenant, self.issuer, self.subject)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key as it is stored: a digest instead of the key."""

    id: Id
    tenant: str
    name: Annotated[str, stored(200)]
    digest: Annotated[bytes, stored(32)] = field(repr=False)
    pepper_version: int
    scopes: frozenset[str]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    enabled: bool = True
    reason: Reason = ""
    off_by_platform: bool = False


__all__ = [
    "CLIENT_GRANT", "CLIENT_ISSUER", "DEFAULT_TENANT", "HOME_WORD", "KEY_ISSUER", "NAME_PATTERN", "NAME_RULE", "ApiKey",
    "BackendSpec", "Connection", "Guarantee", "InspectionMode", "Issuer", "Limits", "Member", "Network", "Package",
    "Person", "Principal", "ProcessLimits", "RegistryMode", "Rest", "Sandbox", "Scope", "Selection", "ServedTenants",
    "SignIn", "SignInClient", "Tenant", "TenantGrant", "Timeouts", "Toolset", "Transport", "home_of", "is_home",
    "is_name", "is_own_mark", "public_id",
]  # fmt: skip
