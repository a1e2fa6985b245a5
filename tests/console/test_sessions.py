"""Cookies, and what a node remembers of them."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from app.auth.sealing import Sealer
from app.console.sessions import ENDS_AFTER, ConsoleSessions
from app.storage.access.console_sessions import ConsoleSessionRepository, StoredSession
from app.storage.engine import Database
from tests.databases import migrate

SECRET = b"s" * 32


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 24, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
async def database(tmp_path: Path):
    database = Database(migrate(f"sqlite:///{tmp_path}/test.db"))
    yield database
    await database.aclose()


def sessions(database: Database, clock: Clock, secret: bytes = SECRET) -> ConsoleSessions:
    return ConsoleSessions(ConsoleSessionRepository(database), Sealer(secret), secret, clock)


async def test_a_cookie_brings_the_credential_back_until_the_session_ends(database: Database):
    clock = Clock()
    here = sessions(database, clock)
    cookie = await here.begin("acme", b"Bearer tlk_x")
    found = await here.find(cookie)
    assert found is not None
    assert (found.tenant, found.authorization, found.ends_at) == ("acme", b"Bearer tlk_x", clock.now + ENDS_AFTER)
    assert "tlk_x" not in repr(found)
    clock.now += ENDS_AFTER
    assert await here.find(cookie) is None


async def test_a_session_ends_with_its_credential(database: Database):
    clock = Clock()
    here = sessions(database, clock)
    cookie = await here.begin("acme", b"Bearer t", clock.now + timedelta(minutes=5))
    clock.now += timedelta(minutes=4, seconds=58)
    assert await here.find(cookie) is not None
    clock.now += timedelta(seconds=2)
    assert await here.find(cookie) is None


async def test_a_cookie_of_another_secret_key_or_with_one_other_bit_is_nothing(database: Database):
    clock = Clock()
    here = sessions(database, clock)
    cookie = await here.begin("acme", b"Bearer t")
    assert await sessions(database, clock, b"o" * 32).find(cookie) is None
    for place in range(len(cookie)):
        other = b"A" if cookie[place : place + 1] != b"A" else b"B"
        assert await here.find(cookie[:place] + other + cookie[place + 1 :]) is None
    assert await here.find(cookie + b"A") is None


async def test_signing_out_ends_it_here_at_once_and_elsewhere_soon(database: Database):
    clock = Clock()
    here, there = sessions(database, clock), sessions(database, clock)
    cookie = await here.begin("acme", b"Bearer t")
    found = await here.find(cookie)
    assert found is not None
    assert await there.find(cookie) is not None
    await here.end(found)
    assert await here.find(cookie) is None
    clock.now += timedelta(seconds=5)
    assert await there.find(cookie) is None


async def test_signing_out_ends_it_elsewhere_soon_though_the_clock_there_was_set_back(database: Database):
    clock, clock_there = Clock(), Clock()
    here, there = sessions(database, clock), sessions(database, clock_there)
    cookie = await here.begin("acme", b"Bearer tlk_x")
    found = await there.find(cookie)
    assert found is not None
    clock_there.now -= timedelta(hours=1)
    await here.end(found)
    clock_there.now += timedelta(seconds=6)
    assert await there.find(cookie) is None


async def test_a_session_that_is_signed_out_while_it_is_looked_up_is_not_remembered(database: Database):
    clock, looking, go_on = Clock(), anyio.Event(), anyio.Event()

    class Slow(ConsoleSessionRepository):
        async def find(self, digest: bytes, now: datetime) -> StoredSession | None:
            found = await super().find(digest, now)
            looking.set()
            await go_on.wait()
            return found

    here = ConsoleSessions(Slow(database), Sealer(SECRET), SECRET, clock)
    other = sessions(database, clock)
    cookie = await other.begin("acme", b"Bearer t")
    signed_in = await other.find(cookie)
    assert signed_in is not None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(here.find, cookie)
        await looking.wait()
        await here.end(signed_in)
        go_on.set()
    assert await here.find(cookie) is None


async def test_what_is_remembered_is_bounded(database: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.console.sessions.MAX_REMEMBERED", 10)
    clock = Clock()
    here = sessions(database, clock)
    cookies = [await here.begin("acme", b"Bearer %d" % (number // 40)) for number in range(60)]
    for cookie in cookies:
        assert await here.find(cookie) is not None
    assert len(here._remembered) == 10


async def test_of_many_who_ask_at_the_same_moment_the_database_is_asked_once(database: Database):
    clock, asked = Clock(), list[int]()

    class Counting(ConsoleSessionRepository):
        async def going_on(self, digests: Collection[bytes], now: datetime) -> set[bytes]:
            asked.append(len(digests))
            return await super().going_on(digests, now)

        async def find(self, digest: bytes, now: datetime) -> StoredSession | None:
            asked.append(1)
            return await super().find(digest, now)

    here = ConsoleSessions(Counting(database), Sealer(SECRET), SECRET, clock)
    cookies = [await here.begin("acme", b"Bearer %d" % number) for number in range(10)]
    found = [await here.find(cookie) for cookie in cookies]
    assert asked == [1] * 10
    gone = found[3]
    assert gone is not None
    await sessions(database, clock).end(gone)  # on another node
    clock.now += timedelta(seconds=10)
    asked.clear()
    again = dict[int, bool]()

    async def ask(number: int) -> None:
        again[number] = await here.find(cookies[number]) is not None

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(ask, number)
    assert asked == [10, 1]  # for all; and for the one that is gone, which is then looked up like any other
    assert [number for number, is_there in sorted(again.items()) if not is_there] == [3]


async def test_a_session_that_nobody_uses_is_not_asked_about_with_others(database: Database):
    clock, asked = Clock(), list[int]()

    class Counting(ConsoleSessionRepository):
        async def going_on(self, digests: Collection[bytes], now: datetime) -> set[bytes]:
            asked.append(len(digests))
            return await super().going_on(digests, now)

    here = ConsoleSessions(Counting(database), Sealer(SECRET), SECRET, clock)
    used, left = [await here.begin("acme", b"Bearer %d" % number) for number in range(2)]
    assert await here.find(left) is not None
    for _ in range(10):
        assert await here.find(used) is not None
        clock.now += timedelta(seconds=10)
    assert asked[:2] == [2, 2]
    assert asked[-1] == 1
