"""RouteStore and NodeStore: what every store promises, asked of the one in memory and of a real Redis in turn."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from app.cluster.routing import redis_store
from app.errors import QuotaExceeded
from app.sessions.routes import CALLER, Quota
from tests.cluster.routing.rig import BOB, NODES, Rig, record, rig_in_memory, rig_on_redis, route

A, B, C = NODES
NONE = Quota()


@pytest.fixture(autouse=True)
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests say when one lapses; on a busy machine five seconds may pass by themselves."""
    monkeypatch.setattr(redis_store, "LEASE_MS", 60_000)


@pytest.fixture(params=["memory", "redis"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    if request.param == "memory":
        async with rig_in_memory() as rig:
            await rig.all_beat()
            yield rig
    else:
        async with rig_on_redis(request.getfixturevalue("empty_redis")) as rig:
            await rig.all_beat()
            yield rig


async def test_a_claimed_route_is_found_by_every_node(rig: Rig):
    assert await rig[A].claim(route("k"), NONE) == route("k")
    for node in NODES:
        found = await rig[node].find("k")
        assert (found.route, found.owner_lives) == (route("k"), True)


async def test_what_nobody_has_claimed_is_not_found(rig: Rig):
    found = await rig[A].find("k")
    assert (found.route, found.owner_lives) == (None, False)


async def test_a_claim_of_what_another_living_node_has_returns_that_route(rig: Rig):
    await rig[A].claim(route("k"), None)
    assert await rig[B].claim(route("k", B), None) == route("k")


async def test_a_second_claim_by_the_owner_returns_the_first_route_and_counts_once(rig: Rig):
    await rig[A].claim(route("k"), Quota(sessions=2))
    assert await rig[A].claim(route("k"), Quota(sessions=2)) == route("k")
    await rig[A].claim(route("k2"), Quota(sessions=2))
    with pytest.raises(QuotaExceeded):
        await rig[A].claim(route("k3"), Quota(sessions=2))


async def test_of_many_nodes_that_claim_at_once_one_wins(rig: Rig):
    for number in range(20):
        key = f"k{number}"
        claimed = await asyncio.gather(*(rig[node].claim(route(key, node), None) for node in NODES))
        assert len(set(claimed)) == 1


async def test_a_claim_of_what_a_dead_node_had_has_the_next_token(rig: Rig):
    await rig[A].claim(replace(route("k"), token=7), None)
    await rig.lapse(A)
    assert (await rig[B].claim(route("k", B), None)).token == 8
    assert await rig[C].claim(route("k", C), None) == route("k", B, token=8)


async def test_a_route_of_a_living_owner_cannot_be_taken_over(rig: Rig):
    await rig[A].claim(route("k"), NONE)
    assert await rig[B].take_over(route("k"), B, "http://b") is None
    assert (await rig[B].find("k")).route == route("k")


async def test_a_route_of_a_dead_owner_is_taken_over_by_one_node(rig: Rig):
    await rig[A].claim(route("k"), NONE)
    await rig.lapse(A)
    assert (await rig[B].find("k")).owner_lives is False
    taken = await asyncio.gather(*(rig[node].take_over(route("k"), node, f"http://{node}:8080") for node in (B, C)))
    (won,) = [each for each in taken if each is not None]
    assert won.token == 2
    found = await rig[B].find("k")
    assert (found.route, found.owner_lives) == (won, True)


async def test_taking_over_again_after_the_answer_got_lost_succeeds(rig: Rig):
    await rig[A].claim(route("k"), NONE)
    await rig.lapse(A)
    taken = await rig[B].take_over(route("k"), B, "http://b")
    assert await rig[B].take_over(route("k"), B, "http://b") == taken


async def test_an_owner_that_comes_back_before_the_take_over_keeps_its_route(rig: Rig):
    await rig[A].claim(route("k"), NONE)
    await rig.lapse(A)
    await rig[A].beat(record(A))
    assert await rig[B].take_over(route("k"), B, "http://b") is None


async def test_what_has_changed_since_it_was_found_is_not_taken_over(rig: Rig):
    await rig[A].claim(route("k"), NONE)
    await rig.lapse(A)
    await rig[B].take_over(route("k"), B, "http://b")
    await rig.lapse(B)
    assert await rig[C].take_over(route("k"), C, "http://c") is None
    assert await rig[C].take_over(route("gone"), C, "http://c") is None


async def test_what_was_taken_over_and_has_ended_is_not_brought_back_by_an_owner_that_stood_still(rig: Rig):
    await rig.all_beat()
    mine = await rig[A].claim(route("k"), Quota(1, 1))
    await rig.lapse(A)
    taken = await rig[B].take_over(mine, B, "http://b")
    assert taken is not None
    await rig[B].release(taken)
    assert (await rig[C].find("k")).route is None
    assert [each.key for each in await rig[A].refresh([mine])] == ["k"]
    assert (await rig[C].find("k")).route is None
    assert await rig[C].take_over(taken, C, "http://c") is None


async def test_a_late_release_from_an_earlier_time_does_not_end_a_later_one(rig: Rig):
    await rig.all_beat()
    mine = await rig[A].claim(route("k"), NONE)
    await rig[A].release(mine, hand_over=True)
    free = (await rig[A].find("k")).route
    assert free is not None
    again = await rig[A].take_over(free, A, mine.url)
    await rig[A].release(mine)  # tried again, because its answer was lost
    assert (await rig[B].find("k")).route == again


async def test_a_caller_may_come_back_to_whichever_node(rig: Rig):
    await rig.all_beat()
    mine = await rig[A].claim(route("k", transport=CALLER), None)
    await rig.lapse(A)
    taken = await rig[B].take_over(mine, B, "http://b")
    assert taken is not None
    await rig[B].release(taken)
    assert await rig[C].claim(route("k", C, transport=CALLER), None) == route("k", C, transport=CALLER)


async def test_an_owner_that_was_taken_over_learns_it_and_writes_nothing(rig: Rig):
    await rig[A].claim(route("k"), NONE)
    await rig[A].claim(route("mine"), NONE)
    await rig.lapse(A)
    taken = await rig[B].take_over(route("k"), B, "http://b")
    assert await rig[A].beat(record(A)) is False
    assert await rig[A].refresh([route("k"), route("mine")]) == [route("k")]
    assert (await rig[A].find("k")).route == taken


async def test_a_handed_over_route_is_taken_at_once_though_its_owner_lives(rig: Rig):
    await rig[A].claim(route("k"), NONE)
    await rig[A].release(route("k"), hand_over=True)
    freed = (await rig[B].find("k")).route
    assert freed is not None
    assert (freed.node, freed.token, freed.url) == ("", 1, "")
    taken = await rig[B].take_over(freed, B, "http://b")
    assert taken == route("k", B, url="http://b", token=2)
    assert await rig[A].refresh([route("k")]) == [route("k")]


async def test_a_released_route_is_gone(rig: Rig):
    await rig[A].claim(route("k"), NONE)
    await rig[A].release(route("k"))
    await rig[A].release(route("k"))
    assert (await rig[B].find("k")).route is None


async def test_a_late_release_by_the_last_owner_does_nothing(rig: Rig):
    await rig[A].claim(route("k"), NONE)
    await rig.lapse(A)
    taken = await rig[B].take_over(route("k"), B, "http://b")
    await rig[A].release(route("k"))
    await rig[A].release(route("k"), hand_over=True)
    assert (await rig[B].find("k")).route == taken


async def test_a_refresh_with_a_later_token_wins_over_an_older_one(rig: Rig):
    await rig[A].claim(route("k"), NONE)
    assert await rig[B].refresh([route("k", B, token=3)]) == []
    assert await rig[A].refresh([route("k")]) == [route("k")]
    assert await rig[C].refresh([route("k", C, token=3)]) == [route("k", C, token=3)]
    assert (await rig[A].find("k")).route == route("k", B, token=3)


async def test_tokens_only_grow_through_every_change_of_owner(rig: Rig):
    last, owner = await rig[A].claim(route("k"), NONE), A
    for step in range(12):
        taker = NODES[(step + 1) % 3]
        if step % 2:
            await rig[owner].release(last, hand_over=True)
            freed = (await rig[taker].find("k")).route
        else:
            await rig.lapse(owner)
            freed = last
        assert freed is not None
        taken = await rig[taker].take_over(freed, taker, f"http://{taker}:8080")
        assert taken is not None
        assert taken.token == last.token + 1
        last, owner = taken, taker
        await rig.all_beat()


async def test_the_quota_of_a_tenant_is_exact_over_all_nodes(rig: Rig):
    quota = Quota(sessions=50)
    claims = [
        rig[NODES[n % 3]].claim(route(f"k{n}", NODES[n % 3], identity=("acme", "key", f"u{n}")), quota)
        for n in range(200)
    ]
    outcomes = await asyncio.gather(*claims, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, QuotaExceeded)]
    assert len(refused) == 150
    assert not [each for each in outcomes if isinstance(each, BaseException) and each not in refused]
    assert (refused[0].limit, str(refused[0])) == ("sessions", "the tenant acme has 50 sessions open; its limit is 50")
    await rig[A].claim(route("other", tenant="zenith"), quota)


async def test_the_quota_of_a_principal_is_exact_over_all_nodes(rig: Rig):
    quota = Quota(sessions=100, sessions_per_principal=10)
    claims = [rig[NODES[n % 3]].claim(route(f"k{n}", NODES[n % 3]), quota) for n in range(60)]
    outcomes = await asyncio.gather(*claims, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, QuotaExceeded)]
    assert {(each.limit, str(each)) for each in refused} == {
        ("sessions_per_principal", "this principal has 10 sessions open; its limit is 10")
    }
    assert len(refused) == 50
    await rig[A].claim(route("bob", identity=BOB), quota)


async def test_the_quota_holds_while_nodes_beat_and_sessions_come_and_go(rig: Rig):
    quota, open_now, most = Quota(sessions=20), 0, 0

    async def come_and_go(node: str, number: int) -> None:
        nonlocal open_now, most
        for turn in range(10):
            mine = route(f"{node}-{number}-{turn}", node)
            try:
                await rig[node].claim(mine, quota)
            except QuotaExceeded:
                continue
            open_now += 1
            most = max(most, open_now)
            await rig[node].find(mine.key)
            open_now -= 1
            await rig[node].release(mine)

    async def beat(node: str) -> None:
        for _ in range(30):
            await rig[node].beat(record(node))

    await asyncio.gather(*(come_and_go(node, n) for node in NODES for n in range(15)), *map(beat, NODES))
    assert 0 < most <= 20
    await rig.all_beat()
    for number in range(20):  # all places have come back
        await rig[A].claim(route(f"last{number}"), quota)


async def test_a_released_session_gives_its_place_back_and_a_handed_over_one_does(rig: Rig):
    quota = Quota(sessions=1)
    await rig[A].claim(route("k"), quota)
    await rig[A].release(route("k"))
    await rig[B].claim(route("k2", B), quota)
    await rig[B].release(route("k2", B), hand_over=True)
    await rig[C].claim(route("k3", C), quota)
    freed = (await rig[A].find("k2")).route
    assert freed is not None
    await rig[A].take_over(freed, A, "http://a")  # a session that goes on is not refused, but counts
    await rig[C].release(route("k3", C))
    with pytest.raises(QuotaExceeded):
        await rig[C].claim(route("k4", C), quota)


async def test_the_sessions_of_a_dead_node_count_no_more(rig: Rig):
    quota = Quota(sessions=3)
    for number in range(3):
        await rig[A].claim(route(f"k{number}"), quota)
    with pytest.raises(QuotaExceeded):
        await rig[B].claim(route("b", B), quota)
    await rig.lapse(A)
    await rig[B].claim(route("b", B), quota)


async def test_a_node_that_was_only_paused_counts_again(rig: Rig):
    quota = Quota(sessions=3)
    mine = [await rig[A].claim(route(f"k{number}"), quota) for number in range(3)]
    await rig.lapse(A)
    await rig[B].claim(route("b", B), quota)
    assert await rig[A].beat(record(A)) is False
    assert await rig[A].refresh(mine) == []
    with pytest.raises(QuotaExceeded, match="4 sessions"):
        await rig[B].claim(route("b2", B), quota)


async def test_a_callers_route_is_no_session(rig: Rig):
    quota = Quota(sessions=1)
    await rig[A].claim(route("lines", transport=CALLER), None)
    await rig[A].claim(route("k"), quota)
    await rig[A].release(route("lines", transport=CALLER))
    with pytest.raises(QuotaExceeded):
        await rig[A].claim(route("k2"), quota)


async def test_nodes_are_those_whose_lease_runs(rig: Rig):
    assert [node.id for node in await rig[A].nodes()] == list(NODES)
    await rig.lapse(B)
    assert [node.id for node in await rig[A].nodes()] == [A, C]
    await rig[C].leave(C)
    await rig[C].leave(C)
    assert await rig[A].nodes() == [record(A)]


async def test_a_beat_says_what_has_changed_and_whether_the_lease_ran(rig: Rig):
    assert await rig[A].beat(record(A, sessions=5)) is True
    assert (await rig[B].nodes())[0] == record(A, sessions=5)
    await rig.lapse(A)
    assert await rig[A].beat(record(A)) is False
    assert await rig[A].beat(record(A)) is True


async def test_refreshing_nothing_is_nothing(rig: Rig):
    assert await rig[A].refresh([]) == []


async def test_identities_that_read_alike_are_counted_apart(rig: Rig):
    quota = Quota(sessions_per_principal=1)
    await rig[A].claim(route("k", identity=("acme", "a", "b\0c")), quota)
    await rig[A].claim(route("k2", identity=("acme", "a\0b", "c")), quota)
    with pytest.raises(QuotaExceeded):
        await rig[B].claim(route("k3", B, identity=("acme", "a", "b\0c")), quota)
