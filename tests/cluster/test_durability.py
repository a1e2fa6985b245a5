"""Durable sessions: what another node makes of a session whose node is gone, and what it does not."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import pytest

from app.cluster.durability import DURABLE, LEAP, is_durable
from app.domain import BackendSpec, Limits, Selection
from app.errors import BackendExited, QuotaExceeded, RoutesUnavailable
from app.sessions.session import Session, SessionState
from app.sessions.session_ids import session_key
from app.sessions.streams.journal import NotDurable
from app.sessions.streams.resumption import Reader
from tests.cluster.durable import ALICE, SPEC, FlakyStore, Node, message, nodes, place_of, request, stream_call, take


@pytest.fixture
def store() -> FlakyStore:
    return FlakyStore()


@pytest.fixture
async def pair(store: FlakyStore) -> AsyncIterator[tuple[Node, Node]]:
    async with nodes(store) as (first, second):
        yield first, second


def note(text: str) -> dict[str, Any]:
    return {"method": "notifications/note", "params": {"text": text}}


def texts(messages: list[Any]) -> list[Any]:
    return [each["params"].get("text", each["method"]) if isinstance(each, dict) else each for each in messages]


def resume(session: Session, event_id: bytes) -> Reader:
    """What follows this event; there must be something."""
    resumed = session.streams.resume(place_of(event_id))
    assert resumed is not None
    return resumed


async def test_the_session_is_open_again_and_its_next_call_works(pair: tuple[Node, Node]) -> None:
    first, second = pair
    old = await first.open()
    old.request(request("logging/setLevel", 1, level="error"), old.reply(1, may_stream=False))
    old.request(request("resources/subscribe", 2, uri="a://b"), old.reply(1, may_stream=False))
    await first.flush(old)
    first.abandon()
    session = await second.take_over(old.id)
    assert (session.state, session.version, session.principal) == (SessionState.OPEN, "2025-11-25", ALICE)
    assert session.opened_at == pytest.approx(old.opened_at, abs=1)
    said = [each["method"] for each in second.process.sent]
    assert said == ["initialize", "notifications/initialized", "logging/setLevel", "resources/subscribe"]
    reply = session.reply(1, may_stream=True)
    session.request(request("tools/call", 3), reply)
    second.process.answer({"ok": True})
    assert json.loads(reply.outcomes[0].payload())["result"] == {"ok": True}  # type: ignore[union-attr]


async def test_requests_wait_for_the_process_that_is_on_its_way(pair: tuple[Node, Node]) -> None:
    first, second = pair
    old = await first.open()
    await first.flush(old)
    session = await second.restore(old.id, 2)
    assert session is not None
    session.request(request("tools/call", 1), session.reply(1, may_stream=True))
    with anyio.fail_after(20):
        while not (second.connections.leases and second.process.sent):
            await anyio.lowlevel.checkpoint()
    second.process.answer({"capabilities": {}})
    assert [each["method"] for each in second.process.sent][-1] == "tools/call"


async def test_what_the_client_has_not_seen_is_replayed_and_the_stream_goes_on(pair: tuple[Node, Node]) -> None:
    first, second = pair
    old = await first.open()
    listening = old.streams.read(old.streams.open_listener())
    for text in "abc":
        first.process.say(**note(text))
    assert texts(await take(listening, 2)) == ["a", "b"]
    await first.flush(old)
    session = await second.take_over(old.id)
    resumed = resume(session, listening.event_id)
    second.process.say(**note("d"))
    assert texts(await take(resumed, 3)) == ["c", "notifications/message", "d"]


async def test_without_an_id_the_listen_stream_gives_what_no_connection_has_taken(pair: tuple[Node, Node]) -> None:
    first, second = pair
    old = await first.open()
    listening = old.streams.read(old.streams.open_listener())
    first.process.say(**note("a"))
    await take(listening, 1)
    await first.flush(old)
    listening.leave()
    first.process.say(**note("b"))
    await first.flush(old)
    session = await second.take_over(old.id)
    assert texts(await take(session.streams.read(session.streams.open_listener()), 2)) == ["b", "notifications/message"]


async def test_numbers_that_were_given_out_but_not_written_down_are_not_used_again(pair: tuple[Node, Node]) -> None:
    first, second = pair
    old = await first.open()
    listening = old.streams.read(old.streams.open_listener())
    first.process.say(**note("a"))
    await first.flush(old)
    first.process.say(**note("b"))  # is delivered, but not accepted
    assert texts(await take(listening, 2)) == ["a", "b"]
    session = await second.take_over(old.id)
    second.process.say(**note("c"))
    resumed = resume(session, listening.event_id)
    assert texts(await take(resumed, 2)) == ["notifications/message", "c"]
    assert place_of(resumed.event_id).number == 1 + LEAP + 2


async def test_calls_in_flight_get_an_error_on_their_stream_once_and_are_not_run_again(pair: tuple[Node, Node]) -> None:
    first, second = pair
    old = await first.open()
    reader = stream_call(old, 7)
    first.process.say(method="notifications/progress", params={"progressToken": 2, "progress": 1})
    await first.flush(old)
    session = await second.take_over(old.id)
    resumed = resume(session, reader.event_id)
    progress, error, end = await take(resumed, 3)
    assert (progress["params"]["progressToken"], error, end) == (7, "node_lost", None)
    assert [each["method"] for each in second.process.sent] == ["initialize", "notifications/initialized"]
    assert session.streams.resume(place_of(resumed.event_id)) is None
    session.request(request("tools/call", 7), session.reply(1, may_stream=True))  # the id is free again


async def test_an_answer_that_was_written_down_is_no_call_in_flight(pair: tuple[Node, Node]) -> None:
    first, second = pair
    old = await first.open()
    reader = stream_call(old, 7)
    await first.flush(old)
    reader.leave()
    first.process.answer({"n": 1})
    await first.flush(old)
    session = await second.take_over(old.id)
    resumed = resume(session, reader.event_id)
    answer, end = await take(resumed, 2)
    assert (answer["id"], answer["result"], end) == (7, {"n": 1}, None)


async def test_errors_of_ours_are_told_as_they_were(pair: tuple[Node, Node]) -> None:
    first, second = pair
    old = await first.open()
    reader = stream_call(old, 7)
    reader.leave()
    assert old.connection.process is not None
    first.process.die()
    await first.flush(old)
    session = await second.take_over(old.id)
    resumed = resume(session, reader.event_id)
    item = await resumed.next()
    assert item is not None
    assert not isinstance(item, bytes)
    assert (type(item.error), str(item.error)) == (BackendExited, "the backend ended: signal 9 (SIGKILL)")
    assert item.call.id == b"7"


async def test_a_question_of_the_dead_process_is_withdrawn_and_its_answer_fits_no_new_one(
    pair: tuple[Node, Node],
) -> None:
    first, second = pair
    old = await first.open()
    listening = old.streams.read(old.streams.open_listener())
    first.process.say(id="q", method="roots/list")
    [question] = await take(listening, 1)
    await first.flush(old)
    session = await second.take_over(old.id)
    resumed = resume(session, listening.event_id)
    withdrawn, _news = await take(resumed, 2)
    assert (withdrawn["method"], withdrawn["params"]) == ("notifications/cancelled", {"requestId": question["id"]})
    for number in range(5):
        second.process.say(id=f"q{number}", method="roots/list")
    asked = [each["id"] for each in await take(resumed, 5)]
    sent = len(second.process.sent)
    session.respond(message(id=question["id"], result={"roots": []}))
    assert len(second.process.sent) == sent
    assert min(asked) > 1_000_000_000 > question["id"]


async def test_a_session_is_taken_over_again_and_again(store: FlakyStore) -> None:
    async with nodes(store, 5) as cluster:
        session = await cluster[0].open()
        place = session.streams.read(session.streams.open_listener()).event_id
        heard = []
        for token, node in enumerate(cluster[1:], 2):
            await cluster[token - 2].flush(session)
            session = await node.take_over(session.id, token)
            resumed = resume(session, place)
            node.process.say(**note(node.process.sent[0]["method"] + str(token)))
            heard += texts(await take(resumed, 2))[1:]
            place = resumed.event_id
        assert heard == ["initialize2", "initialize3", "initialize4", "initialize5"]


async def test_nodes_whose_clocks_differ_keep_the_order_of_a_stream(store: FlakyStore) -> None:
    async with nodes(store, 3) as (first, second, third):
        for part in (second.writer, second.durability):
            part._wall_clock = lambda: time.time() - 30.0
        old = await first.open()
        place = old.streams.read(old.streams.open_listener()).event_id
        for text in "ab":
            first.process.say(**note(text))
        await first.flush(old)
        session = await second.take_over(old.id)
        second.process.say(**note("c"))
        await second.flush(session)
        session = await third.take_over(old.id, 3)
        resumed = resume(session, place)
        news = "notifications/message"
        assert texts(await take(resumed, 5)) == ["a", "b", news, "c", news]


async def test_the_old_owner_that_wakes_up_writes_nothing_more(pair: tuple[Node, Node], store: FlakyStore) -> None:
    first, second = pair
    old = await first.open()
    await first.flush(old)
    session = await second.take_over(old.id)
    await second.flush(session)
    first.process.say(**note("late"))
    with pytest.raises(NotDurable):
        await first.flush(old)
    assert first.writer.stored_bytes == 0
    old.close("taken_over")
    assert await store.take(session_key(old.id), 3) is not None


async def test_the_old_owner_that_wakes_up_before_the_journal_is_read_leaves_it_alone(
    pair: tuple[Node, Node], store: FlakyStore
) -> None:
    first, second = pair
    old = await first.open()
    first.process.say(**note("a"))
    await first.flush(old)
    old.close("taken_over")
    await first.writer._delete()
    assert (store.deleted, first.writer.stored_bytes) == ([], 0)
    assert "[0 journals, 0 dirty" in repr(first.writer)
    session = await second.take_over(old.id)
    assert texts(await take(session.streams.read(session.streams.listen), 1)) == ["a"]


async def test_a_hand_over_has_everything_and_leaves_it_there(pair: tuple[Node, Node], store: FlakyStore) -> None:
    first, second = pair
    old = await first.open()
    reader = stream_call(old, 7)
    old.close("handed_over")
    await first.durability.hand_over(old)
    assert await take(reader, 2) == ["node_lost", None]
    assert store.deleted == []
    session = await second.take_over(old.id)
    resumed = session.streams.resume(place_of(reader.event_id))
    assert resumed is None  # the client has it all


async def test_a_hand_over_raises_where_the_store_is_away(pair: tuple[Node, Node], store: FlakyStore) -> None:
    old = await pair[0].open()
    store.is_away = True
    with pytest.raises(RoutesUnavailable):
        await pair[0].durability.hand_over(old)
    assert "[0 journals, 0 dirty" in repr(pair[0].writer)


@pytest.mark.parametrize("transport", ["sse", "modern"])
async def test_sessions_without_resumable_streams_have_no_journal(pair: tuple[Node, Node], transport: str) -> None:
    session = await pair[0].open(transport=transport)
    assert session.journal is None
    await pair[0].durability.hand_over(session)


async def test_sessions_of_backends_that_keep_state_have_no_journal(pair: tuple[Node, Node]) -> None:
    session = await pair[0].open(BackendSpec("acme", "echo", "echo-server"))
    assert session.journal is None


async def test_a_session_that_is_over_leaves_nothing(pair: tuple[Node, Node], store: FlakyStore) -> None:
    first, second = pair
    old = await first.open()
    await first.flush(old)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.writer.run)
        old.close("deleted")
        with anyio.fail_after(20):
            while not store.deleted:
                await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    assert await second.restore(old.id, 2) is None
    assert repr(first.writer) == "<JournalWriter [0 journals, 0 dirty, 0 bytes]>"


async def test_what_does_not_fit_its_route_or_was_changed_counts_as_nothing(
    pair: tuple[Node, Node], store: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = pair
    old, other = await first.open(), await first.open()
    for session in (old, other):
        session.streams.read(session.streams.open_listener()).leave()
        for text in "ab":
            session.backend_sent(json.dumps({"jsonrpc": "2.0", **note(text)}).encode())
        await first.flush(session)
    journals = store.inner._journals
    kept, strange = journals[session_key(old.id)], journals[session_key(other.id)]
    entries, head = list(kept.entries), kept.head
    for changed_head, changed in [
        (strange.head, entries),  # another session's
        (head, strange.entries),
        (head, entries[::-1]),  # exchanged
        (head, entries[:1]),  # left out
        (head, [entries[0], entries[0]]),  # repeated
        (head, [entries[0], entries[1][:-1] + bytes([entries[1][-1] ^ 1])]),
        (b"", entries),
    ]:
        journals[session_key(old.id)] = kept._replace(head=changed_head, entries=list(changed))
        assert await second.restore(old.id, 2) is None
    journals[session_key(old.id)] = kept
    assert await second.restore(old.id, 2) is not None
    assert len(caplog.records) == 7


async def test_a_session_does_not_go_on_with_a_namesake_of_its_backend(pair: tuple[Node, Node]) -> None:
    """It was removed and made again while nobody had the session, which ends with its backend."""
    first, second = pair
    old = await first.open(replace(SPEC, made=1))
    await first.flush(old)
    assert await second.restore(old.id, 2, replace(SPEC, made=2)) is None
    assert await second.restore(old.id, 3, replace(SPEC, made=1, version=2)) is not None


async def test_a_restore_that_is_refused_leaves_the_journal_for_another_node(pair: tuple[Node, Node]) -> None:
    first, second = pair
    old = await first.open()
    await first.flush(old)
    second.refusal = QuotaExceeded("node_sessions")
    with pytest.raises(QuotaExceeded):
        await second.restore(old.id, 2)
    await anyio.wait_all_tasks_blocked()
    assert second.connections.leases == []
    assert "[0 journals" in repr(second.writer)
    second.refusal = None
    assert await second.take_over(old.id, 3) is not None


async def test_a_restore_that_is_cancelled_half_way_leaves_nothing(pair: tuple[Node, Node], store: FlakyStore) -> None:
    first, second = pair
    old = await first.open()
    await first.flush(old)
    taken, take_it = anyio.Event(), store.inner.take

    async def slow(key: str, token: int) -> Any:
        found = await take_it(key, token)
        taken.set()
        await anyio.sleep_forever()
        return found

    store.inner.take = slow  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(second.restore, old.id, 2)
        await taken.wait()
        tasks.cancel_scope.cancel()
    store.inner.take = take_it  # type: ignore[method-assign]
    assert (second.sessions, second.connections.leases) == ({}, [])
    assert await second.take_over(old.id, 3) is not None


async def test_a_session_that_ends_while_its_process_is_on_its_way_gives_it_back(pair: tuple[Node, Node]) -> None:
    first, second = pair
    old = await first.open()
    await first.flush(old)
    session = await second.restore(old.id, 2)
    assert session is not None
    session.close("deleted")
    session.close("deleted")
    await anyio.wait_all_tasks_blocked()
    assert all(lease.released for lease in second.connections.leases)
    assert second.closed == ["deleted"]


async def test_a_session_on_a_sessionless_server_is_not_durable(pair: tuple[Node, Node]) -> None:
    """What its bridge knows is not written down."""
    node = pair[0]
    session = node.restored("x" * 32, ALICE, SPEC, Limits(), "streamable_http")
    node.durability.start(session, session_key(session.id), 1)
    await session.connect(node.connections, Limits())
    session.request(request("initialize", 0), session.reply(1, may_stream=True))
    refusal = {"code": -32022, "message": "?", "data": {"supported": ["2026-07-28"]}}
    node.process.say(id=node.process.sent[0]["id"], error=refusal)
    assert session.journal is not None
    assert session.journal.is_over
    with pytest.raises(NotDurable):
        await node.flush(session)


def test_a_session_that_is_shown_only_some_of_the_tools_does_not_go_on_elsewhere_without_what_hides_the_others() -> (
    None
):
    assert is_durable(SPEC, DURABLE)
    for spec in (replace(SPEC, pin="block"), replace(SPEC, pin="warn"), replace(SPEC, selection=Selection(("a",)))):
        assert not is_durable(spec, DURABLE)


async def test_the_groups_of_a_session_s_principal_go_with_it(pair: tuple[Node, Node]) -> None:
    first, second = pair
    old = await first.open()
    old.known_as(replace(ALICE, groups=frozenset({"b", "a"})))
    assert old.journal is not None
    old.journal.changed()
    await first.flush(old)
    first.abandon()
    assert (await second.take_over(old.id)).principal == replace(ALICE, groups=frozenset({"a", "b"}))
