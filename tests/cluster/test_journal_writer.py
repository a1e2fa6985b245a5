"""JournalWriter: when it writes, what it does while the store is away or has lost something, and what it gives up."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
import psutil
import pytest

from app.cluster import journal_writer
from app.cluster.journal_writer import JournalWriter
from app.domain import Limits
from app.errors import RoutesUnavailable
from app.protocol import _notification_rate as notification_rate
from app.sessions.session_ids import session_key
from app.sessions.streams._replay import MAX_AGE_S, MAX_EVENTS
from app.sessions.streams.journal import SLACK_ENTRIES, WRITE_BYTES, NotDurable
from app.sessions.streams.journal_store import REPLACES
from tests.cluster.durable import SEALER, FlakyStore, Node, nodes, stream_call, take
from tests.integration.stopwatch import stopwatch_of


@pytest.fixture
def store() -> FlakyStore:
    return FlakyStore()


@pytest.fixture
async def node(store: FlakyStore) -> AsyncIterator[Node]:
    async with nodes(store, 1) as (node,):
        yield node


@pytest.fixture
async def running(node: Node, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(journal_writer, "RETRY_S", 0.01)
    monkeypatch.setattr(journal_writer, "TOUCH_S", 0.05)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.writer.run)
        yield node
        tasks.cancel_scope.cancel()


def say(node: Node, text: str) -> None:
    node.process.say(method="notifications/note", params={"text": text})


async def until(condition: Any) -> None:
    with anyio.fail_after(30):
        while not condition():
            await anyio.sleep(0.001)


async def said(store: FlakyStore, session_id: str, token: int = 1) -> list[str]:
    """What the store has of the session, read as another node would."""
    found = await JournalWriter(store, SEALER).take(session_key(session_id), token)
    if found is None:
        return []
    return [json.loads(event.item)["params"]["text"] for event in found[1] if isinstance(event.item, bytes)]


async def test_what_happens_within_a_moment_is_written_together_and_soon(running: Node, store: FlakyStore) -> None:
    sessions = [await running.open() for _ in range(3)]
    await until(lambda: len(store.writes) == 3)
    async with stopwatch_of([psutil.Process()]) as watch:
        for session in sessions:
            for number in range(5):
                session.backend_sent(b'{"jsonrpc":"2.0","method":"notifications/note","params":{"text":"%d"}}' % number)
        await until(lambda: len(store.writes) == 6)
        assert watch.seconds < 1.0  # 20 ms on a machine that does nothing else
    assert [len(write.entries) for write in store.writes[3:]] == [5, 5, 5]
    assert await said(store, sessions[0].id) == list("01234")
    assert running.writer.stored_bytes > 0


async def test_nothing_is_written_before_the_handshake_or_for_nothing(running: Node, store: FlakyStore) -> None:
    session = await running.open()
    await until(lambda: len(store.writes) == 1)
    session.sweep(time.monotonic())
    await anyio.wait_all_tasks_blocked()
    fresh = running.restored("x" * 32, session.principal, session.spec, Limits(), "streamable_http")
    running.durability.start(fresh, "f" * 40, 1)
    assert fresh.journal is not None
    with pytest.raises(NotDurable):
        await running.writer.flush(fresh.journal)
    assert len(store.writes) == 1


async def test_while_the_store_is_away_nothing_gathers_and_then_everything_is_written(
    running: Node, store: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    session = await running.open()
    await running.flush(session)
    store.is_away = True
    for number in range(10):
        say(running, str(number))
        await anyio.sleep(0.003)
    await until(lambda: caplog.records)
    assert session.journal is not None
    assert session.journal._pending is None
    with pytest.raises(RoutesUnavailable):
        await running.flush(session)
    store.is_away = False
    await until(lambda: not session.journal.is_dirty)  # type: ignore[union-attr]
    assert await said(store, session.id) == list("0123456789")
    away = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(away) == 1


async def test_while_the_store_is_away_a_change_takes_the_place_of_the_one_before(
    node: Node, store: FlakyStore
) -> None:
    session = await node.open()
    for number in range(10):
        store.is_away = number > 0
        node.process.say(method="notifications/resources/updated", params={"uri": "a://b", "text": str(number)})
        with suppress(RoutesUnavailable):
            await node.flush(session)
    assert len(session.streams.listen._entries or ()) == 2
    store.is_away = False
    await node.flush(session)
    assert await said(store, session.id) == ["0", "9"]


async def test_a_change_that_is_on_its_way_to_the_store_stays(node: Node, store: FlakyStore) -> None:
    session = await node.open()
    await node.flush(session)
    write = store.inner.write

    async def change_and_write(writes: Any) -> Any:
        change("2")
        return await write(writes)

    def change(text: str) -> None:
        node.process.say(method="notifications/resources/updated", params={"uri": "a://b", "text": text})

    change("1")
    store.inner.write = change_and_write  # type: ignore[method-assign]
    assert session.journal is not None
    await node.writer._write([session.journal])
    assert await said(store, session.id) == ["1"]
    assert len(session.streams.listen._entries or ()) == 2


async def test_what_the_store_has_lost_is_written_again(running: Node, store: FlakyStore) -> None:
    session, silent = await running.open(), await running.open()
    session.backend_sent(b'{"jsonrpc":"2.0","method":"notifications/note","params":{"text":"a"}}')
    await running.flush(session)
    await running.flush(silent)
    store.inner._journals.clear()
    session.backend_sent(b'{"jsonrpc":"2.0","method":"notifications/note","params":{"text":"b"}}')
    await until(lambda: len(store.inner) == 2)  # one by its write, one by its touch
    await running.flush(session)
    assert await said(store, session.id) == ["a", "b"]


async def test_everything_is_written_again_when_that_is_asked_for(node: Node, store: FlakyStore) -> None:
    session = await node.open()
    await node.flush(session)
    store.inner._journals.clear()
    node.writer.rewrite_all()
    await node.flush(session)
    assert len(store.inner) == 1


async def test_a_large_log_is_written_in_parts_and_shortened_from_its_front(
    node: Node, store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notification_rate, "PER_SECOND", 2 * MAX_EVENTS + 1)
    session = await node.open()
    for number in range(2 * MAX_EVENTS):
        say(node, f"{number}" + "x" * 2000)
        if number % 100 == 0:
            await node.flush(session)
        reader = session.streams.read(session.streams.listen)
        await take(reader, 1)
        reader.leave()
    await node.flush(session)
    kept = store.inner._journals[session_key(session.id)]
    assert MAX_EVENTS <= len(kept.entries) <= MAX_EVENTS + 2 * SLACK_ENTRIES + 40
    assert len(await said(store, session.id)) == MAX_EVENTS
    session.journal.lost()  # type: ignore[union-attr]
    before = len(store.writes)
    await node.flush(session)
    parts = store.writes[before:]
    assert [part.length == REPLACES for part in parts] == [True] + [False] * (len(parts) - 1)
    assert len(parts) > 1
    assert all(sum(map(len, part.entries)) < WRITE_BYTES + 10_000 for part in parts)
    assert len(await said(store, session.id)) == MAX_EVENTS


async def test_a_session_without_events_left_has_an_empty_list(node: Node, store: FlakyStore) -> None:
    session = await node.open()
    say(node, "a")
    await node.flush(session)
    session.streams.trim(time.monotonic() + MAX_AGE_S + 1)
    await node.flush(session)
    assert store.inner._journals[session_key(session.id)].entries == []
    assert session.journal._length == 0


async def test_above_the_bound_the_session_with_the_most_is_not_durable_any_more(
    store: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes(store, 1) as (node,):
        node.writer._max_stored_bytes = 10_000
        sessions = [await node.open() for _ in range(3)]
        for session, size in zip(sessions, (3_000, 6_000, 2_000), strict=True):
            line = json.dumps({"jsonrpc": "2.0", "method": "notifications/note", "params": {"text": "x" * size}})
            session.backend_sent(line.encode())
            await node.flush(session)
        assert [session.journal.is_over for session in sessions if session.journal] == [False, True, False]
        assert node.writer.stored_bytes < 10_000
        assert len(caplog.records) == 1
        await node.writer._delete()
        assert store.deleted == [(session_key(sessions[1].id), 1)]
        sessions[1].backend_sent(b'{"jsonrpc":"2.0","method":"notifications/note","params":{"text":"a"}}')
        reader = stream_call(sessions[1], 3)
        reader.leave()  # goes on as a session that is not durable
        assert sessions[1].journal is not None
        assert sessions[1].journal._pending is None


async def test_a_writer_that_is_cancelled_in_a_write_writes_everything_the_next_time(
    node: Node, store: FlakyStore
) -> None:
    session = await node.open()
    await node.flush(session)
    say(node, "a")
    under_way, write = anyio.Event(), store.inner.write

    async def stuck(writes: Any) -> Any:
        await write(writes)
        under_way.set()
        await anyio.sleep_forever()

    store.inner.write = stuck  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.writer.run)
        await under_way.wait()
        tasks.cancel_scope.cancel()
    store.inner.write = write  # type: ignore[method-assign]
    await node.flush(session)
    assert store.writes[-1].length == REPLACES
    assert await said(store, session.id) == ["a"]
