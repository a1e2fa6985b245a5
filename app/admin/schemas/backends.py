"""Bodies: backends."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from app.admin.schemas._command import one_program
from app.admin.schemas._upstream import (
    HeaderName,
    Headers,
    HeaderValue,
    StoredHeaders,
    Transport,
    Url,
    require_one_kind,
)
from app.admin.schemas.declared import patches, shows
from app.admin.schemas.fields import Answer, Name, Reason, SpelledAsVariable, Strict, SwitchPatch, no_nul
from app.admin.schemas.sandbox import ProcessLimitsBody, SandboxAnswer, SandboxBody, SandboxPatch
from app.admin.schemas.selection import SELECTION, Described, Patterns, Renamed, selection_members, selection_of
from app.domain import HOME_WORD, BackendSpec, Timeouts

HIDDEN = "***"  # shown instead of an env value; in a PATCH it means "unchanged"
MAX_ARGS_BYTES = 64 * 1024
MAX_ENV_BYTES = 64 * 1024
MAX_WARM = 1000

_TIMEOUTS = Timeouts()


def _number_or_auto(value: Any) -> int | Literal["auto"]:
    """In one step, so that an error names the member and not the forms that it might have."""
    if value == "auto" or (type(value) is int and 0 <= value <= MAX_WARM):
        return "auto" if value == "auto" else int(value)
    raise PydanticCustomError("warm", "must be a number from 0 to {most}, or `auto`", {"most": MAX_WARM})


def _directory(path: str) -> str:
    """Refuses what is neither absolute nor below the tenant's home."""
    if path.startswith("~"):
        raise PydanticCustomError("cwd", "is relative to the tenant's home: leave out `~`")
    if not path.startswith("/") and ".." in path.split("/"):
        raise PydanticCustomError("cwd", "leads out of the tenant's home: write an absolute path")
    return path


StoredCommand = Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(no_nul)]
Command = Annotated[
    StoredCommand,
    AfterValidator(one_program),
    Field(
        description="One program: a name on the gateway's PATH, or a path. Its arguments go into `args`: white space "
        "is refused here, except in an absolute path that exists."
    ),
]
Cwd = Annotated[
    str,
    StringConstraints(min_length=1, max_length=4096),
    AfterValidator(no_nul),
    AfterValidator(_directory),
    Field(
        description="Working directory of the processes: an absolute path, or one below the tenant's home. It must "
        "exist on each node. null: the tenant's home."
    ),
]
Argument = Annotated[str, StringConstraints(max_length=MAX_ARGS_BYTES), AfterValidator(no_nul)]
Arguments = Annotated[list[Argument], Field(max_length=256, description="At most 64 KiB in all.")]
EnvName = Annotated[str, StringConstraints(max_length=128), SpelledAsVariable]
EnvValue = Annotated[str, StringConstraints(max_length=MAX_ENV_BYTES), AfterValidator(no_nul)]
Env = Annotated[
    dict[EnvName, EnvValue],
    Field(max_length=128, description=f"Write-only: shown as `{HIDDEN}`. `{HOME_WORD}` in it: the process's home."),
]
Isolation = Annotated[
    Literal["session", "shared"],
    Field(
        description="`session`: one process for each session. `shared`: the sessions of the tenant share as few "
        "processes as they need, up to `max_processes`. It is only for servers without state; their requests "
        "(sampling, elicitation, roots) are refused."
    ),
]
Recovery = Annotated[
    Literal["end", "respawn"],
    Field(
        description="When a process ends by itself, `end` ends its sessions. `respawn` gives them a new process, to "
        "which handshake, log level and subscriptions are sent again; calls in flight fail and are not repeated. It is "
        "only for servers without state."
    ),
]
Broadcast = Annotated[
    bool,
    Field(
        description="For a `shared` server: whether messages that belong to no call (log messages, other "
        "notifications, `notifications/tasks/status` of an unknown task) are sent to all sessions, of all principals. "
        "Otherwise they are dropped."
    ),
]
Warm = Annotated[
    int | Literal["auto"],
    PlainValidator(_number_or_auto),
    WithJsonSchema({
        "anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_WARM}, {"const": "auto"}],
        "description": "Processes kept ready for new sessions and parked ones. `auto`: on each node as many as the "
        "arrivals of the last hours ask for, and none when nobody comes.",
    }),
]  # fmt: skip
MaxProcesses = Annotated[int, Field(ge=1, le=10_000)]
CallsPerSession = Annotated[
    int,
    Field(
        ge=1,
        le=1024,
        description="Calls of one session that its process handles at once. As many again, but at least 8, wait, with "
        "at most 4 MiB in all; further ones get 429.",
    ),
]
Minutes10 = Annotated[float, Field(gt=0, le=600)]
Day = Annotated[float, Field(gt=0, le=86400)]
Month = Annotated[float, Field(gt=0, le=31 * 86400)]
ReclaimIdle = Annotated[
    float,
    Field(
        gt=0,
        le=31 * 86400,
        description="A session that has been idle for so long is ended if somebody waits for its process, or would be "
        "refused because of a limit. A session with a call, an open question, a running task or an open stream is not "
        "idle. Never, if this is `idle_s` or more.",
    ),
]
ParkS = Annotated[
    float,
    Field(
        ge=1,
        le=31 * 86400,
        description="A session that has been idle for so long rests and stays valid until the next message. With "
        "`recovery: respawn` it is parked: it gives its process back, and the next message takes another one, with "
        "which the handshake is repeated. With `recovery: end` it is frozen: its process stands still and keeps its "
        "state. null: never. Nor does a session rest that has a call, an open question, a running task or a "
        "subscription.",
    ),
]
State = Annotated[
    Literal["none", "keep"],
    Field(
        description="`none`: each process has a home of its own, which is removed with it. `keep`: each principal has "
        "one that lasts."
    ),
]

Start = Annotated[
    Literal["exec", "fork", "auto"],
    Field(
        description="`exec`: its command is executed for each process. `fork`: its processes are forks of one that has "
        "imported what the program needs and serves nobody, if it is in Python; where that cannot be done they are "
        "executed, and `start_reason` of a process says why. `auto`: they are forks only if these answer alike."
    ),
]


Pin = Annotated[
    Literal["off", "warn", "block"],
    Field(
        description="Tools that nobody has approved as they are offered now: `off` shows them, `block` neither shows "
        "nor calls them; `warn` withholds only what was rejected."
    ),
]
PinMinor = Annotated[
    Literal["accept", "ask"],
    Field(description="Whether a harmless edit of an approved definition counts as approved."),
]


class TimeoutsBody(Strict):
    """In seconds."""

    initialize_s: Minutes10 = _TIMEOUTS.initialize_s
    call_s: Day = _TIMEOUTS.call_s
    idle_s: Month = _TIMEOUTS.idle_s
    absolute_s: Month = _TIMEOUTS.absolute_s
    reclaim_idle_s: ReclaimIdle = _TIMEOUTS.reclaim_idle_s
    park_s: ParkS | None = _TIMEOUTS.park_s


class StoredBackend(Strict):
    """A backend that may have been registered before `command` was checked."""

    name: Name
    command: StoredCommand | None = None
    url: Url | None = None
    transport: Transport = "auto"
    headers: StoredHeaders = Field(default_factory=dict)
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
    sandbox: SandboxBody = Field(default_factory=SandboxBody)
    limits: ProcessLimitsBody = Field(default_factory=ProcessLimitsBody)
    state: State = "none"
    start: Start = "exec"
    include: Patterns = Field(default_factory=list)
    exclude: Patterns = Field(default_factory=list)
    rename: Renamed = Field(default_factory=dict)
    describe: Described = Field(default_factory=dict)
    pin: Pin = "off"
    pin_minor: PinMinor = "ask"
    enabled: bool = True
    reason: Reason = ""

    @model_validator(mode="after")
    def _reason_of_what_is_off(self) -> Self:
        if self.reason and self.enabled:
            raise PydanticCustomError("reason", "a reason goes with `enabled: false`")
        return self

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        is_own = self.sandbox != SandboxBody() or self.limits != ProcessLimitsBody()
        require_one_kind(self.command, self.url, dict(self), is_own)
        return self

    @model_validator(mode="after")
    def _knows_whose_home(self) -> Self:
        if self.state == "keep" and self.isolation == "shared":
            message = "`state: keep` is a home for each principal, and with `isolation: shared` a process has several"
            raise PydanticCustomError("state", message)
        if self.state == "keep" and self.warm:
            message = "`state: keep` needs `warm: 0`: a process is started in the home of its principal"
            raise PydanticCustomError("state", message)
        return self

    @model_validator(mode="after")
    def _parks_what_can_be_parked(self) -> Self:
        if self.timeouts.park_s is None:
            return self
        if self.url is not None:
            raise PydanticCustomError("park_s", "`timeouts.park_s` needs a `command`: a `url` has no process")
        if self.recovery == "end" and self.isolation == "shared":
            message = "with `isolation: shared`, `timeouts.park_s` needs `recovery: respawn`: others use the process"
            raise PydanticCustomError("park_s", message)
        return self

    @model_validator(mode="after")
    def _bounded_in_all(self) -> Self:
        if sum(len(each.encode()) for each in self.args) > MAX_ARGS_BYTES:
            raise PydanticCustomError("too_long", "the args are more than 64 KiB in all")
        if sum(len(each.encode()) for pair in self.env.items() for each in pair) > MAX_ENV_BYTES:
            raise PydanticCustomError("too_long", "the env is more than 64 KiB in all")
        if HIDDEN in self.headers.values():
            raise PydanticCustomError("hidden", "`***` stands for a header's value that is already set, but none is")
        if HIDDEN in self.env.values():
            raise PydanticCustomError("hidden", "`***` stands for an env value that is already set, but none is")
        return self

    @model_validator(mode="after")
    def _starts_in_a_shell(self) -> Self:
        if not self.env.get("OPTIND", "1").isdecimal():
            message = "the variable OPTIND has to be a number: the shell in the sandbox would not start"
            raise PydanticCustomError("optind", message)
        return self

    def spec(self, tenant: str, version: int = 1) -> BackendSpec:
        values = {**dict(self), "args": tuple(self.args), "timeouts": Timeouts(**dict(self.timeouts))}
        values |= {"command": self.command or "", "sandbox": self.sandbox.value(), "limits": self.limits.value()}
        values["selection"] = selection_of({name: values.pop(name) for name in SELECTION})
        # As if a platform administrator had registered it; who else does, and a PATCH, set it to another value.
        return BackendSpec(tenant=tenant, version=version, off_by_platform=not self.enabled, **values)


class BackendBody(StoredBackend):
    """A new backend: which command to start, how many processes, and for how long; or the URL of a server."""

    command: Command | None = None
    headers: Headers = Field(default_factory=dict)


@patches(TimeoutsBody)
class TimeoutsPatch(Strict):
    """A merge patch."""


@patches(BackendBody)
class BackendPatch(SwitchPatch):
    """A merge patch (RFC 7396): null restores a member's default, or removes a variable from env. A limit that is null
    becomes "no limit"."""

    headers: dict[HeaderName, HeaderValue | None] | None = None
    env: dict[EnvName, EnvValue | None] | None = None
    timeouts: TimeoutsPatch | None = None
    sandbox: SandboxPatch | None = None
    limits: ProcessLimitsBody | None = None
    rename: dict[str, str | None] | None = None
    describe: dict[str, str | None] | None = None


def _hidden(env: Mapping[str, str]) -> dict[str, str]:
    return dict.fromkeys(env, HIDDEN)


@shows(StoredBackend)
class BackendAnswer(Answer):
    """A backend."""

    command: str | None = Field(description="null: it is reached by `url`.")
    headers: Annotated[dict[str, str], BeforeValidator(_hidden)] = Field(
        description=f"Names only: every value is `{HIDDEN}`."
    )
    env: Annotated[dict[str, str], BeforeValidator(_hidden)] = Field(
        description=f"Names only: every value is `{HIDDEN}`."
    )
    sandbox: SandboxAnswer
    off_by_platform: bool = Field(description="Only a platform administrator can switch it on again.")
    version: int

    @model_validator(mode="before")
    @classmethod
    def _of_spec(cls, value: Any) -> Any:
        """Shows the selection's members as the backend's."""
        if not isinstance(value, BackendSpec):
            return value
        shown = {each.name: getattr(value, each.name) for each in fields(value)}
        return {
            **shown,
            "command": value.command or None,
            "args": list(value.args),
            **selection_members(value.selection),
        }
