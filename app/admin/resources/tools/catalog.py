"""…/catalog, of one tenant: what its backends offer, without starting them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self

import msgspec
from fastapi import Path, Query
from pydantic import BaseModel, Field

from app.admin._paging import AskedPage, Page
from app.admin._route import ResourceRouter
from app.admin.context import Access, MayRead
from app.admin.resources.tools.toolsets import find_toolset
from app.backends.catalog.entries import Entry
from app.domain import is_name
from app.errors import BackendNotFound
from app.protocol.jsonrpc import members_of, string_of
from app.protocol.search.index import MAX_LIMIT
from app.protocol.toolset.listing import Place, ToolsetListing
from app.protocol.toolset.offer import LISTS
from app.protocol.toolset.searching import MAX_QUERY

router = ResourceRouter(tags=["catalog"])

BackendName = Annotated[str, Path(description="The backend's name.")]
MAX_SEARCHED = 1000  # backends


class CatalogEntry(BaseModel):
    """What a backend offers, in numbers. All null: it has not said so, for now."""

    backend: str
    revision: int | None = Field(description="Grows whenever it offers something else.")
    looked_at: datetime | None = Field(description="When it was asked last.")
    changed_at: datetime | None = Field(description="Since when it offers this.")
    protocol_version: str | None
    tools: int | None
    prompts: int | None
    resources: int | None
    templates: int | None
    problem: str | None = Field(
        description="Why it did not say what it offers, when this node asked last; or what of it cannot be shown."
    )

    @classmethod
    def of(cls, access: Access, backend: str, entry: Entry | None) -> Self:
        counts = (None if entry is None else len(entry.offer.items(method)) for method in LISTS)
        tools, prompts, resources, templates = counts
        return cls(
            backend=backend,
            revision=entry and entry.revision,
            looked_at=entry and entry.looked_at,
            changed_at=entry and entry.changed_at,
            protocol_version=entry and string_of(members_of(entry.offer.hello).get("protocolVersion")),
            tools=tools,
            prompts=prompts,
            resources=resources,
            templates=templates,
            problem=access.admin.offered.problem((access.tenant, backend)) or _odd(entry),
        )


def _odd(entry: Entry | None) -> str | None:
    return None if entry is None else "; ".join(entry.offer.oddities) or None


class ShownOffer(CatalogEntry):
    """What a backend offers, as it has said it."""

    definitions: dict[str, list[Any]] = Field(
        description="By list: `tools`, `prompts`, `resources`, `resourceTemplates`.",
        examples=[{"tools": [{"name": "get_time", "inputSchema": {"type": "object"}}]}],
    )


class FoundTool(BaseModel):
    """What a query means: a tool, or what a toolset has of its own."""

    kind: Literal["tool", "recipe", "guide"]
    backend: str | None = Field(description="null: the toolset itself has it.")
    tool: str = Field(description="As its backend calls it; or the name of the recipe or guide.")
    shown_as: str = Field(
        description="As the toolset calls it, a guide by its URI; without a toolset, as one would by default."
    )
    title: str | None
    description: str | None


class FoundTools(BaseModel):
    """Best first."""

    items: list[FoundTool]
    next_cursor: None = None


@router.get("/catalog:search")
async def search_catalog(
    access: MayRead,
    query: Annotated[str, Query(min_length=1, max_length=MAX_QUERY, description="What somebody wants to do.")],
    toolset: Annotated[
        str | None, Query(description="Only what this one shows; without it, all that the backends offer.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 5,
) -> FoundTools:
    """Finds tools by words, as `find_tools` of a toolset does, but without what callers have taught it."""
    if toolset is None:
        listing = await _everything(access)
    else:
        listing = await access.admin.offered.listing(await find_toolset(access, toolset), is_searched=True)
    hits = await access.admin.offered.search(access.tenant, listing, query, limit)
    return FoundTools(items=[_of_hit(listing, hit.id) for hit in hits])


async def _everything(access: Access) -> ToolsetListing:
    """What the backends of the tenant have said that they offer, whatever is shown of it. None is asked now."""
    backends = await access.admin.backends.list(access.tenant, after="", limit=MAX_SEARCHED)
    entries = await access.admin.catalog.entries(access.tenant, [spec.name for spec in backends])
    return await access.admin.offered.everything(
        access.tenant, {name: entry.offer for name, entry in sorted(entries.items())}
    )


def _of_hit(listing: ToolsetListing, shown: str) -> FoundTool:
    guide = listing.own.guides.get(shown)
    if guide is not None:
        about = {"title": guide.title or None, "description": guide.description or None}
        return FoundTool(kind="guide", backend=None, tool=guide.name, shown_as=shown, **about)
    place, definition = listing.tool(shown), members_of(msgspec.Raw(listing.definition(shown)))
    assert isinstance(place, Place)
    is_recipe = listing.is_own(place.member)
    return FoundTool(
        kind="recipe" if is_recipe else "tool",
        backend=None if is_recipe else listing.members[place.member].name,
        tool=place.name,
        shown_as=shown,
        title=string_of(definition.get("title")),
        description=string_of(definition.get("description")),
    )


@router.get("/catalog")
async def list_catalog(access: MayRead, asked: AskedPage) -> Page[CatalogEntry]:
    """What each backend of the tenant offers, by the backend's name. Starts none of them: a backend is asked by
    `:check`, and when a toolset first has it."""
    found = await access.admin.backends.list(access.tenant, after=asked.after, limit=asked.fetch)
    names: Sequence[str] = [spec.name for spec in found]
    entries = await access.admin.catalog.entries(access.tenant, names)
    return asked.page(names, str, lambda name: CatalogEntry.of(access, name, entries.get(name)))


@router.get("/catalog/{backend}")
async def get_offer(access: MayRead, backend: BackendName) -> ShownOffer:
    """What one backend offers, with the definitions as it has written them."""
    if not is_name(backend):
        raise BackendNotFound
    await access.admin.backends.get(access.tenant, backend)
    entry = (await access.admin.catalog.entries(access.tenant, [backend])).get(backend)
    definitions = {} if entry is None else {member: _plain(entry, method) for method, (member, _) in LISTS.items()}
    return ShownOffer(**dict(CatalogEntry.of(access, backend, entry)), definitions=definitions)


def _plain(entry: Entry, method: str) -> list[Any]:
    """The items that can be read."""
    found = []
    for item in entry.offer.items(method):
        try:
            found.append(msgspec.json.decode(item))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return found
