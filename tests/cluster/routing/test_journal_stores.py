"""JournalStore: the same behaviour in memory and in a real Redis, whoever writes, late or twice."""

import secrets
from collections.abc import AsyncIterator

import anyio
import pytest

from app.cluster.redis._waiting_commands import USUAL_DEADLINES
from app.cluster.redis.connection import RedisConnection, Value
from app.cluster.routing.journal_stores import PAGE, RedisJournalStore
from app.errors import RoutesUnavailable
from app.sessions.streams.journal_store import REPLACES, JournalStore, JournalWrite, Outcome, Target
from tests.cluster.routing.memory_journal_store import MemoryJournalStore
from tests.cluster.routing.rig import connected, refused_after
from tests.redis_servers import RedisServer

WRITTEN, GAP, FENCED = Outcome.WRITTEN, Outcome.GAP, Outcome.FENCED
ASIDE, INSTEAD = Target.ASIDE, Target.INSTEAD


async def is_up(redis: RedisConnection) -> None:
    with anyio.fail_after(30):
        while not redis.is_up:
            await anyio.sleep(0.005)


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[JournalStore]:
    if request.param == "memory":
        yield MemoryJournalStore()
        return
    async with connected(request.getfixturevalue("redis_url")) as redis:
        yield RedisJournalStore(redis)


@pytest.fixture
def key() -> str:
    return secrets.token_hex(20)


def write(
    key: str,
    number: int,
    *entries: bytes,
    token: int = 1,
    length: int = REPLACES,
    trim: int = 0,
    target: Target = Target.JOURNAL,
) -> JournalWrite:
    return JournalWrite(key, token, number, b"head %d" % number, entries, length, trim, target)


async def test_what_was_written_is_read_with_the_token_of_its_writer(store: JournalStore, key: str) -> None:
    assert await store.take(key, 1) is None
    assert await store.write([write(key, 1, b"a", b"\x00\xff")]) == [WRITTEN]
    assert await store.write([write(key, 2, b"c", length=2)]) == [WRITTEN]
    assert await store.take(key, 2) == (1, b"head 2", [b"a", b"\x00\xff", b"c"])


async def test_a_long_journal_is_read_whole(store: JournalStore, key: str) -> None:
    entries = [b"%d" % number for number in range(2 * PAGE + 1)]
    await store.write([write(key, 1, *entries)])
    taken = await store.take(key, 1)
    assert taken is not None
    assert taken.entries == entries


async def test_the_front_of_the_list_goes_and_the_list_may_become_empty(store: JournalStore, key: str) -> None:
    await store.write([write(key, 1, b"a", b"b")])
    assert await store.write([write(key, 2, b"c", length=2, trim=2)]) == [WRITTEN]
    assert await store.take(key, 1) == (1, b"head 2", [b"c"])
    assert await store.write([write(key, 3, length=1, trim=1)]) == [WRITTEN]
    assert await store.write([write(key, 4, b"d", length=0)]) == [WRITTEN]
    assert await store.take(key, 1) == (1, b"head 4", [b"d"])


async def test_each_of_many_writes_is_whole_or_not_at_all(store: JournalStore, key: str) -> None:
    other, third = key + "2", key + "3"
    await store.write([write(key, 1, b"a"), write(third, 1, token=9)])
    outcomes = await store.write([write(key, 2, b"b", length=5), write(other, 1, b"x"), write(third, 2, b"y")])
    assert outcomes == [GAP, WRITTEN, FENCED]
    assert await store.take(key, 1) == (1, b"head 1", [b"a"])
    assert await store.take(other, 1) == (1, b"head 1", [b"x"])


async def test_a_write_that_arrives_late_or_twice_does_nothing(store: JournalStore, key: str) -> None:
    await store.write([write(key, 1, b"a")])
    late, late_replacing = write(key, 2, b"b", length=1), write(key, 3, b"c")
    assert await store.write([write(key, 4, b"a")]) == [WRITTEN]
    assert await store.write([late]) == [GAP]
    assert await store.write([late_replacing]) == [GAP]
    assert await store.write([write(key, 4, b"a")]) == [GAP]
    assert await store.take(key, 1) == (1, b"head 4", [b"a"])


async def test_nothing_is_appended_to_what_the_store_has_lost(store: JournalStore, key: str) -> None:
    await store.write([write(key, 1, b"a")])
    await store.delete([(key, 1)])
    assert await store.touch([(key, 1)]) == [key]
    assert await store.write([write(key, 2, b"b", length=1)]) == [GAP]
    assert await store.write([write(key, 3, b"a", b"b")]) == [WRITTEN]
    assert await store.touch([(key, 1)]) == []


async def test_a_new_owner_shuts_the_old_one_out_by_reading(store: JournalStore, key: str) -> None:
    await store.write([write(key, 1, b"a")])
    assert await store.take(key, 2) == (1, b"head 1", [b"a"])
    assert await store.write([write(key, 2, b"old", length=1)]) == [FENCED]
    assert await store.write([write(key, 3, b"old")]) == [FENCED]
    await store.delete([(key, 1)])
    assert await store.take(key, 1) is None
    assert await store.take(key, 3) == (1, b"head 1", [b"a"])  # the second one died before it wrote
    assert await store.write([write(key, 1, b"new", token=2)]) == [FENCED]
    assert await store.write([write(key, 1, b"new", token=3)]) == [WRITTEN]
    assert await store.take(key, 4) == (3, b"head 1", [b"new"])


async def test_what_is_written_aside_replaces_the_journal_when_it_is_whole(store: JournalStore, key: str) -> None:
    await store.write([write(key, 1, b"old")])
    assert await store.write([write(key, 2, b"a", b"b", target=ASIDE)]) == [WRITTEN]
    assert await store.write([write(key, 3, b"c", length=2, trim=1, target=ASIDE)]) == [WRITTEN]
    assert await store.touch([(key, 1)]) == []
    assert await store.take(key, 1) == (1, b"head 1", [b"old"])
    assert await store.write([write(key, 4, b"d", length=2, target=INSTEAD)]) == [WRITTEN]
    assert await store.take(key, 1) == (1, b"head 4", [b"b", b"c", b"d"])
    assert await store.write([write(key, 5, b"e", length=3)]) == [WRITTEN]
    assert await store.take(key, 1) == (1, b"head 5", [b"b", b"c", b"d", b"e"])


async def test_what_replaces_a_journal_may_be_empty(store: JournalStore, key: str) -> None:
    await store.write([write(key, 1, b"old")])
    await store.write([write(key, 2, b"a", target=ASIDE)])
    assert await store.write([write(key, 3, length=1, trim=1, target=INSTEAD)]) == [WRITTEN]
    assert await store.take(key, 1) == (1, b"head 3", [])


async def test_a_part_that_does_not_fit_is_a_gap_and_everything_begins_anew(store: JournalStore, key: str) -> None:
    await store.write([write(key, 1, b"old")])
    await store.write([write(key, 2, b"a", target=ASIDE)])
    assert await store.write([write(key, 4, b"c", length=1, target=INSTEAD)]) == [GAP]
    assert await store.write([write(key, 3, b"c", length=2, target=INSTEAD)]) == [GAP]
    assert await store.write([write(key, 5, b"b", target=ASIDE)]) == [WRITTEN]
    assert await store.write([write(key, 3, b"c", length=1, target=INSTEAD)]) == [GAP]
    assert await store.write([write(key, 6, b"d", length=1, target=INSTEAD)]) == [WRITTEN]
    assert await store.take(key, 1) == (1, b"head 6", [b"b", b"d"])


async def test_a_journal_that_a_new_owner_has_not_written_whole_is_still_the_old_ones(
    store: JournalStore, key: str
) -> None:
    await store.write([write(key, 1, b"old")])
    await store.take(key, 2)
    assert await store.write([write(key, 1, b"a", token=2, target=ASIDE)]) == [WRITTEN]
    assert await store.write([write(key, 2, b"x", length=1)]) == [FENCED]
    assert await store.take(key, 3) == (1, b"head 1", [b"old"])
    assert await store.write([write(key, 2, b"b", token=2, length=1, target=INSTEAD)]) == [FENCED]
    assert await store.write([write(key, 1, b"c", token=3, target=ASIDE)]) == [WRITTEN]
    assert await store.write([write(key, 2, b"d", token=3, length=1, target=INSTEAD)]) == [WRITTEN]
    assert await store.take(key, 4) == (3, b"head 2", [b"c", b"d"])


# --- in Redis only


async def test_nothing_stays_aside(redis_url: str, key: str) -> None:
    async with connected(redis_url) as redis:
        store = RedisJournalStore(redis)
        aside = f"trunkline:aside:{key}"
        for ends in (write(key, 2, b"b", length=1, target=INSTEAD), write(key, 4, b"b")):
            await store.write([write(key, ends.number - 1, b"a", target=ASIDE)])
            assert await redis.execute("PTTL", aside) > 500_000
            await store.write([ends])
            assert await redis.execute("EXISTS", aside) == 0
        await store.write([write(key, 5, b"a", target=ASIDE)])
        await store.delete([(key, 1)])
        assert await redis.execute("KEYS", f"*{key}") == []


async def test_a_journal_expires_unless_it_is_touched(redis_url: str, key: str) -> None:
    async with connected(redis_url) as redis:
        store, brief = RedisJournalStore(redis, kept_s=60), RedisJournalStore(redis, kept_s=0.25)
        await store.write([write(key, 1, b"a")])
        lives = [await redis.execute("PTTL", f"trunkline:{part}:{key}") for part in ("head", "log")]
        assert all(0 < left <= 60_000 for left in lives)
        await RedisJournalStore(redis).touch([(key, 1)])
        lives = [await redis.execute("PTTL", f"trunkline:{part}:{key}") for part in ("head", "log")]
        assert all(left > 500_000 for left in lives)
        await brief.touch([(key, 1)])
        with anyio.fail_after(30):
            while await store.take(key + "?", 1) is not None or await redis.execute("EXISTS", f"trunkline:log:{key}"):
                await anyio.sleep(0.02)
        assert await store.touch([(key, 1)]) == [key]


async def test_whoever_has_the_route_has_the_journal_before_he_has_read_it(redis_url: str, key: str) -> None:
    """Between the take-over and the reading a database may be asked; the last owner wakes up just then."""
    async with connected(redis_url) as redis:
        store = RedisJournalStore(redis)
        await store.write([write(key, 1, b"a")])
        await redis.execute("HSET", f"trunkline:route:{key}", "n", "b", "t", 3, "v", "")
        assert await store.write([write(key, 2, b"old", length=1), write(key + "2", 1)]) == [FENCED, WRITTEN]
        assert await store.write([write(key, 3, b"old", token=2)]) == [FENCED]
        for token in (1, 2):
            await store.delete([(key, token)])
        with pytest.raises(RoutesUnavailable):
            await store.take(key, 2)  # taken over since: whoever asks looks it up again
        assert await store.take(key, 3) == (1, b"head 1", [b"a"])
        assert await store.write([write(key, 1, b"new", token=3)]) == [WRITTEN]
        await store.delete([(key, 3)])
        assert await redis.execute("EXISTS", f"trunkline:head:{key}") == 0
        await redis.execute("DEL", f"trunkline:route:{key}")


async def test_a_route_that_nobody_can_have_written_says_nothing_of_the_journal(redis_url: str, key: str) -> None:
    async with connected(redis_url) as redis:
        store, route = RedisJournalStore(redis), f"trunkline:route:{key}"
        await redis.execute("SET", route, "junk")
        assert await store.write([write(key, 1, b"a")]) == [WRITTEN]
        await redis.execute("DEL", route)
        await redis.execute("HSET", route, "t", "junk")
        assert await store.write([write(key, 2, b"b", length=1)]) == [WRITTEN]
        await redis.execute("DEL", route)
        assert await store.take(key, 1) == (1, b"head 2", [b"a", b"b"])


async def test_a_list_that_was_evicted_is_a_gap(redis_url: str, key: str) -> None:
    async with connected(redis_url) as redis:
        store = RedisJournalStore(redis)
        await store.write([write(key, 1, b"a")])
        await redis.execute("DEL", f"trunkline:log:{key}")
        assert await store.write([write(key, 2, b"b", length=1)]) == [GAP]


async def test_a_server_that_is_away_is_an_error_within_a_second_and_a_new_one_knows_nothing(key: str) -> None:
    with RedisServer() as server:
        async with connected(server.url) as patient, connected(server.url, deadlines=USUAL_DEADLINES) as redis:
            store = RedisJournalStore(redis)
            await RedisJournalStore(patient).write([write(key, 1, b"a")])
            server.freeze()
            assert await refused_after(store.write([write(key, 2, b"b", length=1)])) < 1
            server.restart()
            await is_up(redis)
            with anyio.fail_after(30):
                while True:
                    try:
                        assert await store.write([write(key, 3, b"c", length=2)]) == [GAP]
                        break
                    except RoutesUnavailable:
                        await anyio.sleep(0.05)


class Garbling(RedisConnection):
    """A connection whose answers were spoilt on their way."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    async def execute(self, *command: Value) -> object:
        return self._answer

    async def run(self, *_: object, **__: object) -> object:
        return self._answer


@pytest.mark.parametrize("answer", [[b"wsitten"], [b"written", b"gap"], 7, [None], [b"x", b"y"], [b"1", b"2", b"z"]])
async def test_an_answer_that_was_spoilt_is_none(answer: object, key: str) -> None:
    store = RedisJournalStore(Garbling(answer))
    with pytest.raises(RoutesUnavailable):
        await store.write([write(key, 1)])
    with pytest.raises(RoutesUnavailable):
        await store.take(key, 1)


@pytest.mark.parametrize("part", ["head", "log", "aside"])
async def test_a_key_of_another_type_harms_no_other_journal_and_is_replaced(
    redis_url: str, key: str, part: str
) -> None:
    other = secrets.token_hex(20)
    async with connected(redis_url) as redis:
        store = RedisJournalStore(redis)
        await store.write([write(key, 1, b"a"), write(other, 1, b"b")])
        forged: list[tuple[Value, ...]] = [("DEL", f"trunkline:{part}:{key}"), ("SET", f"trunkline:{part}:{key}", "x")]
        await redis.pipeline(forged)
        outcome, of_other = await store.write([write(key, 2, b"c", length=1), write(other, 2, b"d", length=1)])
        assert (outcome, of_other) == (WRITTEN if part == "aside" else GAP, WRITTEN)
        await redis.pipeline(forged)
        assert await store.touch([(key, 1), (other, 1)]) == ([key] if part == "head" else [])
        await redis.pipeline(forged)
        assert (await store.take(key, 1) is None) == (part != "aside")
        await redis.pipeline(forged)
        assert await store.write([write(key, 3, b"e", target=INSTEAD)]) == [WRITTEN]
        assert await store.take(key, 1) == (1, b"head 3", [b"e"])
        await redis.pipeline(forged)
        await store.delete([(key, 1), (other, 1)])
        assert await store.take(other, 2) is None
