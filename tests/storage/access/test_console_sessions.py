"""Sessions of the console in both databases."""

from datetime import UTC, datetime, timedelta

from app.storage.access.console_sessions import MAX_PER_CALLER, ConsoleSessionRepository
from app.storage.engine import Database

NOW = datetime(2026, 11, 24, tzinfo=UTC)
HOUR = timedelta(hours=1)


async def test_a_session_is_found_until_it_ends_or_is_removed(database: Database):
    sessions = ConsoleSessionRepository(database)
    await sessions.add(b"a" * 32, b"c" * 32, b"sealed", NOW, NOW + HOUR)
    found = await sessions.find(b"a" * 32, NOW)
    assert found is not None
    assert (found.sealed, found.ends_at) == (b"sealed", NOW + HOUR)
    assert await sessions.find(b"b" * 32, NOW) is None
    assert await sessions.find(b"a" * 32, NOW + HOUR) is None
    await sessions.remove(b"a" * 32)
    assert await sessions.find(b"a" * 32, NOW) is None
    await sessions.remove(b"a" * 32)


async def test_a_credential_has_so_many_sessions_and_the_oldest_ends(database: Database):
    sessions = ConsoleSessionRepository(database)
    for number in range(MAX_PER_CALLER + 1):
        begun_at = NOW + timedelta(seconds=number)
        await sessions.add(number.to_bytes(32), b"c" * 32, b"sealed", begun_at, NOW + HOUR)
    await sessions.add(b"o" * 32, b"other".ljust(32), b"sealed", NOW, NOW + HOUR)
    assert await sessions.find((0).to_bytes(32), NOW) is None
    assert await sessions.find((1).to_bytes(32), NOW) is not None
    assert await sessions.find(b"o" * 32, NOW) is not None


async def test_sessions_that_are_over_are_removed_when_another_begins(database: Database):
    sessions = ConsoleSessionRepository(database)
    await sessions.add(b"a" * 32, b"c" * 32, b"sealed", NOW, NOW + HOUR)
    await sessions.add(b"b" * 32, b"c" * 32, b"sealed", NOW + 2 * HOUR, NOW + 3 * HOUR)
    assert await sessions.find(b"a" * 32, NOW) is None
