"""Toolsets: what is kept of them has limits."""

from dataclasses import replace
from typing import Literal

import anyio
import pytest

from app.backends.catalog.knowledge import NOTHING
from app.backends.connections import toolsets as module
from app.backends.connections.toolsets import Toolsets
from app.domain import BackendSpec, Member, Toolset
from app.errors import RateLimited
from app.limits.caller_limits import CallerLimits
from app.limits.loop_shares import LoopShares
from app.protocol.search.index import ToolIndex
from app.protocol.search.work import Work
from app.protocol.toolset.listing import ToolsetListing
from app.protocol.toolset.offer import Known
from app.telemetry.metrics import Metrics
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
    metrics = Metrics("test")
    return Toolsets(None, Offers(), Writings(), metrics, CallerLimits(metrics.rate_limited))  # type: ignore[arg-type]


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
    indexing = ToolsetListing.indexing

    def meanwhile(listing: ToolsetListing) -> Work[None]:
        yield from indexing(listing)
        toolsets._offers.known = rejected

    monkeypatch.setattr(ToolsetListing, "indexing", meanwhile)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            connection = await toolsets.lease(of("a", "search"), None, None, tasks)
    assert connection.listing.members[0].withheld == {"say": "it was rejected"}


async def test_what_open_sessions_show_is_read_again_where_notices_may_have_been_missed(toolsets):
    async with anyio.create_task_group() as tasks:
        connections = [await toolsets.lease(of(name), None, None, tasks) for name in ("a", "b")]
    toolsets.anything_may_have_changed()
    toolsets.changed_elsewhere(("acme", "m"))
    toolsets.changed_elsewhere(("acme", "other"))
    assert toolsets._offers.read_again == [(("acme", "m"), True), (("acme", "m"), True), (("acme", "other"), False)]
    assert len(connections) == 2


@pytest.fixture
def many(toolsets):
    """What a backend with many tools offers."""
    toolsets._offers.known = Known(offer("any", tools=[tool(f"say_{n}", description=f"word{n}") for n in range(300)]))
    return toolsets


async def test_searches_at_once_share_one_listing_and_one_index(many, monkeypatch):
    made = list[str]()
    listings, indexes = ToolsetListing.making, ToolIndex.making

    def making(*parts):
        made.append("listing")
        return listings(*parts)

    def indexing(*parts):
        made.append("index")
        return indexes(*parts)

    monkeypatch.setattr(ToolsetListing, "making", making)
    monkeypatch.setattr(ToolIndex, "making", indexing)
    found = list[ToolsetListing]()

    async def search() -> None:
        listing = await many.everything("acme", {"m": many._offers.known.offer})
        assert [hit.id for hit in await many.search("acme", listing, "word7", 1)] == ["m_say_7"]
        found.append(listing)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(search)
    assert made == ["listing", "index"]
    assert all(each is found[0] for each in found)


async def test_a_listing_is_made_in_pieces_and_charged_to_its_tenant(many, monkeypatch):
    steps, charged = list[None](), list[str]()
    many._shares = shares = LoopShares()
    monkeypatch.setattr(shares, "charge", lambda tenant, seconds: charged.append(tenant))
    drive = shares.in_pieces

    async def in_pieces(tenant, work):
        def counted():
            while True:
                try:
                    steps.append(next(work))
                except StopIteration as done:
                    return done.value
                yield

        return await drive(tenant, counted())

    monkeypatch.setattr(shares, "in_pieces", in_pieces)
    await many.listing(of("a"), is_searched=True)
    assert len(steps) > 300  # one for each definition that is read for the index
    assert set(charged) == {"acme"}


async def test_toolsets_of_a_tenant_share_the_definitions_that_both_show(many):
    one, other = await many.listing(of("a")), await many.listing(of("b"))
    assert one.definition("say_7") is other.definition("say_7")


async def test_what_nobody_searches_any_more_is_forgotten(many, monkeypatch):
    monkeypatch.setattr(module, "EVERYTHING_S", 0.01)
    offers = {"m": many._offers.known.offer}
    listing = await many.everything("acme", offers)
    assert await many.everything("acme", offers) is listing
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(many.run)
            while many._listings:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert many._listed_bytes == 0


async def test_open_sessions_are_searched_by_what_was_read_until_the_change_is_indexed(many):
    before = many._offers.known
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            connection = await many.lease(of("a", "search"), None, None, tasks)
            old = connection.listing.index
            many._offers.known = Known(offer("any", tools=[*before.offer.items("tools/list"), tool("fly")]))
            many.offer_changed(("acme", "m"))
            assert connection.listing.index is old
            assert connection.listing.shows("fly")
            tasks.start_soon(many.run)
            while not connection.listing.is_indexed:
                await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
    assert [hit.id for hit in connection.listing.index.search("fly")] == ["fly"]


async def test_what_sessions_of_a_tenant_show_has_a_limit(toolsets, monkeypatch):
    monkeypatch.setattr(module, "MAX_LISTED_OF_TENANT", 0)
    async with anyio.create_task_group() as tasks:
        held = await toolsets.lease(of("a"), None, None, tasks)
        same = await toolsets.lease(of("a"), None, None, tasks)
        with pytest.raises(RateLimited) as refused:
            await toolsets.lease(of("b"), None, None, tasks)
        assert refused.value.limit == "toolset_lists"
        assert await toolsets.listing(of("b"))  # whoever only looks at it is not refused
        other = await toolsets.lease(replace(of("b"), tenant="zenith"), None, None, tasks)
        assert (held.listing is same.listing, held.listing is other.listing) == (True, False)
        held.release("closed")
        same.release("closed")
        assert await toolsets.lease(of("b"), None, None, tasks)  # what no session shows makes room
