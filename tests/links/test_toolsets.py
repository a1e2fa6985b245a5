"""Toolsets: what is kept of them has limits."""

from typing import Literal

import anyio
import pytest

from app.catalog.knowledge import NOTHING
from app.domain import BackendSpec, Member, Toolset
from app.links import toolsets as module
from app.links.toolsets import Toolsets
from app.metrics import Metrics
from app.protocol.toolset.listing import ToolsetListing
from app.protocol.toolset.offer import Known
from tests.protocol.toolset.offers import offer, tool


class Offers:
    """Every backend offers the same."""

    def __init__(self) -> None:
        self.known = Known(offer("any", tools=[tool("say", description="x" * 1000)]))
        self.read_again: list[tuple[tuple[str, str], bool]] = []

    async def of_members(self, tenant, backends):
        return self.cached(tenant, backends)

    def cached(self, tenant, backends):
        return [self.known for _ in backends]

    def changed_elsewhere(self, key, *, is_shown):
        self.read_again.append((key, is_shown))

    def doubt(self, key):
        raise AssertionError

    async def withheld(self, key, offer):
        raise AssertionError


class Writings:
    """Nothing is written."""

    async def of(self, tenant):
        return NOTHING

    def cached(self, tenant):
        return NOTHING


@pytest.fixture
def toolsets():
    return Toolsets(None, Offers(), Writings(), Metrics("test"))  # type: ignore[arg-type]


def of(name: str, mode: Literal["list", "search"] = "list") -> BackendSpec:
    return BackendSpec(tenant="acme", name=name, command="", toolset=Toolset(members=(Member("m", ""),), mode=mode))


async def test_lists_that_are_kept_have_a_limit_in_bytes(toolsets, monkeypatch):
    first = await toolsets.listing(of("a"))
    monkeypatch.setattr(module, "MAX_LISTED_BYTES", 2 * first.size)
    second = await toolsets.listing(of("b"))
    assert await toolsets.listing(of("a")) is first
    await toolsets.listing(of("c"))
    assert await toolsets.listing(of("b")) is second
    assert await toolsets.listing(of("a")) is not first
    toolsets.removed(("acme", "a"))
    monkeypatch.setattr(module, "MAX_LISTED_BYTES", 0)
    newest = await toolsets.listing(of("d"))
    assert await toolsets.listing(of("d")) is newest


async def test_a_session_that_opens_while_a_tool_is_rejected_does_not_show_it(toolsets, monkeypatch):
    rejected = Known(toolsets._offers.known.offer, {"say": "it was rejected"})
    prepare = ToolsetListing.prepare_search

    def meanwhile(listing: ToolsetListing) -> None:
        prepare(listing)
        toolsets._offers.known = rejected

    monkeypatch.setattr(ToolsetListing, "prepare_search", meanwhile)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            link = await toolsets.lease(of("a", "search"), None, None, tasks)
    assert link.listing.members[0].withheld == {"say": "it was rejected"}


async def test_what_open_sessions_show_is_read_again_where_notices_may_have_been_missed(toolsets):
    async with anyio.create_task_group() as tasks:
        links = [await toolsets.lease(of(name), None, None, tasks) for name in ("a", "b")]
    toolsets.anything_may_have_changed()
    toolsets.changed_elsewhere(("acme", "m"))
    toolsets.changed_elsewhere(("acme", "other"))
    assert toolsets._offers.read_again == [(("acme", "m"), True), (("acme", "m"), True), (("acme", "other"), False)]
    assert len(links) == 2
