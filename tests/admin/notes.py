"""A made-up resource of the simplest kind, with everything that it needs: what it is, and the line in each list."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

import pytest
from fastapi import FastAPI
from msgspec import Meta

from app.admin._resource import ResourceApi
from app.admin.schemas.declared import schemas_of
from app.cli.files import current, exporting, gateway_file, plan, schema
from app.cli.files.kinds import KINDS, section_of
from app.cli.usage.nouns import Resource as Noun
from app.domain.resources.fields import Stored, Title, no_nul
from app.domain.resources.resource import Resource
from app.node.application import build_api
from app.storage._tables import declared, metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Stored):
    """What somebody wants to remember."""

    title: Title = ""
    stars: Annotated[int, Meta(ge=0, le=5, description="How much it matters.")] = 0
    labels: dict[str, str] = field(default_factory=dict)
    text: Annotated[str, Meta(max_length=1000), no_nul]


NOTES = Resource(Note, "notes", one="note", about="What somebody wants to remember.", per_tenant=2, unlisted=("text",))
COMMANDS, SECTION = Noun.of(NOTES), section_of(NOTES, {"text": "x"})


@contextmanager
def application(patch: pytest.MonkeyPatch) -> Iterator[FastAPI]:
    """The REST API with notes; the database is to have their table."""
    app = build_api()
    app.include_router(ResourceApi(NOTES, schemas_of(NOTES)).router, prefix="/api/v1/tenants/{tenant}")
    for module in (current, exporting, gateway_file, plan, schema):
        patch.setattr(module, "KINDS", (*KINDS, SECTION))
    table = declared(NOTES)
    yield app
    metadata.remove(table)
