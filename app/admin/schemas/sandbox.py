"""Bodies: how the processes of a backend are confined, and what they may use."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from app.admin.schemas.declared import patches, shows
from app.admin.schemas.fields import Answer, Strict, no_nul
from app.domain import Guarantee, Network, ProcessLimits, Sandbox
from app.jail.sandbox.paths import NEVER, OWN_IN_EVERY_SANDBOX

MAX_PATHS = 64

_LIMITS = ProcessLimits()
_GUARANTEES = 5


def _opened_path(path: str) -> str:
    """Refuses what is not one place on every node, and what would open the sandbox itself."""
    parts = path.split("/")
    plain = "/" + "/".join(part for part in parts if part not in ("", "."))
    if not path.startswith("/"):
        raise PydanticCustomError("path", "must be absolute: it begins with `/`")
    if ".." in parts:
        raise PydanticCustomError("path", "must not contain `..`")
    for never in NEVER:
        if _is_within(plain, never):
            raise PydanticCustomError("path", f"`{never}` and what is in it cannot be opened: a sandbox has none of it")
        if _is_within(never, plain):
            message = f"`{plain}` cannot be opened, as `{never}` is in it: name what is needed in it"
            raise PydanticCustomError("path", message)
    if plain in OWN_IN_EVERY_SANDBOX:
        message = f"`{plain}` cannot be opened: every sandbox has its own, and nothing is needed for that"
        raise PydanticCustomError("path", message)
    if path != plain:
        raise PydanticCustomError("path", "must have no `.`, and no `/` twice or at its end")
    return path


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _unique(words: Sequence[str]) -> Sequence[str]:
    if len(set(words)) < len(words):
        raise PydanticCustomError("unique", "must name each only once")
    return words


OpenedPath = Annotated[
    str, StringConstraints(min_length=1, max_length=4096), AfterValidator(no_nul), AfterValidator(_opened_path)
]
Mode = Annotated[
    Literal["auto", "require", "off"],
    Field(
        description="`auto`: everything that works on the node. `require`: processes start only where each of the "
        "guarantees in `require` is enforced. `off`: no sandbox, processes run with the gateway's rights."
    ),
]
Guarantees = Annotated[
    list[Guarantee],
    AfterValidator(_unique),
    Field(max_length=_GUARANTEES, description="With `mode: require`: which guarantees. Empty: all of them."),
]
ReadPaths = Annotated[
    list[OpenedPath],
    Field(
        max_length=MAX_PATHS,
        description="Absolute paths that processes may read and execute, with everything below, besides their home and "
        "what their program needs.",
    ),
]
WritePaths = Annotated[
    list[OpenedPath], Field(max_length=MAX_PATHS, description="Paths that they may read and change likewise.")
]
Reachable = Annotated[
    Network,
    Field(
        description="`none`: no network. `web`: public addresses on ports 80 and 443. `host`: everything that the node "
        "reaches."
    ),
]


class SandboxBody(Strict):
    """How the processes are confined."""

    mode: Mode = "auto"
    require: Guarantees = Field(default_factory=list)
    read: ReadPaths = Field(default_factory=list)
    write: WritePaths = Field(default_factory=list)
    network: Reachable = "none"

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        if self.require and self.mode != "require":
            raise PydanticCustomError("require", "a list in `require` goes with `mode: require`")
        if self.mode == "require" and self.network == "host" and "network" in (self.require or ["network"]):
            message = "`network: host` confines no network: leave `network` out of what `require` names"
            raise PydanticCustomError("require", message)
        return self

    def value(self) -> Sandbox:
        return Sandbox(self.mode, tuple(self.require), tuple(self.read), tuple(self.write), self.network)


@patches(SandboxBody)
class SandboxPatch(Strict):
    """A merge patch; lists are replaced."""


@shows(SandboxBody, of_tenant=False)
class SandboxAnswer(Answer):
    """How the processes are confined."""


class ProcessLimitsBody(Strict):
    """What one process may use, with everything it starts. null: no limit; missing members have their defaults."""

    memory_mb: Annotated[int, Field(ge=16, le=1_048_576, description="MiB.")] | None = _LIMITS.memory_mb
    pids: Annotated[int, Field(ge=1, le=1_000_000, description="Processes and threads.")] | None = _LIMITS.pids
    cpu: Annotated[float, Field(ge=0.01, le=1024, description="Cores.")] | None = _LIMITS.cpu
    files: Annotated[int, Field(ge=16, le=1_000_000, description="Open files of each process.")] | None = _LIMITS.files
    disk_mb: (
        Annotated[int, Field(ge=1, le=1_048_576, description="MiB of its home and temporary files together.")] | None
    ) = _LIMITS.disk_mb

    def value(self) -> ProcessLimits:
        return ProcessLimits(**dict(self))
