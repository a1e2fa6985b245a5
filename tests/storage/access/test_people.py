"""People who have signed in with a provider, in the database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from app.domain import Person
from app.storage.access.people import KEPT, PersonRepository
from app.storage.engine import Database
from app.storage.tenants import TenantRepository

NOW = datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
ALICE = Person(
    "acme", "https://idp.example", "alice", frozenset({"mcp:connect"}), NOW, b"\0sealed", frozenset({"b", "a"})
)


@pytest.fixture
def repository(database: Database, tenants: TenantRepository) -> PersonRepository:
    return PersonRepository(database)


async def test_a_person_comes_back_as_stored_and_the_last_sign_in_counts(repository, tenants):
    await repository.put(ALICE)
    assert await repository.find(ALICE.identity) == ALICE
    assert "sealed" not in repr(ALICE)
    for other in (
        ("zenith", *ALICE.identity[1:]),
        ("acme", ALICE.issuer + "/", "alice"),
        (*ALICE.identity[:2], "Alice"),
    ):
        assert await repository.find(other) is None
    again = replace(ALICE, scopes=frozenset(), groups=frozenset(), sealed=None, asked_at=NOW + timedelta(days=1))
    await repository.put(again)
    assert await repository.find(ALICE.identity) == again
    await tenants.delete("acme")
    assert await repository.find(ALICE.identity) is None


async def test_whom_nobody_has_asked_about_for_long_is_forgotten(repository):
    old, theirs = replace(ALICE, subject="old"), replace(ALICE, tenant="zenith")
    for each in (old, theirs):
        await repository.put(each)
    await repository.put(replace(ALICE, asked_at=NOW + KEPT))
    assert await repository.find(old.identity) == old
    await repository.put(replace(ALICE, asked_at=NOW + KEPT + timedelta(microseconds=1)))
    assert await repository.find(old.identity) is None
    assert await repository.find(theirs.identity) == theirs


async def test_of_many_who_read_the_same_one_asks(repository):
    await repository.put(ALICE)
    await repository.put(replace(ALICE, subject="bob"))
    took = list[bool]()

    async def take(number: int) -> None:
        took.append(await repository.take_question(ALICE, NOW + timedelta(seconds=number)))

    async with anyio.create_task_group() as tasks:
        for number in range(1, 6):
            tasks.start_soon(take, number)
    assert sorted(took) == [False] * 4 + [True]
    bob = await repository.find(("acme", ALICE.issuer, "bob"))
    assert bob is not None
    assert bob.asked_at == NOW
    assert not await repository.take_question(replace(ALICE, subject="nobody"), NOW)


async def test_an_answer_is_written_unless_somebody_has_signed_in_since(repository):
    await repository.put(ALICE)
    asked_at = NOW + timedelta(minutes=10)
    assert await repository.take_question(ALICE, asked_at)
    answer = replace(ALICE, scopes=frozenset({"mcp:connect:echo"}), sealed=b"two", asked_at=asked_at)
    await repository.told(answer, asked_at)
    assert await repository.find(ALICE.identity) == answer
    newer = replace(ALICE, sealed=b"three", asked_at=asked_at + timedelta(seconds=1))
    await repository.put(newer)
    await repository.told(replace(answer, sealed=b"late"), asked_at)
    assert await repository.find(ALICE.identity) == newer
    await repository.told(replace(answer, subject="nobody"), asked_at)
    assert await repository.find(("acme", ALICE.issuer, "nobody")) is None


async def test_whoever_has_signed_in_under_a_name_is_found_of_all_issuers(repository):
    other = replace(ALICE, issuer="https://other.example", groups=frozenset())
    for each in (ALICE, other, replace(ALICE, subject="bob"), replace(ALICE, tenant="zenith")):
        await repository.put(each)
    found = await repository.of_subject("acme", "alice")
    assert sorted(found, key=lambda each: each.issuer) == [ALICE, other]
    assert await repository.of_subject("acme", "nobody") == []
