"""ReplayLog: what it keeps of which stream, and what goes at its limits."""

import pytest

from app.errors import ResponseTooLarge
from app.protocol.commands import Call, Failed
from app.protocol.event_ids import EventId
from app.sessions.streams._replay import LEAST_BYTES, MAX_AGE_S, MAX_BYTES, MAX_EVENTS, MAX_OF_TENANT, ReplayLog
from app.sessions.streams.entry import Entry, Fate
from tests.sessions.streams.tenant import Tenant

A, B = "a" * 12, "b" * 12


def event(stream: str, number: int, size: int = 10, *, at: float = 0.0, is_answer: bool = False) -> Entry:
    call = Call(b"1", b"9", "tools/call", None, True, 0.0, 0.0) if is_answer else None
    entry = Entry(b"x" * size, call)
    entry.id, entry.at = EventId(stream, number), at
    return entry


def places(events: list[Entry]) -> list[EventId]:
    return [each.id for each in events]


@pytest.fixture
def log() -> ReplayLog:
    return ReplayLog(Tenant())


def test_an_empty_log_has_nothing(log: ReplayLog) -> None:
    assert log.after(EventId(A, 0)) == []
    assert log.trim(1e9) == []
    assert not log.holds(A)


def test_only_the_named_streams_later_events_come_back_in_order(log: ReplayLog) -> None:
    """Servers MUST NOT replay messages of a different stream (2025-11-25, basic/transports, Resumability)."""
    for number in (1, 2, 3):
        log.append(event(A, number))
        log.append(event(B, number))
    assert places(log.after(EventId(A, 1))) == [(A, 2), (A, 3)]
    assert places(log.after(EventId(B, 0))) == [(B, 1), (B, 2), (B, 3)]
    assert log.after(EventId(B, 3)) == []


def test_reading_takes_nothing_away(log: ReplayLog) -> None:
    log.append(event(A, 1))
    assert places(log.after(EventId(A, 0))) == places(log.after(EventId(A, 0))) == [(A, 1)]


def test_at_the_number_of_events_the_oldest_goes(log: ReplayLog) -> None:
    for number in range(1, MAX_EVENTS + 1):
        assert log.append(event(A, number)) == []
    assert places(log.append(event(B, 1))) == [(A, 1)]
    assert len(log) == MAX_EVENTS


def test_bytes_are_bounded(log: ReplayLog) -> None:
    dropped = [gone for number in range(1, 6) for gone in log.append(event(A, number, MAX_BYTES // 4))]
    assert places(dropped) == [(A, 1)]
    assert log.bytes <= MAX_BYTES


def test_the_logs_of_a_tenant_are_bounded_together() -> None:
    tenant, other = Tenant(), Tenant()
    logs = [ReplayLog(tenant) for _ in range(20)]
    for log in logs:
        for number in range(1, 17):
            log.append(event(A, number, MAX_BYTES // 16, is_answer=number % 2 == 0))
    assert tenant.replay_bytes == sum(log.bytes for log in logs) <= MAX_OF_TENANT + len(logs) * LEAST_BYTES
    assert logs[0].bytes == MAX_BYTES  # what was kept before is kept
    assert len(logs[-1].after(EventId(A, 8))) > 0  # each keeps its last events
    for number in range(1, MAX_EVENTS + 2):
        logs[-1].append(event(B, number, LEAST_BYTES + 1, is_answer=True))
    assert logs[-1].bytes <= LEAST_BYTES
    unbothered = ReplayLog(other)
    unbothered.append(event(A, 1, MAX_BYTES))
    assert unbothered.bytes == MAX_BYTES


def test_a_log_counts_for_its_tenant_until_it_is_gone() -> None:
    tenant = Tenant()
    log = ReplayLog(tenant)
    log.append(event(A, 1, 1000))
    log.append(event(A, 2, 1000, at=MAX_AGE_S))
    log.trim(MAX_AGE_S + 1)
    assert tenant.replay_bytes == 1000
    del log
    assert tenant.replay_bytes == 0


def test_answers_go_last_of_all(log: ReplayLog) -> None:
    log.append(event(A, 1, is_answer=True))
    dropped = [gone for number in range(1, MAX_EVENTS + 1) for gone in log.append(event(B, number))]
    assert places(dropped) == [(B, 1)]
    assert log.holds(A)


def test_an_answer_too_large_to_keep_becomes_an_error_that_says_so(log: ReplayLog) -> None:
    log.append(event(A, 1, 100, is_answer=True))
    assert log.append(event(B, 1, MAX_BYTES + 1, is_answer=True)) == []
    assert [each.item for each in log.after(EventId(A, 0))] == [b"x" * 100]
    [kept] = log.after(EventId(B, 0))
    assert isinstance(kept.item, Failed)
    assert isinstance(kept.item.error, ResponseTooLarge)
    assert kept.item.call.id == b"1"
    assert log.bytes < 1000


def test_an_answer_too_large_to_keep_still_reaches_who_waits_for_it(log: ReplayLog) -> None:
    queued, kept = event(A, 1, MAX_BYTES, is_answer=True), event(B, 1, 1000, is_answer=True)
    kept.fate = Fate.KEPT
    log.append(queued)
    log.append(kept)
    log.append(event(A, 2, is_answer=True))
    assert isinstance(queued.item, bytes)
    assert queued.fate is Fate.ALONE
    assert [type(each.item) for each in log.after(EventId(A, 0))] == [Failed, bytes]
    assert [each.fate for each in log.after(EventId(A, 0))] == [Fate.SENT, Fate.QUEUED]
    assert [each.item for each in log.after(EventId(B, 0))] == [kept.item]


def test_a_log_of_answers_only_is_bounded_too(log: ReplayLog) -> None:
    for number in range(1, MAX_EVENTS + 3):
        log.append(event(A, number, is_answer=True))
    assert len(log) == MAX_EVENTS
    assert log.after(EventId(A, 0))[0].id == (A, 3)


def test_what_is_too_old_goes_answers_included(log: ReplayLog) -> None:
    log.append(event(A, 1, at=0.0, is_answer=True))
    log.append(event(B, 1, at=100.0))
    assert log.trim(MAX_AGE_S) == []
    assert places(log.trim(MAX_AGE_S + 1)) == [(A, 1)]
    assert (log.holds(A), log.holds(B), log.bytes) == (False, True, 10)
    assert (len(log), log.bytes) == (1, 10)
