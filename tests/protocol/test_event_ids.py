"""Event ids and what stands around them: strict to read, impossible to forge (2025-11-25, basic/transports)."""

import pytest

from app.protocol.event_ids import EventId, is_primed, parse_event_id
from app.protocol.revisions import HANDSHAKE
from app.protocol.sse_format import encode_message, encode_primer, encode_retry

PLACE = EventId("0123456789ab", 17)


@pytest.mark.parametrize("number", [0, 1, 10, 999_999_999])
def test_an_id_is_read_as_it_was_written(number: int) -> None:
    place = EventId("0123456789ab", number)
    assert parse_event_id(place.encode()) == place


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"17",
        b"0123456789ab",
        b"0123456789ab-",
        b"0123456789ab-01",
        b"0123456789ab--1",
        b"0123456789ab-+1",
        b"0123456789ab-1 ",
        b" 0123456789ab-1",
        b"0123456789ab-1\n",
        b"0123456789ab-1000000000",
        b"0123456789AB-1",
        b"0123456789a-1",
        b"0123456789abc-1",
        b"0123456789ag-1",
        b"0123456789ab-\xd9\xa1",  # a digit in Arabic
        b"0123456789ab-1, 0123456789ab-2",
        b"x" * 100_000,
    ],
)
def test_what_we_cannot_have_written_is_no_id(value: bytes) -> None:
    assert parse_event_id(value) is None


def test_only_the_revision_that_has_priming_events_gets_them() -> None:
    assert [version for version in HANDSHAKE if is_primed(version)] == ["2025-11-25"]


def test_a_message_names_its_place() -> None:
    assert encode_message(b"{}", PLACE.encode()) == b"event: message\nid: 0123456789ab-17\ndata: {}\n\n"


def test_a_primer_has_an_id_and_no_data() -> None:
    assert encode_primer(PLACE.encode()) == b"id: 0123456789ab-17\ndata: \n\n"


def test_older_clients_get_retry_without_an_event() -> None:
    assert encode_retry(2000, None) == b"retry: 2000\n"
    assert encode_retry(2000, PLACE.encode()) == b"id: 0123456789ab-17\nretry: 2000\ndata: \n\n"
