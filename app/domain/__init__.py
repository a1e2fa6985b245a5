"""The values of the domain: tenants, backends, principals, credentials. No I/O."""

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

DEFAULT_TENANT = "default"
KEY_ISSUER = "key"  # `Principal.issuer` of the holder of an API key
HOME_WORD = "${home}"  # in a value of a backend's `env`: the home of the process
NAME_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"
NAME_RULE = "lower-case letters, digits and hyphens, 63 at most"  # the same for people
_is_mark = re.compile(r"key|cli|uid ?[0-9]*").fullmatch
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
    keys; `cli`, the command line; `uid 0`, who used it. No issuer may have such a name."""
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
class Limits:
    """What one tenant may use at once; None is no limit. `parked_sessions`, `frozen_sessions`: on each node."""

    sessions: int | None = 100
    sessions_per_principal: int | None = None
    processes: int | None = 50
    in_flight: int | None = None
    requests_per_second: float | None = 50.0
    burst: int | None = 100
    memory_mb: int | None = None
    spawns_per_minute: int | None = None
    parked_sessions: int | None = 1000
    frozen_sessions: int | None = 1000


RegistryMode = Literal["off", "keys", "public"]  # who may read what a tenant offers
InspectionMode = Literal["allowed", "metadata", "forbidden"]  # whether messages may be looked at; strictest last


@dataclass(frozen=True, slots=True)
class Tenant:
    """One customer of the platform. Backends, keys and sessions belong to exactly one.

    `reason` says why it is not `enabled`: its own callers are told. `sandbox_exempt`: its backends may run without what
    the platform requires of sandboxes. `registry`: who may read its list of servers. `inspections`: whether messages of
    its sessions may be looked at.
    """

    name: str
    limits: Limits = field(default_factory=Limits)
    enabled: bool = True
    reason: str = ""
    sandbox_exempt: bool = False
    registry: RegistryMode = "off"
    inspections: InspectionMode = "allowed"
    version: int = 1
    made: int = field(default=0, compare=False)  # when, in microseconds


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a backend and its sessions may take.

    An idle session ends after `idle_s`, or after `reclaim_idle_s` if another session needs its place. After `park_s` it
    is parked or frozen (`BackendSpec.rests_as`) until the next message; None: never.
    """

    initialize_s: float = 30.0
    call_s: float = 60.0
    idle_s: float = 1800.0
    absolute_s: float = 86400.0
    reclaim_idle_s: float = 300.0
    park_s: float | None = None


Guarantee = Literal["files", "network", "memory", "pids", "processes"]  # what a sandbox can promise
Network = Literal["none", "web", "host"]


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How processes of a backend are confined.

    `auto`: by everything that works on the node. `require`: they start only where each of `require` (all guarantees, if
    it is empty) is enforced. `off`: not at all.
    `read`, `write`: absolute paths that the processes may use besides their home and what their program needs.
    `network`: `web` is public addresses on ports 80 and 443, `host` is everything that the node reaches.
    """

    mode: Literal["auto", "require", "off"] = "auto"
    require: tuple[Guarantee, ...] = ()
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: Network = "none"


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What a process and all it starts may use; None: no limit. `cpu`: cores. `disk_mb`: home and temporary files."""

    memory_mb: int | None = 512
    pids: int | None = 64
    cpu: float | None = 1.0
    files: int | None = 1024
    disk_mb: int | None = 256


@dataclass(frozen=True, slots=True)
class Selection:
    """Which tools of a backend are shown, and how.

    Patterns have `*`, `?` and `[…]`, and mean the backend's own names; without `include` all are meant. `rename` and
    `describe` give a tool, by its own name, another name and description.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict, hash=False)
    describe: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Member:
    """A backend of the same tenant in a toolset, and which of its tools are shown there. `prefix` is that of names of
    tools and prompts."""

    backend: str
    prefix: str
    selection: Selection = field(default_factory=Selection)


@dataclass(frozen=True, slots=True)
class Toolset:
    """What a toolset has besides what every backend has. Without `instructions` it tells those of its members. `mode`:
    all tools are listed; or two that find and call the others, besides those whose names match `always`; or one
    of both, by the client and the number of tools. `learns`: from which tools are called after which searches.
    `guides`: patterns of the names of the tenant's guides that it shows.
    """

    title: str = ""
    instructions: str = ""
    members: tuple[Member, ...] = ()
    mode: Literal["list", "search", "auto"] = "list"
    always: tuple[str, ...] = ()
    learns: bool = True
    guides: tuple[str, ...] = ()


Transport = Literal["auto", "streamable-http", "sse"]  # of a server that is reached by URL
Rest = Literal["parked", "frozen"]  # an idle session has given its process back; or it stands still


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """A registered server: what to start, how many, and for how long; or where it is.

    `cwd`: its working directory, absolute or below the tenant's home; None is the home itself. `state`: `none`: each
    process has a home of its own, which is removed with it. `keep`: each principal has one that lasts.
    `warm`: how many processes are kept ready; `auto`: as many as the arrivals of the last hours ask for.
    `start`: `exec`: the command is executed for each process. `fork`: it is a fork of one that has imported what the
    program needs, where that can be done; `auto`: only if a fork answers as a process that is executed.
    `broadcast`: messages of a shared process that belong to no session go to all of its sessions, instead of none.
    `reason`: why it is not `enabled`. With `off_by_platform` only the platform can switch it on again.
    `version` grows with every change; a process started for another `edition` serves no new session.
    Set when the spec is read from the database: `made`, when the backend was, in microseconds; `home`, the name of the
    tenant's home (`home_of`); `sandbox_exempt`, that of the tenant. Set when a process is started: `keeper`, the
    identity of the principal whose home it gets (`homes_per_principal`).
    `pin`: whether tools that nobody has approved as they are offered are shown and called (`warn`: all but those that
    were rejected); `pin_minor`: whether harmless edits of an approved definition are. `selection`: which are shown.
    `toolset`: it starts nothing itself, but stands for other backends; `command` is empty. `url`: where the server is,
    with an empty `command` too. `headers` are sent with each request to it; sealed (`upstreams.sealed_headers`).
    `missed_log`: the descriptor of a file for what the sandbox keeps from a process, in a check; never stored.
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
    warm: int | Literal["auto"] = 0
    max_processes: int = 10
    calls_per_session: int = 128
    timeouts: Timeouts = field(default_factory=Timeouts)
    sandbox: Sandbox = field(default_factory=Sandbox)
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    state: Literal["none", "keep"] = "none"
    start: Literal["exec", "fork", "auto"] = "exec"
    selection: Selection = field(default_factory=Selection)
    pin: Literal["off", "warn", "block"] = "off"
    pin_minor: Literal["accept", "ask"] = "ask"
    toolset: Toolset | None = None
    url: str | None = None
    transport: Transport = "auto"
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    enabled: bool = True
    reason: str = ""
    off_by_platform: bool = False
    version: int = 1
    home: str = ""
    keeper: tuple[str, ...] | None = None
    sandbox_exempt: bool = False
    missed_log: int | None = None
    made: int = field(default=0, compare=False)

    @property
    def edition(self) -> tuple[int, int]:
        """Greater for a later definition, also where the backend was removed and made again: versions begin anew."""
        return (self.made, self.version)

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the backend on a node: (tenant, name)."""
        return (self.tenant, self.name)

    @property
    def keeps_state(self) -> bool:
        """Whether later calls may depend on earlier ones. Assumed, unless an administrator has said otherwise."""
        return self.isolation != "shared" and self.recovery != "respawn"

    @property
    def homes_per_principal(self) -> bool:
        """Whether a process is started for one principal, whose home it gets. A shared one serves many."""
        return self.state == "keep" and self.isolation != "shared"

    @property
    def is_toolset(self) -> bool:
        """Whether its sessions have members, instead of a process."""
        return self.toolset is not None or self.selection != Selection() or self.pin != "off"

    @property
    def rests_as(self) -> Rest | None:
        """What becomes of idle sessions. Where the next process could not know what the present one does, that is kept;
        but not while others share it."""
        if self.timeouts.park_s is None or (self.recovery == "end" and self.isolation == "shared"):
            return None
        return "parked" if self.recovery == "respawn" else "frozen"

    @property
    def has_kept_home(self) -> bool:
        """Whether a process that is started for this spec has a home that lasts. That of a check has not."""
        return self.state == "keep" and not (self.homes_per_principal and self.keeper is None)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a request. Credentials with the same `identity` are the same caller; a token's bytes do not matter.

    For an API key `issuer` is "key" and `subject` the key's id. At `expires_at` (Unix time) the credential expires, and
    what was opened with it ends.
    """

    tenant: str
    issuer: str
    subject: str
    scopes: frozenset[str]
    expires_at: float | None = None

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
    """The gateway as a client of an issuer (OpenID Connect, authorization code with PKCE, no secret). `token`: which of
    the tokens that it gets is the credential."""

    client_id: str
    scope: str
    token: Literal["access_token", "id_token"]


@dataclass(frozen=True, slots=True)
class Issuer:
    """One token issuer of one tenant, with exactly one of `sealed_secret`, `jwks_url` and `discovery_url`.

    If `audience` is empty, a token must be for the endpoint that it is sent to. `claims` has the names of the claims of
    subject, scopes, tenant and groups, and the scopes of groups (`map`). Its tokens confer `max_scopes` at most. With
    `tenants` it is an issuer of the platform. `sign_in`: how people sign in to the console with it, if they may.
    """

    id: str
    tenant: str
    issuer: str
    algorithms: tuple[str, ...]
    audience: tuple[str, ...]
    claims: Mapping[str, Any]
    max_scopes: frozenset[str]
    created_at: datetime
    sealed_secret: bytes | None = field(default=None, repr=False)
    jwks_url: str | None = None
    discovery_url: str | None = None
    version: int = 1
    tenants: ServedTenants | None = None
    sign_in: SignInClient | None = None

    def opens(self) -> frozenset[str]:
        """The tenants that its tokens give access to."""
        return frozenset({self.tenant}) if self.tenants is None else self.tenants.names()

    def seen_from(self, tenant: str) -> "Issuer":
        """The same issuer, as another tenant may see it: without the values for other tenants."""
        return self if self.tenants is None else replace(self, tenants=self.tenants.within(tenant))


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key as it is stored: a digest instead of the key."""

    id: str
    tenant: str
    name: str
    digest: bytes = field(repr=False)
    pepper_version: int
    scopes: frozenset[str]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    enabled: bool = True
    reason: str = ""
    off_by_platform: bool = False
