"""Bodies: how the processes of a backend are confined, and what they may use."""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from app.admin.schemas.declared import DeclaredBody, part, patches, shows
from app.admin.schemas.fields import Answer, Strict, no_items, no_nul
from app.domain import ProcessLimits, Sandbox
from app.domain.resources.backends import can_be_kept
from app.jail.sandbox.paths import NEVER, OWN_IN_EVERY_SANDBOX

MAX_PATHS = 64


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


OpenedPath = Annotated[
    str, StringConstraints(min_length=1, max_length=4096), AfterValidator(no_nul), AfterValidator(_opened_path)
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


@part(Sandbox)
class SandboxBody(DeclaredBody):
    """How the processes are confined."""

    model: ClassVar[type[Any]] = Sandbox
    rules: ClassVar[Any] = (can_be_kept,)

    read: ReadPaths = Field(default_factory=no_items)
    write: WritePaths = Field(default_factory=no_items)


@patches(SandboxBody)
class SandboxPatch(Strict):
    """A merge patch; lists are replaced."""


@shows(SandboxBody, of_tenant=False)
class SandboxAnswer(Answer):
    """How the processes are confined."""


@part(ProcessLimits)
class ProcessLimitsBody(Strict):
    """What one process may use, with everything it starts. null: no limit; missing members have their defaults."""
