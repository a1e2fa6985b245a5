"""The bodies of the REST API, without those about issuers: strict models, every string and list with its bound."""

import json
import os
import re
import shlex
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from app.auth.policy import is_scope
from app.domain import NAME_PATTERN, BackendSpec, Limits, Tenant, Timeouts
from app.storage import ApiKey

MAX_REASON = 300
HIDDEN = "***"  # what an answer shows of an env value; sent back in a PATCH it means "as it is"
MAX_ARGS_BYTES = 64 * 1024
MAX_ENV_BYTES = 64 * 1024
MAX_QUOTED = 200  # characters of what a message repeats
MAX_DOCUMENT_BYTES = 256 * 1024
DEFAULT_KEY_LIFE = timedelta(days=90)
MAX_KEY_LIFE = timedelta(days=3650)

_LIMITS, _TIMEOUTS = Limits(), Timeouts()


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("nul", "must not contain NUL characters")
    return text


def one_line(text: str) -> str:
    """For a validator: the text, if all of it can be printed."""
    if not text.isprintable():
        raise PydanticCustomError("printable", "must be printable characters")
    return text


def known_scope(text: str) -> str:
    """For a validator: the text, if it is a scope."""
    if not is_scope(text):
        raise PydanticCustomError("scope", "there is no such scope")
    return text


def _is_text(value: object) -> object:
    if not isinstance(value, str):
        raise PydanticCustomError("timestamp", "must be a timestamp such as 2030-01-31T12:00:00Z")
    return value


def _one_program(command: str) -> str:
    """The command, unless it is a command line: there is no shell to take it apart. A path may have spaces in it."""
    if not any(each.isspace() for each in command) or (command.startswith("/") and os.path.isfile(command)):
        return command
    message = "is one program, without its arguments"
    try:
        program, *arguments = shlex.split(re.sub(r"\s", " ", command))
    except ValueError:  # nothing in it, or a quotation mark without its end
        pass
    else:
        split = f"{json.dumps(program)[:MAX_QUOTED]}, and {json.dumps(arguments)[1:-1][:MAX_QUOTED]}"
        message += f": write {split} at the beginning of `args`" if arguments else f": write {split}"
    raise PydanticCustomError("command_line", "{message}", {"message": message})


def _directory(path: str) -> str:
    """For a validator: the working directory, if it is absolute or stays below the tenant's home."""
    if path.startswith("~"):
        raise PydanticCustomError("cwd", "is relative to the tenant's home already: leave out `~`")
    if not path.startswith("/") and ".." in path.split("/"):
        raise PydanticCustomError("cwd", "leads out of the tenant's home: write an absolute path")
    return path


Reason = Annotated[
    str,
    StringConstraints(max_length=MAX_REASON),
    AfterValidator(one_line),
    Field(description="Why it is switched off, in one line; its callers are told. Gone when it is on again."),
]


class Strict(BaseModel):
    """What a client may send: nothing unknown, nothing converted, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN), Field(description="Lower-case letters, digits, `-`.")]
StoredCommand = Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(_no_nul)]
Command = Annotated[
    StoredCommand,
    AfterValidator(_one_program),
    Field(
        description="One program: a name that is on the gateway's PATH, or a path. Its arguments go into `args`: white "
        "space is refused here, but for an absolute path that exists."
    ),
]
Cwd = Annotated[
    str,
    StringConstraints(min_length=1, max_length=4096),
    AfterValidator(_no_nul),
    AfterValidator(_directory),
    Field(
        description="Where the processes work: an absolute path, or one below the tenant's home. It must be there, on "
        "each node. null: the tenant's home."
    ),
]
Argument = Annotated[str, StringConstraints(max_length=MAX_ARGS_BYTES), AfterValidator(_no_nul)]
Arguments = Annotated[list[Argument], Field(max_length=256, description="At most 64 KiB in all.")]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
EnvValue = Annotated[str, StringConstraints(max_length=MAX_ENV_BYTES), AfterValidator(_no_nul)]
Env = Annotated[
    dict[EnvName, EnvValue],
    Field(max_length=128, description=f"Write-only: answers show the names, with the value `{HIDDEN}`."),
]
Isolation = Annotated[
    Literal["session", "shared"],
    Field(
        description="`session`: a process for each session. `shared`: the sessions of the tenant share as few "
        "processes as they need, up to `max_processes`; it states that the server keeps no state, and what the server "
        "asks (sampling, elicitation, roots) is refused."
    ),
]
Recovery = Annotated[
    Literal["end", "respawn"],
    Field(
        description="When a process dies, `end` ends its sessions. `respawn` gives them a fresh process, with the "
        "handshake, the log level and the subscriptions replayed; calls in flight fail and are not run again. It "
        "states that the server keeps no state."
    ),
]
Broadcast = Annotated[
    bool,
    Field(
        description="Of a `shared` server: whether what names no call (log messages, its own notifications, "
        "`notifications/tasks/status` of a task that nobody is known to have made) goes to all sessions, of whatever "
        "principal. Otherwise it goes to nobody."
    ),
]
Warm = Annotated[int, Field(ge=0, le=1000, description="Processes kept started for sessions to come.")]
MaxProcesses = Annotated[int, Field(ge=1, le=10_000)]
CallsPerSession = Annotated[
    int,
    Field(
        ge=1,
        le=1024,
        description="Calls of one session that its process works on at once. As many again, and 8 at least, wait for "
        "their turn, with 4 MiB in all; above that they get 429.",
    ),
]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Rate = Annotated[float, Field(ge=0, le=1_000_000)]
Minutes10 = Annotated[float, Field(gt=0, le=600)]
Day = Annotated[float, Field(gt=0, le=86400)]
Month = Annotated[float, Field(gt=0, le=31 * 86400)]
ReclaimIdle = Annotated[
    float,
    Field(
        gt=0,
        le=31 * 86400,
        description="A session that has been idle for so long ends where somebody waits for its process, or would be "
        "refused for want of its place. One with a call, an open question, a running task or an open stream is not "
        "idle. As much as `idle_s`, or more: never.",
    ),
]


# --- tenants


class LimitsBody(Strict):
    """What a tenant may use at once. null is no limit; what is left out has its default."""

    sessions: Count | None = _LIMITS.sessions
    sessions_per_principal: Count | None = _LIMITS.sessions_per_principal
    processes: Count | None = _LIMITS.processes
    in_flight: Count | None = _LIMITS.in_flight
    requests_per_second: Rate | None = _LIMITS.requests_per_second
    burst: Count | None = _LIMITS.burst
    memory_mb: Count | None = _LIMITS.memory_mb
    spawns_per_minute: Count | None = _LIMITS.spawns_per_minute

    def limits(self) -> Limits:
        """The value."""
        return Limits(**self.model_dump())


class TenantBody(Strict):
    """A new tenant."""

    name: Name
    limits: LimitsBody = Field(default_factory=LimitsBody)


class TenantPatch(Strict):
    """A merge patch: a limit that is null becomes "no limit"; `limits` itself null brings all defaults back."""

    limits: LimitsBody | None = None
    enabled: bool | None = None
    reason: Reason | None = None


class TenantAnswer(BaseModel):
    """A tenant."""

    name: str
    limits: LimitsBody
    enabled: bool
    reason: str
    version: int

    @classmethod
    def of(cls, tenant: Tenant) -> Self:
        """Shows the value."""
        return cls(**asdict(tenant))


# --- backends


class TimeoutsBody(Strict):
    """In seconds."""

    initialize_s: Minutes10 = _TIMEOUTS.initialize_s
    call_s: Day = _TIMEOUTS.call_s
    idle_s: Month = _TIMEOUTS.idle_s
    absolute_s: Month = _TIMEOUTS.absolute_s
    reclaim_idle_s: ReclaimIdle = _TIMEOUTS.reclaim_idle_s


class StoredBackend(Strict):
    """A backend that may have been registered before a rule about its command was made."""

    name: Name
    command: StoredCommand
    args: Arguments = Field(default_factory=list)
    env: Env = Field(default_factory=dict)
    cwd: Cwd | None = None
    isolation: Isolation = "session"
    recovery: Recovery = "end"
    broadcast: Broadcast = False
    warm: Warm = 0
    max_processes: MaxProcesses = 10
    calls_per_session: CallsPerSession = 128
    timeouts: TimeoutsBody = Field(default_factory=TimeoutsBody)
    enabled: bool = True
    reason: Reason = ""

    @model_validator(mode="after")
    def _reason_of_what_is_off(self) -> Self:
        if self.reason and self.enabled:
            raise PydanticCustomError("reason", "a reason goes with `enabled: false`")
        return self

    @model_validator(mode="after")
    def _bounded_in_all(self) -> Self:
        if sum(len(each.encode()) for each in self.args) > MAX_ARGS_BYTES:
            raise PydanticCustomError("too_long", "the args are more than 64 KiB in all")
        if sum(len(each.encode()) for pair in self.env.items() for each in pair) > MAX_ENV_BYTES:
            raise PydanticCustomError("too_long", "the env is more than 64 KiB in all")
        if HIDDEN in self.env.values():
            raise PydanticCustomError("hidden", "`***` stands for an env value that is set already; here none is")
        return self

    def spec(self, tenant: str, version: int = 1) -> BackendSpec:
        """The value."""
        values = {**dict(self), "args": tuple(self.args), "timeouts": Timeouts(**dict(self.timeouts))}
        # Only the platform registers backends; who changes one says so behind this.
        return BackendSpec(tenant=tenant, version=version, off_by_platform=not self.enabled, **values)


class BackendBody(StoredBackend):
    """A new backend: which command to start, how many of it, and for how long."""

    command: Command


class TimeoutsPatch(Strict):
    """A merge patch."""

    initialize_s: Minutes10 | None = None
    call_s: Day | None = None
    idle_s: Month | None = None
    absolute_s: Month | None = None
    reclaim_idle_s: ReclaimIdle | None = None


class BackendPatch(Strict):
    """A merge patch (RFC 7396): null brings a member's default back, or removes a variable from env."""

    command: Command | None = None
    args: Arguments | None = None
    env: dict[EnvName, EnvValue | None] | None = None
    cwd: Cwd | None = None
    isolation: Isolation | None = None
    recovery: Recovery | None = None
    broadcast: Broadcast | None = None
    warm: Warm | None = None
    max_processes: MaxProcesses | None = None
    calls_per_session: CallsPerSession | None = None
    timeouts: TimeoutsPatch | None = None
    enabled: bool | None = None
    reason: Reason | None = None


class BackendAnswer(BaseModel):
    """A backend."""

    tenant: str
    name: str
    command: str
    args: list[str]
    env: dict[str, str] = Field(description=f"Names only: every value is `{HIDDEN}`.")
    cwd: str | None
    isolation: str
    recovery: str
    broadcast: bool
    warm: int
    max_processes: int
    calls_per_session: int
    timeouts: TimeoutsBody
    enabled: bool
    reason: str
    off_by_platform: bool = Field(description="Only a platform administrator can switch it on again.")
    version: int

    @classmethod
    def of(cls, spec: BackendSpec) -> Self:
        """Shows the value, without what may be secret."""
        return cls(**{**asdict(spec), "args": list(spec.args), "env": dict.fromkeys(spec.env, HIDDEN)})


# --- imports


def _document(value: object) -> object:
    """The text of the document, which may be an object too."""
    try:
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
    except RecursionError:
        raise PydanticCustomError("depth", "is nested too deeply") from None
    if not isinstance(text, str):
        raise PydanticCustomError("document", "must be an object, or the text of a file")
    if len(text.encode("utf-8", "surrogatepass")) > MAX_DOCUMENT_BYTES:
        raise PydanticCustomError("too_long", "is more than 256 KiB")
    return text


_DOCUMENT_SCHEMA = {
    "anyOf": [{"type": "object", "additionalProperties": True}, {"type": "string", "maxLength": MAX_DOCUMENT_BYTES}],
    "description": "A file with `mcpServers`, `servers`, `mcp` or `mcp.servers`, a `server.json` of the registry, or "
    "the text of one of them; as text also `mcp_servers` in TOML. At most 256 KiB.",
}
Document = Annotated[str, BeforeValidator(_document), WithJsonSchema(_DOCUMENT_SCHEMA)]
# Not only what a variable can be called: inputs and files have placeholders as well.
PlaceholderName = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class ImportBody(Strict):
    """Servers as another program lists them. Without `apply` nothing is changed."""

    document: Document
    env: Annotated[
        dict[PlaceholderName, EnvValue],
        Field(max_length=128, description="Values for placeholders and variables, by name."),
    ] = Field(default_factory=dict)
    apply: bool = False


class ImportedEntry(BaseModel):
    """One server of the document."""

    source: str = Field(description="What the document calls it.")
    name: str | None = Field(description="The backend's name; null if none can be made of it.")
    outcome: Literal["would_create", "created", "skipped"]
    problems: list[str] = Field(description="Why it is skipped.")


class ImportAnswer(BaseModel):
    """What became of a document, or would."""

    applied: bool
    entries: list[ImportedEntry]


# --- keys


class KeyBody(Strict):
    """A new key. Without `expires_at` it lives for 90 days; ten years is the most, null is for ever."""

    name: Annotated[str, StringConstraints(max_length=200), AfterValidator(one_line)] = ""
    scopes: list[Annotated[str, AfterValidator(known_scope)]] = Field(min_length=1, max_length=32)
    expires_at: Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_is_text)] | None = None


class KeyPatch(Strict):
    """A merge patch."""

    enabled: bool | None = None
    reason: Reason | None = None


class KeyAnswer(BaseModel):
    """A key, as far as it can be shown again."""

    id: str
    tenant: str
    name: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    enabled: bool
    reason: str
    off_by_platform: bool = Field(description="Only a platform administrator can switch it on again.")

    @classmethod
    def of(cls, record: ApiKey, **more: str) -> Self:
        """Shows the value."""
        shown = {name: value for name, value in asdict(record).items() if name in KeyAnswer.model_fields}
        return cls(**{**shown, "scopes": sorted(record.scopes), **more})


class NewKeyAnswer(KeyAnswer):
    """The one answer that carries the key itself."""

    key: str
