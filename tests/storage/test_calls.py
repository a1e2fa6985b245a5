"""Calls in the database: whose they are, in which order, and how they go away again."""

import math
from dataclasses import replace

import pytest

from app.errors import Conflict, NotFound
from app.storage.calls import PORTION, CallRepository
from app.storage.engine import Database
from app.storage.tenants import TenantRepository
from app.telemetry.call_history.kept import KeptCall
from app.telemetry.call_history.query import CallFilter, added, bucket_of

EVERY = CallFilter()
NOON_US = 1_780_000_000_000_000


def call(number: int, tenant: str = "acme", at_us: int = NOON_US, **members: object) -> KeptCall:
    made = KeptCall(
        number=number,
        tenant=tenant,
        at_us=at_us,
        backend="echo",
        method="tools/call",
        tool="say",
        outcome="ok",
        seconds=0.001,
        bytes_in=10,
        bytes_out=20,
        principal_tenant=tenant,
        issuer="key",
        subject="AAAAAAAA",
        client_name="client",
        client_version="1",
        session="0123456789ab",
        node="n1",
        request_id="r",
        trace_id="t",
    )
    return replace(made, **members)  # type: ignore[arg-type]


@pytest.fixture
def repository(database: Database, tenants: TenantRepository) -> CallRepository:
    return CallRepository(database)


async def test_what_is_stored_comes_back_newest_first_and_in_pages(repository: CallRepository):
    calls = [call(number, at_us=NOON_US + number // 3) for number in range(10)]
    await repository.add(calls)
    wanted = sorted(calls, key=lambda each: (-each.at_us, each.number))
    assert await repository.find("acme", EVERY, None, 100) == wanted
    found, after = list[KeptCall](), None
    while page := await repository.find("acme", EVERY, after, 4):
        found += page
        after = (page[-1].at_us, page[-1].number)
    assert found == wanted
    assert (await repository.count("acme", EVERY, 100), await repository.count("acme", EVERY, 7)) == (10, 7)


async def test_a_tenant_has_its_own_only(repository: CallRepository):
    await repository.add([call(1), call(2, "zenith")])
    assert [each.number for each in await repository.find("zenith", EVERY, None, 100)] == [2]
    assert await repository.find("nobody", EVERY, None, 100) == []
    assert [each.count for each in await repository.groups("zenith", EVERY, "backend")] == [1]
    assert {each.number for each in await repository.find(None, EVERY, None, 100)} == {1, 2}
    assert await repository.count(None, EVERY, 100) == 2
    assert [each.count for each in await repository.groups(None, EVERY, "backend")] == [2]
    assert await repository.trim("zenith", 0, 100) == 1
    assert len(await repository.find("acme", EVERY, None, 100)) == 1


FILTERS = [
    (CallFilter(tool="other"), {2}),
    (CallFilter(outcome="error"), {3}),
    (CallFilter(outcome="timeout"), {3}),
    (CallFilter(outcome="ok", backend="echo"), {1, 2, 4}),
    (CallFilter(since=(NOON_US + 4) / 1e6), {4}),
    (CallFilter(until=(NOON_US + 4) / 1e6), {1, 2, 3}),
    (CallFilter(min_ms=1000), {4}),
    (CallFilter(subject="BBBBBBBB"), {4}),
    (CallFilter(client_name="cursor"), {3}),
    (CallFilter(request_id="r2"), {2}),
    (CallFilter(session="none"), set()),
    (CallFilter(method="tools/call"), {1, 2, 3, 4}),
]


@pytest.mark.parametrize(("wanted", "numbers"), FILTERS)
async def test_they_are_filtered_as_in_memory(repository: CallRepository, wanted: CallFilter, numbers: set[int]):
    calls = [
        call(1),
        call(2, tool="other", request_id="r2"),
        call(3, outcome="timeout", client_name="cursor"),
        call(4, at_us=NOON_US + 4, seconds=2.0, subject="BBBBBBBB"),
    ]
    await repository.add(calls)
    assert {each.number for each in await repository.find("acme", wanted, None, 100)} == numbers
    assert await repository.count("acme", wanted, 100) == len(numbers)


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("backend", {("echo", ""): 2, ("clock", ""): 1}),
        ("tool", {("say", "echo"): 2, ("tools/list", "clock"): 1}),
        ("outcome", {("ok", ""): 2, ("timeout", ""): 1}),
        ("subject", {("AAAAAAAA", "key"): 3}),
        ("client", {("client 1", ""): 2, ("other", ""): 1}),
    ],
)
async def test_sums_are_made_in_the_database(repository: CallRepository, by: str, names: dict[tuple[str, str], int]):
    await repository.add(
        [
            call(1, seconds=0.001),
            call(2, seconds=3.0),
            call(3, backend="clock", tool="", method="tools/list", outcome="timeout", client_name="other",
                 client_version=""),
        ]
    )  # fmt: skip
    groups = added(await repository.groups("acme", EVERY, by))
    assert {(each.name, each.within): each.count for each in groups} == names
    assert sum(each.bytes_in for each in groups) == 30
    assert sum(each.errors for each in groups) == 1
    buckets = {bucket for each in groups for bucket in each.buckets}
    assert buckets == {bucket_of(0.001), bucket_of(3.0)}


async def test_all_or_none_are_stored(repository: CallRepository):
    await repository.add([call(1)])
    with pytest.raises(Conflict):
        await repository.add([call(2), call(1)])
    with pytest.raises(NotFound):
        await repository.add([call(3), call(4, "gone")])
    assert [each.number for each in await repository.find("acme", EVERY, None, 100)] == [1]


async def test_what_clients_write_can_be_stored(repository: CallRepository):
    await repository.add([call(1, method="a\0b", subject="\0", tool="é\U0001f600")])
    (found,) = await repository.find("acme", EVERY, None, 100)
    assert (found.method, found.subject, found.tool) == ("a?b", "?", "é\U0001f600")
    for wanted in (CallFilter(method="a\0b"), CallFilter(subject="\0"), CallFilter(outcome="\0")):
        matching = await repository.find("acme", wanted, None, 10)
        assert len(matching) == await repository.count("acme", wanted, 10) == (0 if wanted.outcome else 1)


async def test_old_ones_are_removed_in_portions_the_oldest_first(repository: CallRepository):
    await repository.add([call(number, at_us=NOON_US + number) for number in range(10)])
    assert await repository.remove_older(NOON_US + 8, 5) == 5
    assert {each.number for each in await repository.find("acme", EVERY, None, 100)} == {5, 6, 7, 8, 9}
    assert await repository.remove_older(NOON_US + 8, 5) == 3
    assert await repository.remove_older(NOON_US + 8, 5) == 0


async def test_of_too_many_the_newest_stay(repository: CallRepository):
    await repository.add([call(number, at_us=NOON_US + number) for number in range(10)])
    await repository.add([call(20, "zenith", at_us=1)])
    assert await repository.trim("acme", 10, 100) == 0
    assert await repository.trim("acme", 3, 4) == 4
    assert await repository.trim("acme", 3, 4) == 3
    assert [each.number for each in await repository.find("acme", EVERY, None, 100)] == [9, 8, 7]
    assert len(await repository.find("zenith", EVERY, None, 100)) == 1


async def test_with_its_tenant_they_go(repository: CallRepository, tenants: TenantRepository):
    for start in range(0, PORTION + 500, 500):
        await repository.add([call(start + number, at_us=start + number) for number in range(500)])
    await repository.add([call(-1, "zenith")])
    await tenants.delete("acme")
    assert await repository.count("acme", EVERY, 10) == 0
    assert await repository.count("zenith", EVERY, 10) == 1


async def test_a_tenant_that_is_not_deleted_keeps_them(repository: CallRepository, tenants: TenantRepository):
    await repository.add([call(1)])
    with pytest.raises(Conflict):
        await tenants.delete("acme", version=17)
    assert await repository.count("acme", CallFilter(until=math.inf), 10) == 1
