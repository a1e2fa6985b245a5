"""What callers have used of their limits, in the database."""

import time

import pytest

from app.storage.call_counts import CallCountRepository
from app.storage.engine import Database

LATER, PAST = int(time.time()) + 3600, 1_000_000_000


@pytest.fixture
def counts(database: Database) -> CallCountRepository:
    return CallCountRepository(database)


async def test_counts_add_up_and_are_told_in_the_order_of_the_question(counts):
    assert await counts.add([("a", 2, LATER), ("b", 1, LATER)]) == [2, 1]
    assert await counts.add([("b", 3, LATER), ("c", 0, LATER), ("a", 1, LATER)]) == [4, 0, 3]
    assert await counts.add([("a", 1, LATER), ("a", 1, LATER)]) == [4, 5]
    assert await counts.add([]) == []


async def test_another_node_on_the_same_database_goes_on_with_them(counts, url):
    await counts.add([("a", 2, LATER)])
    other = Database(url)
    try:
        assert await CallCountRepository(other).add([("a", 1, LATER)]) == [3]
    finally:
        await other.aclose()


async def test_what_is_over_is_forgotten_with_the_next_question(counts):
    await counts.add([("old", 7, PAST), ("new", 7, LATER)])
    assert await counts.add([("new", 1, LATER)]) == [8]
    assert await counts.add([("old", 1, LATER)]) == [1]


async def test_a_name_and_a_number_have_room(counts):
    name = "f" * 32 + ":86400:" + "9" * 10
    assert await counts.add([(name, 1_000_000_000, LATER)]) == [1_000_000_000]
    assert await counts.add([(name, 1 << 40, LATER)]) == [1_000_000_000 + (1 << 40)]
