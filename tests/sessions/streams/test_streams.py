"""EventStream and Reply: order, limits, and what happens at the limits."""

import anyio
import pytest

from app.errors import BackendExited
from app.protocol.commands import Answer, Call, Failed, Listen, ToStream
from app.protocol.jsonrpc import parse_backend
from app.sessions.streams.streams import MAX_BYTES, MAX_EVENTS, EventStream, Reply


class Owner:
    """Writes down what the stream asks of its owner."""

    def __init__(self) -> None:
        self.pressure: list[bool] = []
        self.dropped: list[tuple[str, bytes | None]] = []
        self.stream = EventStream(
            self.pressure.append, lambda reason, question: self.dropped.append((reason, question))
        )


@pytest.fixture
def owner() -> Owner:
    return Owner()


def note(text: str, **options: bytes) -> ToStream:
    return ToStream(Listen.STREAM, text.encode(), **options)


def answer(id_bytes: bytes = b"1") -> Answer:
    response = parse_backend(b'{"jsonrpc":"2.0","id":9,"result":{}}')
    return Answer(Call(id_bytes, b"9", "tools/call", None, True, 0.0, 0.0), response)  # type: ignore[arg-type]


async def drain(stream: EventStream) -> list[object]:
    stream.end()
    items: list[object] = []
    while (item := await stream.next()) is not None:
        items.append(item)
    return items


async def test_messages_come_out_in_order_and_then_the_end(owner: Owner) -> None:
    for text in "abc":
        owner.stream.push(note(text))
    owner.stream.answer(answer())
    assert await drain(owner.stream) == [b"a", b"b", b"c", b'{"jsonrpc":"2.0","id":1,"result":{}}']


async def test_a_reader_waits_for_the_next_message(owner: Owner) -> None:
    got: list[object] = []

    async def read() -> None:
        got.append(await owner.stream.next())

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            owner.stream.push(note("late"))
    assert got == [b"late"]


async def test_a_reader_that_is_cancelled_loses_no_message(owner: Owner) -> None:
    with anyio.move_on_after(0):
        await owner.stream.next()
    owner.stream.push(note("kept"))
    assert await owner.stream.next() == b"kept"


async def test_without_a_reader_the_oldest_notification_goes_and_is_counted(owner: Owner) -> None:
    for number in range(MAX_EVENTS + 3):
        owner.stream.push(note(str(number)))
    assert owner.dropped == [("stream_full", None)] * 3
    assert (await drain(owner.stream))[0] == b"3"
    assert owner.pressure == []


async def test_an_answer_is_never_dropped(owner: Owner) -> None:
    owner.stream.answer(answer())
    for number in range(MAX_EVENTS + 5):
        owner.stream.push(note(str(number)))
    assert (await drain(owner.stream))[0] == b'{"jsonrpc":"2.0","id":1,"result":{}}'


async def test_a_dropped_question_is_named(owner: Owner) -> None:
    owner.stream.push(note("question", question=b"17"))
    for number in range(MAX_EVENTS):
        owner.stream.push(note(str(number)))
    assert owner.dropped == [("stream_full", b"17")]


async def test_bytes_are_bounded_too(owner: Owner) -> None:
    for _ in range(4):
        owner.stream.push(note("x" * (MAX_BYTES // 2)))
    assert owner.stream.bytes <= MAX_BYTES
    assert len(owner.dropped) == 2


async def test_with_a_reader_a_full_stream_stops_the_backend_and_loses_nothing(owner: Owner) -> None:
    owner.stream.attach()
    for number in range(MAX_EVENTS + 10):
        owner.stream.push(note(str(number)))
    assert (owner.pressure, owner.dropped) == ([True], [])
    for _ in range(10):
        await owner.stream.next()
    assert owner.pressure == [True, False]


@pytest.mark.parametrize("way_out", ["end", "detach"])
async def test_pressure_ends_with_the_stream_or_its_reader(owner: Owner, way_out: str) -> None:
    owner.stream.attach()
    for number in range(MAX_EVENTS + 1):
        owner.stream.push(note(str(number)))
    getattr(owner.stream, way_out)()
    getattr(owner.stream, way_out)()
    assert owner.pressure == [True, False]


async def test_a_waiting_change_is_replaced_by_its_successor(owner: Owner) -> None:
    owner.stream.push(note("old", coalesce=b"k"))
    owner.stream.push(note("other", coalesce=b"l"))
    owner.stream.push(note("new", coalesce=b"k"))
    assert await drain(owner.stream) == [b"new", b"other"]


async def test_what_comes_after_the_end_is_counted(owner: Owner) -> None:
    owner.stream.end()
    owner.stream.push(note("late", question=b"1"))
    assert owner.dropped == [("client_gone", b"1")]
    assert await owner.stream.next() is None


async def test_a_single_answer_is_a_body(owner: Owner) -> None:
    reply = Reply(1, may_stream=True, make_stream=lambda: owner.stream)
    reply.answer(answer())
    await reply.outcome
    assert reply.stream is None
    assert len(reply.outcomes) == 1


async def test_a_notification_that_comes_first_makes_it_a_stream(owner: Owner) -> None:
    reply = Reply(1, may_stream=True, make_stream=lambda: owner.stream)
    reply.push(note("progress"))
    await reply.outcome
    reply.answer(answer())
    assert reply.stream is owner.stream
    assert owner.stream.ended
    assert await drain(owner.stream) == [b"progress", b'{"jsonrpc":"2.0","id":1,"result":{}}']


async def test_a_batch_is_complete_with_its_last_answer(owner: Owner) -> None:
    reply = Reply(2, may_stream=True, make_stream=lambda: owner.stream)
    reply.answer(answer(b"1"))
    assert not reply.outcome.done()
    failed = Failed(answer(b"2").call, BackendExited())
    reply.answer(failed)
    await reply.outcome
    assert reply.outcomes[1] is failed


async def test_a_batch_that_becomes_a_stream_keeps_the_answers_it_has(owner: Owner) -> None:
    reply = Reply(2, may_stream=True, make_stream=lambda: owner.stream)
    reply.answer(answer(b"1"))
    reply.become_stream()
    reply.become_stream()
    reply.answer(answer(b"2"))
    items = await drain(owner.stream)
    assert [b'"id":%d' % number in item for number, item in zip((1, 2), items, strict=True)] == [True, True]  # type: ignore[operator]
