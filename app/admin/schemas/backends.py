"""Bodies: backends. Their members are declared in `app.domain.resources.backends`; here are those whose rules need more
than the domain knows."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.admin.schemas._access import AccessShown
from app.admin.schemas._command import one_program
from app.admin.schemas._sandbox import ProcessLimitsBody, SandboxAnswer, SandboxPatch
from app.admin.schemas._upstream import (
    CertificateAnswer,
    ConnectAnswer,
    ConnectBody,
    ConnectPatch,
    HeaderName,
    Headers,
    HeaderValue,
    StoredHeaders,
    Url,
    certificates_shown,
)
from app.admin.schemas.declared import DeclaredBody, part, patches, sends, shows
from app.admin.schemas.fields import Answer, Strict, SwitchPatch, field_of, no_nul
from app.domain import BackendSpec, Timeouts
from app.domain.resources import backends
from app.domain.resources.backends import HIDDEN
from app.domain.resources.members import declared_members, flat
from app.text.credentials import hidden, hidden_in

MAX_WARM = 1000


def _number_or_auto(value: Any) -> int | Literal["auto"]:
    """In one step, so that an error names the member and not the forms that it might have."""
    if value == "auto" or (type(value) is int and 0 <= value <= MAX_WARM):
        return "auto" if value == "auto" else int(value)
    raise PydanticCustomError("warm", "must be a number from 0 to {most}, or `auto`", {"most": MAX_WARM})


StoredCommand = Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(no_nul)]
Command = Annotated[
    StoredCommand,
    AfterValidator(one_program),
    Field(
        description="One program: a name on the gateway's PATH, or a path. Its arguments go into `args`: white space "
        "is refused here, except in an absolute path that exists."
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
EnvName: Any = field_of(backends.EnvName)
EnvValue: Any = field_of(backends.Text)


@part(Timeouts)
class TimeoutsBody(Strict):
    """In seconds."""


@sends(declared_members(BackendSpec))
class StoredBackend(DeclaredBody):
    """A backend that may have been registered before `command` was checked."""

    model: ClassVar[type[Any]] = BackendSpec
    rules: ClassVar[Any] = backends.RULES

    command: StoredCommand | None = None
    url: Url | None = None
    headers: StoredHeaders = Field(default_factory=dict)
    warm: Warm = 0

    def value(self, _: datetime | None = None, version: int = 1, *, tenant: str = "") -> BackendSpec:
        """The backend."""
        spec: BackendSpec = self.made(command=self.command or "", tenant=tenant, version=version)
        return spec


class BackendBody(StoredBackend):
    """A new backend: which command to start, how many processes, and for how long; or the URL of a server; or the
    document of an HTTP API."""

    command: Command | None = None
    headers: Headers = Field(default_factory=dict)
    connect: ConnectBody = Field(default_factory=ConnectBody)


@patches(TimeoutsBody)
class TimeoutsPatch(Strict):
    """A merge patch."""


@patches(BackendBody)
class BackendPatch(SwitchPatch):
    """A merge patch (RFC 7396): null restores a member's default, or removes a variable from env. A limit that is null
    becomes "no limit"."""

    headers: dict[HeaderName, HeaderValue | None] | None = None
    connect: ConnectPatch | None = None
    env: dict[EnvName, EnvValue | None] | None = None
    timeouts: TimeoutsPatch | None = None
    sandbox: SandboxPatch | None = None
    limits: ProcessLimitsBody | None = None
    rename: dict[str, str | None] | None = None
    describe: dict[str, str | None] | None = None


def _hidden(env: Mapping[str, str]) -> dict[str, str]:
    return dict.fromkeys(env, HIDDEN)


def _without_secrets(words: Sequence[str]) -> list[str]:
    return list(hidden(words))


def _address(url: str | None) -> str | None:
    return None if url is None else hidden_in(url)


class PackageAnswer(Answer):
    """A package that is installed from a lock, or an image that a container engine starts."""

    registry: str = Field(description="`npm` or `pypi`; `oci`: an image.")
    name: str
    version: str = Field(description="It changes only by an act. Of an image its tag or digest.")
    program: str = Field(description="Which of its programs is started; empty: an image's own.")
    lock: str = Field(
        description="The SHA-256 of the lock, with the versions and hashes of all that it needs. Of an image its id, "
        "under which it is started, whatever its tag means later."
    )
    scripts: list[str] = Field(
        description="Packages in it with scripts for their installation, which were not run: the program may miss what "
        "they would have made."
    )


@shows(StoredBackend)
class BackendAnswer(Answer):
    """A backend."""

    command: Annotated[str | None, BeforeValidator(lambda command: command or None)] = Field(
        description="null: it is reached by `url`."
    )
    url: Annotated[str | None, BeforeValidator(_address)] = Field(description=f"Credentials in it are `{HIDDEN}`.")
    args: Annotated[list[str], BeforeValidator(_without_secrets)] = Field(
        description=f"Credentials that are recognised in them are `{HIDDEN}`."
    )
    headers: Annotated[dict[str, str], BeforeValidator(_hidden)] = Field(
        description=f"Names only: every value is `{HIDDEN}`."
    )
    env: Annotated[dict[str, str], BeforeValidator(_hidden)] = Field(
        description=f"Names only: every value is `{HIDDEN}`."
    )
    connect: ConnectAnswer
    sandbox: SandboxAnswer
    access: AccessShown
    package: PackageAnswer | None = Field(
        description="What `command` and `args` name, if that is a package of npm or PyPI: it is installed once, and "
        "its program is started directly. Or if it is an image, as of `docker run`."
    )
    openapi_made: str = Field(description="The hash of the tools that were made of `openapi`; empty without one.")
    off_by_platform: bool = Field(description="Only a platform administrator can switch it on again.")
    version: int
    certificates: list[CertificateAnswer] = Field(description="Those in `connect`, in their order.")

    @classmethod
    def of(cls, value: Any) -> Self:
        """Shows a backend, with what is read of its certificates."""
        shown = {**flat(value), "certificates": certificates_shown(value.connect)}
        return cls.model_validate(shown, from_attributes=True).made(value)
