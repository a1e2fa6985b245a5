"""Toolsets: what is kept of them has limits."""

import pytest

from app.catalog.knowledge import NOTHING
from app.domain import BackendSpec, Member, Toolset
from app.links import toolsets as module
from app.links.toolsets import Toolsets
from app.protocol.toolset.offer import Known
from tests.protocol.toolset.offers import offer, tool


class Offers:
    """Every backend offers the same."""

    def __init__(self) -> None:
        self.known = Known(offer("any", tools=[tool("say", description="x" * 1000)]))

    async def of_members(self, tenant, backends):
        return [self.known for _ in backends]


class Writings:
    """Nothing is written."""

    async def of(self, tenant):
        return NOTHING

    def cached(self, tenant):
        return NOTHING


@pytest.fixture
def toolsets():
    return Toolsets(None, Offers(), Writings(), None)  # type: ignore[arg-type]


def of(name: str) -> BackendSpec:
    return BackendSpec(tenant="acme", name=name, command="", toolset=Toolset(members=(Member("m", ""),)))


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
