"""Toolsets: who is shown what, who shares a listing, and what open sessions hear of changes."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import anyio
import anyio.abc
import pytest

from app.backends.connections.toolsets import Toolsets
from app.domain import BackendSpec, Limits, Member, Principal, Toolset
from app.domain.resources.access import AccessEntry, CallLimits, Who
from app.errors import GatewayError, RateLimited
from app.limits.caller_limits import Allowance, CallerLimits
from app.protocol.toolset.offer import Known
from app.telemetry.metrics import Metrics
from tests.backends.connections.test_toolsets import Writings
from tests.protocol.toolset.offers import offer, tool

KEY = ("acme", "m")
BOB = Principal("acme", "https://idp.example", "bob", frozenset({"mcp:connect"}), groups=frozenset({"analysts"}))
EVE = replace(BOB, subject="eve", groups=frozenset())
ANALYSTS = AccessEntry(Who(group="analysts"), ("read",))
ALL = AccessEntry(Who(everyone=True), ("*",))
OFFER = offer("any", tools=[tool("read"), tool("write")])


class Offers:
    """What the only backend offers, and its list."""

    def __init__(self) -> None:
        self.known = Known(OFFER, access=(ANALYSTS,))

    async def of_members(self, tenant: str, backends: Sequence[str]) -> list[Known]:
        await anyio.lowlevel.checkpoint()
        return self.cached(tenant, backends)

    def cached(self, tenant: str, backends: Sequence[str]) -> list[Known]:
        return [self.known for _ in backends]

    def used(self, spec: BackendSpec) -> None: ...

    async def withheld(self, key: Any, offer: Any) -> dict[str, str]:
        return {}

    def doubt(self, key: Any) -> None: ...


class Session:
    """Who uses a connection (a ToolsetSession): writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.failed: dict[bytes, GatewayError] = {}
        self.counted: dict[bytes, Sequence[Allowance]] = {}
        self.has_heard = anyio.Event()

    def backend_sent(self, line: bytes) -> None:
        self.heard.append(json.loads(line))
        self.has_heard.set()

    def backend_failed(self, call: bytes, error: GatewayError) -> None:
        self.failed[call] = error
        self.has_heard.set()

    def call_counted(self, call: bytes, allowances: Sequence[Allowance]) -> None:
        self.counted[call] = allowances

    def backend_answered(self, call: bytes, result: bytes) -> None: ...
    def backend_asked(self, line: bytes, among: Any) -> None: ...
    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None: ...
    def backend_exited(self, exit: Any) -> None: ...


class Rig:
    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self.offers, self.tasks, metrics = Offers(), tasks, Metrics("test")
        self.stored: dict[str, BackendSpec] = {}
        offers: Any = self.offers
        limits = CallerLimits(metrics.rate_limited, lambda: 1000.0)
        self.toolsets = Toolsets(self.find, offers, Writings(), metrics, limits)
        self.leased: list[BackendSpec] = []

    async def find(self, tenant: str, name: str) -> tuple[BackendSpec, Limits]:
        await anyio.lowlevel.checkpoint()
        return self.stored.get(name, BackendSpec(tenant, name, "cat")), Limits()

    async def open(self, principal: Principal, spec: BackendSpec | None = None) -> Any:
        with anyio.fail_after(10):
            return await self.toolsets.lease(spec or of(), principal, self.lease_one, self.tasks)

    async def lease_one(self, spec: BackendSpec, limits: Limits, principal: Principal) -> Any:
        self.leased.append(spec)
        raise RateLimited("x", "the test starts no process")

    def decide(self, *access: AccessEntry) -> None:
        self.offers.known = Known(OFFER, access=access)
        self.toolsets.offer_changed(KEY)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with anyio.create_task_group() as tasks:
        yield Rig(tasks)
        tasks.cancel_scope.cancel()


def of(*access: AccessEntry) -> BackendSpec:
    return BackendSpec("acme", "all", "", toolset=Toolset(members=(Member("m", ""),)), access=access)


def alone(*access: AccessEntry) -> BackendSpec:
    return BackendSpec("acme", "m", "cat", access=access)


async def test_each_caller_is_shown_what_lists_list_for_them(rig):
    for spec in (of(), alone(ANALYSTS)):
        assert [(await rig.open(who, spec)).listing.tools for who in (BOB, EVE)] == [["read"], []]
    both = of(AccessEntry(Who(person="eve"), ("*",)))
    assert [(await rig.open(who, both)).listing.tools for who in (BOB, EVE)] == [[], []]
    assert (await rig.toolsets.listing(of())).tools == ["read", "write"]  # for administrators


async def test_callers_share_a_listing_who_are_shown_the_same(rig):
    alice = replace(BOB, subject="alice", groups=frozenset({"analysts", "staff"}))
    one, same, other = [await rig.open(who) for who in (BOB, alice, EVE)]
    assert one.listing is same.listing
    assert one.listing is not other.listing
    rig.decide(replace(ANALYSTS, limits=CallLimits(1)), AccessEntry(Who(person="eve"), ("read",)))
    assert one.listing is same.listing is other.listing
    rig.decide()
    assert one.listing is other.listing
    assert other.listing.tools == ["read", "write"]


async def test_without_a_list_nothing_is_looked_at(rig):
    rig.offers.known = Known(OFFER)
    one = await rig.open(EVE)
    assert one.listing.members[0].allowed is one.listing.allowed is None
    assert one._access is None


async def test_the_listings_of_all_callers_are_forgotten_with_their_toolset(rig):
    for who in (BOB, EVE):
        await rig.open(who)
    assert len(rig.toolsets._listings) == 2
    rig.toolsets.removed(("acme", "other"))
    assert len(rig.toolsets._listings) == 2
    rig.toolsets.removed(("acme", "all"))
    assert not rig.toolsets._listings


async def test_open_sessions_follow_the_list_of_a_member(rig):
    one, other = await rig.open(BOB), await rig.open(EVE)
    rig.decide(ALL)
    assert one.listing.tools == other.listing.tools == ["read", "write"]
    rig.decide(AccessEntry(Who(person="eve"), ("write",)))
    assert (one.listing.tools, other.listing.tools) == ([], ["write"])


async def test_open_sessions_follow_the_list_of_their_toolset(rig):
    rig.offers.known = Known(OFFER)
    one, other = await rig.open(BOB), await rig.open(BOB, replace(of(), name="other"))
    rig.toolsets.access_changed(of(AccessEntry(Who(person="eve"), ("*",))))
    assert (one.listing.tools, other.listing.tools) == ([], ["read", "write"])
    rig.offers.known = Known(OFFER)
    rig.toolsets.offer_changed(KEY)
    assert one.listing.tools == []
    rig.toolsets.access_changed(of())
    assert one.listing.tools == ["read", "write"]


async def test_an_open_session_follows_its_caller(rig):
    one = await rig.open(BOB)
    one.caller_is(replace(BOB, groups=frozenset()))
    assert one.listing.tools == []
    rig.decide(ANALYSTS, AccessEntry(Who(group="staff"), ("write",)))
    assert one.listing.tools == []
    one.caller_is(replace(BOB, groups=frozenset({"staff"})))
    assert one.listing.tools == ["write"]


async def test_a_session_that_opens_while_a_list_changes_has_the_new_one(rig):
    rig.offers.known = Known(OFFER)
    rig.stored["all"] = changed = of(AccessEntry(Who(person="eve"), ("*",)))
    of_members = rig.offers.of_members

    async def meanwhile(tenant: str, backends: Sequence[str]) -> list[Known]:
        rig.offers.of_members = of_members
        rig.toolsets.access_changed(changed)
        return await of_members(tenant, backends)

    rig.offers.of_members = meanwhile
    assert (await rig.open(BOB)).listing.tools == []


async def test_members_are_leased_without_their_list(rig):
    """The list has its place in the toolset: the process is one that others without a list have too."""
    rig.stored["m"] = alone(ANALYSTS)
    with pytest.raises(RateLimited):
        await rig.toolsets._lease_member(KEY, of(), BOB, rig.lease_one)
    assert [(each.access, each.is_toolset) for each in rig.leased] == [((), False)]


def call(connection: Any, number: int, tool: str) -> None:
    message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": tool}}
    connection.send(json.dumps(message).encode())


async def failure(session: Session, number: int) -> GatewayError:
    call_id = str(number).encode()
    with anyio.fail_after(10):
        while call_id not in session.failed:
            await session.has_heard.wait()
            session.has_heard = anyio.Event()
    return session.failed[call_id]


async def test_calls_are_counted_told_to_the_session_and_refused(rig):
    rig.decide(replace(ANALYSTS, limits=CallLimits(calls_per_day=2)))
    one, session = await rig.open(BOB), Session()
    one.attach(session)
    for number in (1, 2):
        call(one, number, "read")
    call(one, 3, "read")
    refused = await failure(session, 3)
    assert isinstance(refused, RateLimited)
    assert refused.limit == "calls_per_day"
    assert [[each.place for each in session.counted[name]] for name in (b"1", b"2", b"3")] == [["backends/m"]] * 3
    assert session.counted[b"1"][0].day.used(1000.0) == 2
    other, theirs = await rig.open(replace(BOB, subject="alice")), Session()
    other.attach(theirs)
    call(other, 1, "read")
    assert theirs.counted[b"1"][0].day.used(1000.0) == 1


async def test_a_limit_that_comes_later_holds_in_open_sessions(rig):
    one, session = await rig.open(BOB), Session()
    one.attach(session)
    call(one, 1, "read")
    assert session.counted == {}
    rig.decide(replace(ANALYSTS, limits=CallLimits(calls_per_day=1)))
    call(one, 2, "read")
    call(one, 3, "read")
    assert isinstance(await failure(session, 3), RateLimited)
    rig.decide(ANALYSTS)
    call(one, 4, "read")
    assert list(session.counted) == [b"2", b"3"]
