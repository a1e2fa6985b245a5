"""Members of bodies that say which tools of a backend are shown, and how: of a backend, and of a toolset's member."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from app.admin.schemas.fields import no_nul
from app.domain import Selection
from app.protocol.toolset.names import MAX_NAME, is_accepted

MAX_ENTRIES = 500
SELECTION = ("include", "exclude", "rename", "describe")


def _accepted(name: str) -> str:
    if not is_accepted(name):
        message = f"a name that clients accept has at most {MAX_NAME} characters of A-Z, a-z, 0-9, `_` and `-`"
        raise PydanticCustomError("tool_name", "{message}", {"message": message})
    return name


def _different(renamed: dict[str, str]) -> dict[str, str]:
    if len(set(renamed.values())) < len(renamed):
        raise PydanticCustomError("clash", "two tools would have the same name")
    return renamed


Own = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(no_nul)]
Patterns = Annotated[
    list[Own],
    Field(
        max_length=MAX_ENTRIES,
        description="Names of tools, as the backend has them, with `*`, `?` and `[…]`. Only tools that match one of "
        "`include` are shown, all if it is empty, and none that match one of `exclude`.",
    ),
]
Renamed = Annotated[
    dict[Own, Annotated[str, AfterValidator(_accepted)]],
    AfterValidator(_different),
    Field(max_length=MAX_ENTRIES, description="Other names of tools, by the backend's own."),
]
Described = Annotated[
    dict[Own, Annotated[str, StringConstraints(max_length=8192)]],
    Field(max_length=MAX_ENTRIES, description="Other descriptions of tools, by the backend's own names."),
]


def selection_of(members: Mapping[str, Any]) -> Selection:
    """The value of these members of a body."""
    return Selection(
        tuple(members["include"]), tuple(members["exclude"]), dict(members["rename"]), dict(members["describe"])
    )


def selection_members(selection: Selection) -> dict[str, Any]:
    """The members of an answer."""
    return {
        "include": list(selection.include),
        "exclude": list(selection.exclude),
        "rename": dict(selection.rename),
        "describe": dict(selection.describe),
    }
