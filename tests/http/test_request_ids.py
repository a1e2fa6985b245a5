"""RequestIds: what a client brings is taken over, what it does not is made."""

import os
import re

import pytest

from app.http.request_ids import RequestIds, request_ids

TRACE = b"4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = b"00-%b-00f067aa0ba902b7-01" % TRACE


def parent_of(ids: RequestIds) -> bytes:
    return dict(ids.headers)[b"traceparent"]


def test_who_brings_nothing_has_one_number_for_both() -> None:
    first, second = request_ids({}), request_ids({})
    assert first.names() == (first.request, first.request)
    assert re.fullmatch(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-00", parent_of(first))
    assert first.request != second.request


def test_a_trace_goes_on_with_a_part_of_its_own() -> None:
    ids = request_ids({b"traceparent": PARENT})
    assert parent_of(ids).startswith(b"00-%b-" % TRACE)
    assert parent_of(ids).endswith(b"-01")
    assert b"00f067aa0ba902b7" not in parent_of(ids)
    assert ids.request != TRACE.decode()  # a trace has many requests
    assert ids.fields() == {"request": ids.request, "trace": TRACE.decode()}


@pytest.mark.parametrize(
    "given", [PARENT + b"-more", PARENT.upper(), PARENT + b"\n", PARENT[:-1], b"ff" + PARENT[2:], b""]
)
def test_what_is_no_traceparent_counts_for_nothing(given: bytes) -> None:
    assert TRACE not in parent_of(request_ids({b"traceparent": given}))


def test_a_later_version_may_say_more() -> None:
    assert TRACE in parent_of(request_ids({b"traceparent": b"01" + PARENT[2:] + b"-more"}))


@pytest.mark.parametrize(
    ("given", "is_taken"), [(b"a.b:c-d_1", True), (b"x" * 65, False), (b"a b", False), (b"a\n", False)]
)
def test_a_request_id_of_the_client_is_taken_over_if_it_is_one(given: bytes, is_taken: bool) -> None:
    assert (request_ids({b"x-request-id": given}).request == given.decode()) is is_taken


def test_no_two_requests_have_the_same_ids_and_the_end_of_a_trace_is_spread() -> None:
    made = [request_ids({}) for _ in range(10_000)]
    assert len({ids.request for ids in made}) == len({parent_of(ids) for ids in made}) == len(made)
    low = sum(int(ids.names()[1][-14:], 16) < 1 << 55 for ids in made)  # samplers keep those below a mark
    assert 4_500 < low < 5_500


def test_a_process_that_was_forked_makes_ids_of_its_own() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, request_ids({}).request.encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 100).decode()
    os.close(reader)
    os.close(writer)
    assert len(theirs) == 32
    assert theirs[:16] != request_ids({}).request[:16]
