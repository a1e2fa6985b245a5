"""Bodies: toolsets."""

from datetime import datetime
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, Field

from app.admin.schemas._access import AccessShown
from app.admin.schemas.declared import DeclaredBody, Schemas, part, patches, sends, shows
from app.admin.schemas.fields import Answer, Strict, SwitchPatch, field_of
from app.domain import BackendSpec, Member, Toolset
from app.domain.resources.members import flat, only, reader_of
from app.domain.resources.toolsets import RULES, TOOLSETS

Prefix: Any = field_of(next(each.kind for each in only(Member, "prefix")))


@part(Member)
class MemberBody(Strict):
    """A backend of the same tenant."""

    prefix: Prefix | None = Field(None, description="null: the backend's name and `_`.")


@sends(TOOLSETS.members)
class ToolsetBody(DeclaredBody):
    """A new toolset: which backends of the tenant are shown as one."""

    model: ClassVar[type[Any]] = BackendSpec
    rules: ClassVar[Any] = RULES

    def value(self, _: datetime | None = None, version: int = 1, *, tenant: str = "") -> BackendSpec:
        """The toolset, which is a backend to everybody but administrators."""
        sent = self.model_dump()
        for each in sent["members"]:
            each["prefix"] = f"{each['backend']}_"[:32] if each["prefix"] is None else each["prefix"]
        spec: BackendSpec = self.made(command="", toolset=reader_of(Toolset)(sent), tenant=tenant, version=version)
        return spec


@patches(ToolsetBody)
class ToolsetPatch(SwitchPatch):
    """A merge patch; `members` is replaced as a whole."""

    timeouts: dict[str, Any] | None = None


@shows(MemberBody, of_tenant=False)
class MemberAnswer(Answer):
    """A member as it is stored."""

    model_config = ConfigDict(extra="forbid")
    prefix: str


@shows(ToolsetBody)
class ToolsetAnswer(Answer):
    """A toolset."""

    members: list[MemberAnswer]
    access: AccessShown
    off_by_platform: bool = Field(description="Only a platform administrator can switch it on again.")
    version: int

    @classmethod
    def of(cls, value: BackendSpec) -> Self:
        return cls.model_validate({**flat(value), **flat(value.toolset)}, from_attributes=True).made(value)


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
