"""Bodies: toolsets."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from app.admin.schemas.backends import TimeoutsBody
from app.admin.schemas.declared import Schemas, patches, shows
from app.admin.schemas.fields import Answer, Name, Reason, Spelled, Strict, SwitchPatch, Title, no_nul
from app.admin.schemas.selection import SELECTION, Described, Patterns, Renamed, selection_members, selection_of
from app.domain import BackendSpec, Member, Timeouts, Toolset
from app.protocol.toolset.names import FEW_TOOLS, MAX_NAME

MAX_MEMBERS = 100

Instructions = Annotated[
    str,
    StringConstraints(max_length=16 << 10),
    AfterValidator(no_nul),
    Field(description="What clients are told to tell their model. Empty: the instructions of all members."),
]
Prefix = Annotated[
    str,
    StringConstraints(max_length=32),
    Spelled(r"^[A-Za-z0-9_-]*$", "letters, digits, `_` and `-`"),
    Field(description="Before the names of its tools and prompts, so that those of two members differ."),
]


Mode = Annotated[
    Literal["list", "search", "auto"],
    Field(
        description="`list`: clients see all tools. `search`: they see `find_tools`, `call_tool` and the tools of "
        f"`always`. `auto`: search where there are more than {FEW_TOOLS} tools, but not for clients that search in the "
        "whole list themselves."
    ),
]
Always = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)]],
    Field(max_length=100, description="Patterns of the shown names of tools that are listed in any mode."),
]
Learns = Annotated[
    bool,
    Field(
        description="Whether what callers searched for before they called a tool helps later searches in this toolset. "
        "Kept in the memory of each node."
    ),
]
Guides = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=63)]],
    Field(max_length=100, description="Names of guides that it shows, or patterns of names with `*`, `?` and `[…]`."),
]


class MemberBody(Strict):
    """A backend of the same tenant."""

    backend: Name
    prefix: Prefix | None = Field(None, description="null: the backend's name and `_`.")
    include: Patterns = Field(default_factory=list)
    exclude: Patterns = Field(default_factory=list)
    rename: Renamed = Field(default_factory=dict)
    describe: Described = Field(default_factory=dict)

    def value(self) -> Member:
        """The member."""
        prefix = f"{self.backend}_"[:32] if self.prefix is None else self.prefix
        return Member(self.backend, prefix, selection_of({name: getattr(self, name) for name in SELECTION}))


class ToolsetBody(Strict):
    """A new toolset: which backends of the tenant are shown as one."""

    name: Name
    title: Title = ""
    instructions: Instructions = ""
    members: list[MemberBody] = Field(default_factory=list, max_length=MAX_MEMBERS)
    mode: Mode = "list"
    always: Always = Field(default_factory=list)
    learns: Learns = True
    guides: Guides = Field(default_factory=list)
    timeouts: TimeoutsBody = Field(default_factory=TimeoutsBody)
    enabled: bool = True
    reason: Reason = ""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        names = [member.backend for member in self.members]
        if len(set(names)) < len(names):
            raise PydanticCustomError("member", "a backend is a member only once")
        if self.reason and self.enabled:
            raise PydanticCustomError("reason", "a reason goes with `enabled: false`")
        if self.timeouts.park_s is not None:
            raise PydanticCustomError("park_s", "sessions of a toolset are not parked: leave `timeouts.park_s` out")
        return self

    def value(self, _: datetime, version: int = 1, *, tenant: str = "") -> BackendSpec:
        """The toolset, which is a backend to everybody but administrators."""
        return BackendSpec(
            tenant=tenant,
            name=self.name,
            command="",
            timeouts=Timeouts(**dict(self.timeouts)),
            toolset=Toolset(
                self.title,
                self.instructions,
                tuple(member.value() for member in self.members),
                self.mode,
                tuple(self.always),
                self.learns,
                tuple(self.guides),
            ),
            enabled=self.enabled,
            reason=self.reason,
            version=version,
        )


@patches(ToolsetBody)
class ToolsetPatch(SwitchPatch):
    """A merge patch; `members` is replaced as a whole."""

    timeouts: dict[str, Any] | None = None


class MemberAnswer(Strict):
    """A member as it is stored."""

    backend: str
    prefix: str
    include: list[str]
    exclude: list[str]
    rename: dict[str, str]
    describe: dict[str, str]


@shows(ToolsetBody)
class ToolsetAnswer(Answer):
    """A toolset."""

    members: list[MemberAnswer]
    off_by_platform: bool = Field(description="Only a platform administrator can switch it on again.")
    version: int

    @classmethod
    def of(cls, value: BackendSpec) -> Self:
        toolset = value.toolset
        assert toolset is not None
        members = [
            MemberAnswer(backend=each.backend, prefix=each.prefix, **selection_members(each.selection))
            for each in toolset.members
        ]
        return cls(
            tenant=value.tenant,
            name=value.name,
            title=toolset.title,
            instructions=toolset.instructions,
            members=members,
            mode=toolset.mode,
            always=list(toolset.always),
            learns=toolset.learns,
            guides=list(toolset.guides),
            timeouts=TimeoutsBody.model_validate(value.timeouts, from_attributes=True),
            enabled=value.enabled,
            reason=value.reason,
            off_by_platform=value.off_by_platform,
            version=value.version,
        ).made(value)


class MemberStatus(Answer):
    """What is known of a member."""

    backend: str
    tools: int | None = Field(description="That it offers, shown or not. null: it is not known, for now.")
    prompts: int | None
    resources: int | None
    problem: str | None = Field(description="Why its tools are not shown, or not called.")


class ShownToolset(ToolsetAnswer):
    """A toolset, with what it shows."""

    address: str = Field(
        description="Under which clients reach it (Streamable HTTP; `/sse` instead of `/mcp`: HTTP+SSE)."
    )
    shown_tools: list[str] = Field(description="The names that clients see.")
    shown_guides: list[str]
    recipes: list[str] = Field(description="Of this toolset: they are among its tools.")
    status: list[MemberStatus]
    problems: list[str] = Field(
        description="What is hidden, because another member has something of the same name; and recipes that cannot "
        "work with what is shown."
    )


SCHEMAS = Schemas[BackendSpec](ToolsetBody, ToolsetPatch, ToolsetAnswer, ToolsetAnswer)
