"""Guides: what an administrator has written down for those who use tools."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from app.domain.resources.fields import Stored, Title, bytes_at_most, no_nul
from app.domain.resources.resource import Resource

MAX_TEXT = 64 << 10  # bytes

Description = Annotated[
    str,
    Meta(max_length=1000),
    "What it helps with. Clients see it in lists, and `find_tools` finds it by its words.",
    no_nul,
]
Text = Annotated[
    str,
    Meta(min_length=1, max_length=MAX_TEXT),
    "Markdown, at most 64 KiB in UTF-8.",
    no_nul,
    bytes_at_most(MAX_TEXT),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide(Stored):
    """A guide; its text is Markdown."""

    title: Title = ""
    description: Description = ""
    text: Text


GUIDES = Resource(
    Guide,
    "guides",
    one="guide",
    about="Texts for those who use the tools of a toolset.",
    per_tenant=100,
    columns=("name", "title", "description", "changed_at"),
    unlisted=("text",),
    words={
        "create": "Writes a guide. Toolsets show it whose `guides` have its name, or a pattern that matches it.",
        "list": "The tenant's guides by name, without their texts.",
        "get": "One guide, with its text.",
        "change": "Changes a guide. Open sessions of toolsets that show it are told.",
        "delete": "Removes a guide. Open sessions of toolsets that show it are told.",
        "listed": "A guide without its text.",
    },
)
