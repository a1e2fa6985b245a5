"""The values everything else speaks of: tenants, backends, principals. No behaviour beyond themselves."""

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Literal

DEFAULT_TENANT = "default"
KEY_ISSUER = "key"  # what `Principal.issuer` says of a key's holder
NAME_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"
_is_mark = re.compile(r"key|cli|uid ?[0-9]*").fullmatch
_is_name = re.compile(NAME_PATTERN.rstrip("$") + r"\Z").match
_is_home = re.compile(NAME_PATTERN.rstrip("$") + r"(\.[0-9a-f]{1,16})?\Z").match


def is_name(text: str) -> bool:
    """Whether this may name a tenant or a backend."""
    return _is_name(text) is not None


def home_of(tenant: str, created_at: datetime) -> str:
    """What the home of the tenant's backends is called. A tenant that is made anew under the same name has another."""
    return f"{tenant}.{(created_at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1):x}"


def is_home(text: str) -> bool:
    """Whether a home can be called so."""
    return _is_home(text) is not None


def is_own_mark(text: str) -> bool:
    """Whether it reads like what the gateway itself writes where it says who has done something: the issuer of API
    keys, `key`; the command line, `cli`, and who used it, `uid 0`. Nobody else may be called so."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return _is_mark(plain) is not None


def public_id(session_id: str) -> str:
    """What a session is called where others than its owner can see it: its real id is half of a credential."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:12]


class Scope(StrEnum):
    """What a credential may be allowed to do. `mcp:connect:<backend>` narrows CONNECT to one backend."""

    CONNECT = "mcp:connect"
    TENANT_ADMIN = "tenant:admin"
    TENANT_READ = "tenant:read"
    AUDIT_READ = "audit:read"
    METRICS_READ = "metrics:read"
    PLATFORM_ADMIN = "platform:admin"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one tenant may use at once; None is no limit."""

    sessions: int | None = 100
    sessions_per_principal: int | None = None
    processes: int | None = 50
    in_flight: int | None = None
    requests_per_second: float | None = 50.0
    burst: int | None = 100
    memory_mb: int | None = 512
    spawns_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """One customer of the platform. Backends, keys and sessions belong to exactly one.

    `reason` says why it is not `enabled`: its own callers are told.
    """

    name: str
    limits: Limits = field(default_factory=Limits)
    enabled: bool = True
    reason: str = ""
    version: int = 1


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a backend and its sessions may take, in seconds.

    An idle session lives for `idle_s`; but one that has been idle for `reclaim_idle_s` makes room where there is none.
    """

    initialize_s: float = 30.0
    call_s: float = 60.0
    idle_s: float = 1800.0
    absolute_s: float = 86400.0
    reclaim_idle_s: float = 300.0


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """A registered stdio server: what to start, how many, and for how long.

    `cwd`: where it works, absolute or below the tenant's home; None is the home itself.
    `broadcast`: what a shared process says to nobody in particular goes to all its sessions instead of none.
    `reason` says why it is not `enabled`; what the platform has switched off (`off_by_platform`) it alone switches on.
    `version` grows with every change; a process started for another version serves no new session.
    `home` is what the home of its tenant is called (`home_of`): known to whatever comes from the database.
    """

    tenant: str
    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    cwd: str | None = None
    isolation: Literal["session", "shared"] = "session"
    recovery: Literal["end", "respawn"] = "end"
    broadcast: bool = False
    warm: int = 0
    max_processes: int = 10
    calls_per_session: int = 128
    timeouts: Timeouts = field(default_factory=Timeouts)
    enabled: bool = True
    reason: str = ""
    off_by_platform: bool = False
    version: int = 1
    home: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the backend on a node: (tenant, name)."""
        return (self.tenant, self.name)

    @property
    def keeps_state(self) -> bool:
        """Whether what a process has heard may matter later: so it is, unless an administrator has said otherwise."""
        return self.isolation != "shared" and self.recovery != "respawn"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking. Two credentials of the same `identity` are the same caller; the token's bytes are not part of it.

    For an API key `issuer` is "key" and `subject` the key's id. `expires_at` is that of the credential, in Unix time:
    what was opened with it ends then.
    """

    tenant: str
    issuer: str
    subject: str
    scopes: frozenset[str]
    expires_at: float | None = None

    @property
    def identity(self) -> tuple[str, str, str]:
        """What sessions are bound to."""
        return (self.tenant, self.issuer, self.subject)

    @property
    def name(self) -> str:
        """For a log: `key 8Jd0sA2f`, or the issuer of the token and its subject."""
        return f"{self.issuer} {self.subject}"


@dataclass(frozen=True, slots=True)
class TenantGrant:
    """What one value of a claim opens: a tenant, and there the scopes beside those that the token has itself."""

    tenant: str
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServedTenants:
    """Which tenants an issuer of the platform opens: those that values of a claim stand for in this list, no other."""

    claim: str
    map: Mapping[str, TenantGrant] = field(default_factory=dict, hash=False)

    def names(self) -> frozenset[str]:
        """The tenants of the list."""
        return frozenset(grant.tenant for grant in self.map.values())

    def within(self, tenant: str) -> "ServedTenants":
        """As much of the list as speaks of this tenant."""
        return ServedTenants(self.claim, {value: each for value, each in self.map.items() if each.tenant == tenant})
