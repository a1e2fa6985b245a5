"""Event streams: read in any pieces, bounded, and asked for again with patience."""

import pytest

from app.backends.upstreams._events import (
    MAX_ID_BYTES,
    MAX_RETRY_S,
    MAX_S,
    EventReader,
    EventTooLarge,
    Reconnecting,
    ServerEvent,
)

STREAM = (
    b"\xef\xbb\xbf: a comment\r\nid: 7\r\ndata: \r\n\r\nevent: endpoint\rdata: /messages?id=1\r\r"
    b"id: 8\nretry: 250\ndata: one\ndata: two\n\ndata:no space\n\nunknown: x\nid\ndata: last\n\n"
)
FOUND = [
    ServerEvent(b"endpoint", b"/messages?id=1"),
    ServerEvent(b"message", b"one\ntwo"),
    ServerEvent(b"message", b"no space"),
    ServerEvent(b"message", b"last"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_a_stream_is_read_in_any_pieces(size):
    reader, found = EventReader(1000), []
    for start in range(0, len(STREAM), size):
        found += reader.feed(STREAM[start : start + size])
    assert found == FOUND
    assert (reader.last_id, reader.retry_ms) == (b"", 250)


def test_an_event_without_data_has_an_id_all_the_same():
    reader = EventReader(1000)
    assert reader.feed(b"id: 7\ndata: \n\n") == []
    assert reader.last_id == b"7"
    assert reader.feed(b"data: x\n\nid: 9\n") == [ServerEvent(b"message", b"x")]
    assert reader.last_id == b"7"  # that of an event that is not whole does not count


@pytest.mark.parametrize("value", [b"a\0b", b"a\x07b", b"x" * (MAX_ID_BYTES + 1)])
def test_an_id_that_cannot_be_given_back_is_ignored(value):
    reader = EventReader(10_000)
    reader.feed(b"id: " + value + b"\ndata: x\n\n")
    assert reader.last_id == b""


@pytest.mark.parametrize("value", [b"soon", b"-5", b"1" * 40])
def test_a_time_that_is_no_number_is_ignored(value):
    reader = EventReader(1000)
    reader.feed(b"retry: " + value + b"\n\n")
    assert reader.retry_ms == -1


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 200, b"data: xxxxxxxxxx\n" * 20, b":" + b"x" * 200])
@pytest.mark.parametrize("size", [1, 64, 10_000])
def test_no_event_is_larger_than_the_limit(stream, size):
    def read(reader):
        for start in range(0, len(stream), size):
            reader.feed(stream[start : start + size])

    with pytest.raises(EventTooLarge):
        read(EventReader(100))


def test_many_small_events_are_no_large_one():
    assert len(EventReader(100).feed(b"data: 0123456789\n\n" * 1000)) == 1000


def test_each_attempt_waits_twice_as_long_until_events_come():
    attempts = Reconnecting(lambda: 0.5)
    assert [attempts.delay_s(-1) for _ in range(4)] == [0.5, 1.0, 2.0, 4.0]
    assert not attempts.is_hopeless
    attempts.delay_s(-1)
    assert attempts.is_hopeless
    attempts.heard()
    assert attempts.delay_s(-1) == 0.5
    for _ in range(20):
        assert attempts.delay_s(-1) <= MAX_S


def test_the_server_says_when_it_wants_to_be_asked():
    attempts = Reconnecting(lambda: 0.5)
    assert attempts.delay_s(50) == 0.05
    assert attempts.delay_s(5000) == 5.0
    attempts.heard()
    assert attempts.delay_s(10**9) == MAX_RETRY_S
