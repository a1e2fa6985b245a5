"""Bodies: how the processes of a backend are confined, and what they may use."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.admin.schemas.declared import DeclaredBody, part, patches, shows
from app.admin.schemas.fields import Answer, Strict, no_items, no_nul
from app.domain import ProcessLimits, Sandbox
from app.domain.resources.backends import AllowList, NetworkMode, can_be_kept, leaves_the_proxy_its_port
from app.domain.resources.destinations import MAX_DESTINATIONS, is_destination
from app.domain.resources.fields import Unfit
from app.domain.resources.members import declared_members, plain
from app.jail.sandbox.paths import why_not

MAX_PATHS = 64


def _opened_path(path: str) -> str:
    """Refuses what is not one place on every node, and what would open the sandbox itself."""
    if (why := why_not(path)) is not None:
        raise PydanticCustomError("path", "{why}", {"why": why})
    return path


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


_MODES = get_args(NetworkMode)
_WORDS = {each.name: each.kind.__metadata__[-1] for each in declared_members(AllowList)}
_LIST_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["allow"],
    "properties": {
        "allow": {
            "type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_DESTINATIONS,
            "uniqueItems": True, "description": _WORDS["allow"],
        },
        "web": {"type": "boolean", "default": False, "description": _WORDS["web"]},
    },
}  # fmt: skip
_NETWORK_SCHEMA: Mapping[str, Any] = {
    "anyOf": [{"enum": [*_MODES], "type": "string"}, _LIST_SCHEMA],
    "description": next(each.kind.__metadata__[-1] for each in declared_members(Sandbox) if each.name == "network"),
}


def _network(value: Any) -> Any:
    """In one step, so that an error names what is wrong and not the forms that it might have."""
    if isinstance(value, Mapping) and value.get("allow") is None:
        raise _wrong("an object has `allow`: a list of HOST:PORT")
    checked = _checked(value)
    return checked if isinstance(checked, str) else {"web": False, **checked}


def _part_of_network(value: Any) -> Any:
    """As a merge patch may have it: null restores a default."""
    given = {name: each for name, each in value.items() if each is not None} if isinstance(value, Mapping) else value
    _checked(given)
    return value


def _checked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _allow_list(value)
    if isinstance(value, str) and value in _MODES:
        return value
    modes = ", ".join(f"`{each}`" for each in _MODES)
    raise _wrong(f"must be {modes} or an object with `allow`: a list of HOST:PORT")


def _allow_list(value: Mapping[str, Any]) -> dict[str, Any]:
    strange = sorted(value.keys() - _LIST_SCHEMA["properties"].keys())
    if strange:
        raise _wrong(f"there is no such member: {ascii(strange[0])[:100]}")
    if not isinstance(value.get("web", False), bool):
        raise _wrong("`web` must be true or false")
    found = value.get("allow", [""])
    if not isinstance(found, list) or not 1 <= len(found) <= MAX_DESTINATIONS:
        raise _wrong(f"`allow` must be a list of 1 to {MAX_DESTINATIONS} HOST:PORT")
    for each in found if "allow" in value else ():
        if not isinstance(each, str):
            raise _wrong("`allow` must be a list of texts: HOST:PORT")
        try:
            is_destination(each)
        except Unfit as unfit:
            raise _wrong(f"`allow`: {unfit}") from None
    if len(set(found)) < len(found):
        raise _wrong("`allow` must name each only once")
    return dict(value)


def _wrong(words: str) -> PydanticCustomError:
    return PydanticCustomError("network", "{words}", {"words": words})


NetworkForm = Annotated[Any, PlainValidator(_network), WithJsonSchema({**_NETWORK_SCHEMA})]
# Not the whole list: of an object in a merge patch any member may be left out.
NetworkPatch = Annotated[Any, PlainValidator(_part_of_network), WithJsonSchema({**_NETWORK_SCHEMA})]


@part(Sandbox)
class SandboxBody(DeclaredBody):
    """How the processes are confined."""

    model: ClassVar[type[Any]] = Sandbox
    rules: ClassVar[Any] = (can_be_kept, leaves_the_proxy_its_port)

    network: NetworkForm = "none"
    read: ReadPaths = Field(default_factory=no_items)
    write: WritePaths = Field(default_factory=no_items)


@patches(SandboxBody)
class SandboxPatch(Strict):
    """A merge patch; lists are replaced."""

    network: NetworkPatch | None = None


class AllowListAnswer(Answer):
    """What is reached by TCP, without a proxy."""

    allow: list[str]
    web: bool = Field(description=_WORDS["web"])


@shows(SandboxBody, of_tenant=False)
class SandboxAnswer(Answer):
    """How the processes are confined."""

    network: Annotated[str | AllowListAnswer, BeforeValidator(plain)]


@part(ProcessLimits)
class ProcessLimitsBody(Strict):
    """What one process may use, with everything it starts. null: no limit; missing members have their defaults."""
