"""Journal: a node that dies between two writes of one session has lost nothing that the store had taken before.

The store is a real Redis; writes are small, so that each event is one of its own.
"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from app.cluster.routing.journal_stores import RedisJournalStore
from app.domain import Principal
from app.sessions.session import Session
from app.sessions.streams import _replay as replay
from app.sessions.streams import journal
from app.sessions.streams.journal_store import JournalStore
from tests.cluster.durable import Node, nodes, place_of, stream_call, take
from tests.cluster.routing.rig import connected


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[JournalStore]:
    async with connected(redis_url) as redis:
        yield RedisJournalStore(redis)


@pytest.fixture(autouse=True)
def small_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "WRITE_BYTES", 1)


@pytest.fixture
async def cluster(store: JournalStore) -> AsyncIterator[list[Node]]:
    async with nodes(store) as cluster:
        yield cluster


def change(node: Node, number: int) -> None:
    node.process.say(method="notifications/resources/updated", params={"uri": "a://b", "n": number})


def note(node: Node, number: int, size: int = 0) -> None:
    node.process.say(method="notifications/note", params={"n": number, "text": "x" * size})


async def write(node: Node, session: Session, count: int = 1) -> None:
    """So many writes to the store."""
    assert session.journal is not None
    for _ in range(count):
        await node.writer._write([session.journal])


async def heard(node: Node, session: Session) -> list[int]:
    """What a client hears on the listen stream of a node that goes on, up to what is said now."""
    note(node, 99)
    reader, numbers = session.streams.read(session.streams.listen), list[int]()
    while 99 not in numbers:
        (message,) = await take(reader, 1)
        if message["method"] != "notifications/message":  # the news of another process
            numbers.append(message["params"]["n"])
    reader.leave()
    return numbers[:-1]


async def heard_after_a_death(cluster: Sequence[Node], session: Session) -> list[int]:
    cluster[0].abandon()
    return await heard(cluster[1], await cluster[1].take_over(session.id))


async def end_of(node: Node, session: Session, event_id: bytes) -> list[Any]:
    """What a client hears that comes back to a call's stream."""
    reader = session.streams.resume(place_of(event_id))
    items: list[Any] = []
    while reader is not None and (item := await reader.next()) is not None:
        items.append(json.loads(item) if isinstance(item, bytes) else item.error.reason)
    return items


@pytest.mark.parametrize("writes", range(4))
async def test_a_change_stays_until_the_store_has_the_one_that_takes_its_place(
    cluster: list[Node], writes: int
) -> None:
    session = await cluster[0].open()
    change(cluster[0], 1)
    await cluster[0].flush(session)
    note(cluster[0], 2)
    note(cluster[0], 3)
    change(cluster[0], 4)
    await write(cluster[0], session, writes)
    change(cluster[0], 5)
    assert [entry.coalesce is None for entry in session.streams.listen._entries or ()].count(False) == 2
    await cluster[0].flush(session)
    assert await heard_after_a_death(cluster, session) == ([1, 2, 3, 5] if writes < 3 else [2, 3, 4, 5])


@pytest.mark.parametrize("writes", range(1, 4))
async def test_a_change_is_there_though_the_one_in_its_place_was_replaced_before_it_was_written(
    cluster: list[Node], writes: int
) -> None:
    session = await cluster[0].open()
    change(cluster[0], 1)
    await cluster[0].flush(session)
    for number in (2, 4):
        change(cluster[0], number)
        note(cluster[0], number + 1)
    change(cluster[0], 6)
    await write(cluster[0], session, writes)
    assert await heard_after_a_death(cluster, session) == [1, 3, 5, 6][: writes + 1]


async def test_a_change_that_the_store_has_is_not_passed_over_for_one_that_it_has_not(cluster: list[Node]) -> None:
    """A client that had taken the note only would be past the one, and the other might die with the node."""
    session = await cluster[0].open()
    change(cluster[0], 1)
    await cluster[0].flush(session)
    note(cluster[0], 2)
    change(cluster[0], 3)
    reader = session.streams.read(session.streams.listen)
    first, second = await take(reader, 2)
    assert [first["params"]["n"], second["params"]["n"]] == [1, 2]


async def test_a_change_that_is_only_aside_takes_no_place(cluster: list[Node]) -> None:
    session = await cluster[0].open()
    change(cluster[0], 1)
    await cluster[0].flush(session)
    assert session.journal is not None
    session.journal.lost()
    note(cluster[0], 2)
    change(cluster[0], 3)
    note(cluster[0], 4)
    await write(cluster[0], session, 3)
    change(cluster[0], 5)
    assert await heard(cluster[0], session) == [1, 2, 4, 5]


@pytest.mark.parametrize("writes", range(4))
async def test_an_answer_is_there_until_the_error_in_its_place_is(
    cluster: list[Node], monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    monkeypatch.setattr(replay, "MAX_BYTES", 1200)
    monkeypatch.setattr(journal, "SLACK_ENTRIES", 1)  # the list is shortened whenever it can be
    session = await cluster[0].open()
    readers = [stream_call(session, number) for number in (1, 2)]
    places = [reader.event_id for reader in readers]
    ids = [sent["id"] for sent in cluster[0].process.sent[-2:]]
    for reader in readers:
        reader.leave()
    cluster[0].process.say(id=ids[0], result={"text": "x" * 700})
    await cluster[0].flush(session)
    cluster[0].process.say(id=ids[1], result={"text": "y" * 700})  # which makes the other one too large
    await write(cluster[0], session, writes)
    cluster[0].abandon()
    monkeypatch.setattr(replay, "MAX_BYTES", 10_000)
    successor = await cluster[1].take_over(session.id)
    first, second = [await end_of(cluster[1], successor, place) for place in places]
    assert len(first) == len(second) == 1
    assert first[0] == "response_too_large" if writes > 1 else first[0]["result"]["text"] == "x" * 700
    assert second[0] == "node_lost" if writes < 1 else second[0]["result"]["text"] == "y" * 700


@pytest.mark.parametrize("writes", range(4))
async def test_a_stream_that_has_ended_before_its_answer_is_written_has_one_outcome(
    cluster: list[Node], writes: int
) -> None:
    session = await cluster[0].open()
    reader = stream_call(session, 1)
    place, call_id = reader.event_id, cluster[0].process.sent[-1]["id"]
    reader.leave()
    await cluster[0].flush(session)
    for number in (1, 2):
        cluster[0].process.say(method="notifications/progress", params={"progressToken": call_id, "progress": number})
    cluster[0].process.say(id=call_id, result={})
    await write(cluster[0], session, writes)
    cluster[0].abandon()
    items = await end_of(cluster[1], await cluster[1].take_over(session.id), place)
    assert [item["params"]["progress"] for item in items[:-1]] == [1, 2][:writes]
    assert items[-1] == "node_lost" if writes < 3 else "result" in items[-1]


@pytest.mark.parametrize("writes", range(5))
async def test_what_the_store_has_stays_until_everything_that_replaces_it_is_there(
    cluster: list[Node], writes: int
) -> None:
    session = await cluster[0].open()
    for number in (1, 2, 3):
        note(cluster[0], number)
    await cluster[0].flush(session)
    assert session.journal is not None
    session.journal.lost()
    note(cluster[0], 4)
    await write(cluster[0], session, writes)
    assert await heard_after_a_death(cluster, session) == [1, 2, 3, 4][: 4 if writes == 4 else 3]


async def test_a_node_that_dies_while_it_writes_down_what_it_took_over_has_lost_nothing(store: JournalStore) -> None:
    async with nodes(store, 3) as cluster:
        session = await cluster[0].open()
        for number in (1, 2, 3):
            note(cluster[0], number)
        await cluster[0].flush(session)
        cluster[0].abandon()
        await write(cluster[1], await cluster[1].take_over(session.id, 2), 1)
        cluster[1].abandon()
        assert await heard(cluster[2], await cluster[2].take_over(session.id, 3)) == [1, 2, 3]


async def test_numbers_of_an_owner_that_wrote_nothing_are_not_used_again(store: JournalStore) -> None:
    async with nodes(store, 3) as cluster:
        session = await cluster[0].open()
        note(cluster[0], 1)
        await cluster[0].flush(session)
        cluster[0].abandon()
        second = await cluster[1].take_over(session.id, 2)
        for number in range(2, 6):
            note(cluster[1], number)
        reader = second.streams.read(second.streams.listen)
        await take(reader, 6)  # the news of the other process is among them
        cluster[1].abandon()
        third = await cluster[2].take_over(session.id, 3)
        note(cluster[2], 6)
        resumed = third.streams.resume(place_of(reader.event_id))
        assert resumed is not None
        news, said = await take(resumed, 2)
        assert (news["method"], said["params"]["n"]) == ("notifications/message", 6)


def test_a_head_has_the_groups_of_its_principal_and_one_of_an_earlier_version_none():
    head = journal.Head(
        "acme", "echo", "acme", "https://idp.example", "bob", ["mcp:connect"], "streamable_http", "2025-11-25", 1.0,
        b"", [], groups=["a", "b"],
    )  # fmt: skip
    bob = Principal("acme", "https://idp.example", "bob", frozenset({"mcp:connect"}), groups=frozenset({"a", "b"}))
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(head))
    assert msgspec.convert(stored, journal.Head).principal == bob
    del stored["groups"]
    assert msgspec.convert(stored, journal.Head).principal == replace(bob, groups=frozenset())
