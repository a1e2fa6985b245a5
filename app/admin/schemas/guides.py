"""Bodies: guides."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from app.admin.schemas.fields import Answer, Name, Strict, no_nul, one_line
from app.domain import Guide

MAX_TEXT = 64 << 10  # bytes


def _not_too_long(text: str) -> str:
    if len(text.encode()) > MAX_TEXT:
        raise PydanticCustomError("bytes", "has at most {most} bytes", {"most": MAX_TEXT})
    return text


GuideTitle = Annotated[
    str,
    StringConstraints(max_length=200),
    AfterValidator(one_line),
    Field(description="What people see instead of the name."),
]
GuideDescription = Annotated[
    str,
    StringConstraints(max_length=1000),
    AfterValidator(no_nul),
    Field(description="What it helps with. Clients see it in lists, and `find_tools` finds it by its words."),
]
GuideText = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_TEXT),
    AfterValidator(no_nul),
    AfterValidator(_not_too_long),
    Field(description="Markdown, at most 64 KiB in UTF-8."),
]


class GuideBody(Strict):
    """A new guide."""

    name: Name
    title: GuideTitle = ""
    description: GuideDescription = ""
    text: GuideText

    def value(self, changed_at: datetime, version: int = 1) -> Guide:
        """The guide."""
        return Guide(self.name, self.title, self.description, self.text, changed_at, version)


class GuidePatch(Strict):
    """A merge patch."""

    title: GuideTitle | None = None
    description: GuideDescription | None = None
    text: GuideText | None = None


class ListedGuide(Answer):
    """A guide without its text."""

    name: str
    title: str
    description: str
    changed_at: datetime
    version: int


class GuideAnswer(ListedGuide):
    """A guide."""

    text: str
