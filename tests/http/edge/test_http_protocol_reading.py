"""When a connection is read, without sockets."""

import asyncio
from typing import Any

import pytest

from app.http.edge.connections import PIECE_BYTES, TURNS_PER_ROUND, Connections
from app.http.edge.http_protocol import AT_ONCE_BYTES, PIECE_COST_BYTES, Reading, StrangersReader

LONG = bytes(AT_ONCE_BYTES + 1)


class Line:
    """A transport that is read or not."""

    def __init__(self) -> None:
        self.is_read, self.is_closed = True, False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self.is_closed


class Parser:
    """A protocol that keeps what it is given."""

    def __init__(self, among: Connections) -> None:
        self.line = Line()
        self.flow = Reading(self.line)  # type: ignore[arg-type]
        self.is_let_in, self.parsed = False, list[bytes]()
        self.eof_received = self.pause_writing = self.resume_writing = lambda: None
        self.reader, self._among = StrangersReader(self, among), among

    def data_received(self, data: bytes) -> None:
        self.parsed.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.line.is_closed = True

    def read(self, data: bytes) -> None:
        """As the event loop does it."""
        assert self.line.is_read
        buffer = self.reader.get_buffer(1 << 18)
        buffer[: len(data)] = data
        self.reader.buffer_updated(len(data))


@pytest.fixture
def among() -> Connections:
    return Connections()


def reading() -> tuple[Line, Any]:
    line = Line()
    return line, Reading(line)  # type: ignore[arg-type]


def test_while_reading_is_on_hold_nobody_resumes_it() -> None:
    line, flow = reading()
    flow.hold()
    flow.resume_reading()
    assert not line.is_read
    flow.release()
    flow.resume_reading()
    assert line.is_read


def test_while_a_piece_stands_in_line_nobody_resumes_reading_and_behind_it_only_who_does_not_wait() -> None:
    line, flow = reading()
    flow.stand_in_line()
    flow.resume_reading()
    assert not line.is_read
    flow.leave_line()
    assert line.is_read
    flow.stand_in_line()
    flow.hold()
    flow.leave_line()
    assert not line.is_read


def test_a_line_that_is_closing_is_left_as_it_is() -> None:
    line, flow = reading()
    line.is_closed = True
    flow.hold()
    assert line.is_read
    flow.pause_reading()
    flow.resume_reading()
    assert not line.is_read


async def test_what_a_stranger_sends_waits_for_its_turn_and_no_more_of_it_is_read(among: Connections) -> None:
    crowd = [Parser(among) for _ in range(2 * TURNS_PER_ROUND)]
    for each in crowd:
        each.read(LONG)
        each.flow.resume_reading()  # as a request does that wants more of its body
    assert not any(each.parsed or each.line.is_read for each in crowd)
    await asyncio.sleep(0)
    assert [each.parsed for each in crowd] == [[LONG]] * TURNS_PER_ROUND + [[]] * TURNS_PER_ROUND
    await asyncio.sleep(0)
    assert [each.parsed for each in crowd] == [[LONG]] * len(crowd)
    assert all(each.line.is_read for each in crowd)


async def test_an_ordinary_request_and_what_guests_send_do_not_wait(among: Connections) -> None:
    stranger, guest = Parser(among), Parser(among)
    stranger.read(LONG[1:])
    guest.is_let_in = True
    guest.read(bytes(PIECE_BYTES))
    assert (stranger.parsed, guest.parsed) == ([LONG[1:]], [bytes(PIECE_BYTES)])


async def test_pieces_of_a_stranger_that_together_are_more_than_a_request_wait_until_the_next_sweep(
    among: Connections,
) -> None:
    stranger = Parser(among)
    small = bytes(1)
    for _ in range(AT_ONCE_BYTES // PIECE_COST_BYTES):
        stranger.read(small)
    assert len(stranger.parsed) == AT_ONCE_BYTES // PIECE_COST_BYTES
    stranger.read(small)
    assert not stranger.line.is_read
    await asyncio.sleep(0)
    assert len(stranger.parsed) == AT_ONCE_BYTES // PIECE_COST_BYTES + 1
    among.now += 1.0
    stranger.read(LONG[1:])
    assert stranger.parsed[-1] == LONG[1:]


async def test_the_buffer_of_all_is_read_into_again_at_once(among: Connections) -> None:
    first, second = Parser(among), Parser(among)
    first.read(b"1" * PIECE_BYTES)
    second.read(b"2" * PIECE_BYTES)
    await asyncio.sleep(0)
    assert [each.parsed for each in (first, second)] == [[b"1" * PIECE_BYTES], [b"2" * PIECE_BYTES]]


async def test_who_leaves_while_what_he_sent_stands_in_line_is_forgotten(among: Connections) -> None:
    stranger = Parser(among)
    stranger.read(LONG)
    stranger.reader.connection_lost(None)
    assert not among._in_line
    await asyncio.sleep(0)
    assert not stranger.parsed
