"""complaint_of: what a child says of why it has not become its backend, which may be anything."""

import errno
import json

import pytest

from app.jail.spawner._complaint import Complaint, complaint_of
from app.jail.spawner.wire import FORK_STAGE


def test_a_complaint_is_taken_as_it_is() -> None:
    words = "No such file or directory"
    told = {"errno": errno.ENOENT, "stage": "chdir", "message": words}
    assert complaint_of(json.dumps(told).encode()) == Complaint(errno.ENOENT, "chdir", words)


@pytest.mark.parametrize(
    "word",
    [
        b"garbage", b"here", b"", b"{}", b"[]", b"null", b"5", b"\xff\xfe", b"[" * 4000, b'{"message": 5}',
        b'{"errno": "x", "stage": 1, "message": {}}',
        b'{"errno": 2, "stage": [], "message": null}',
        b'{"errno": 1, "stage": "fork", "message": {"a": 1}}',
        b'{"errno": true, "stage": "fork", "message": ""}',
        b'{"errno": 0, "stage": "fork", "message": ""}',
        b'{"errno": 99999999999, "stage": "fork", "message": ""}',
        b'{"errno": -1, "stage": "fork", "message": ""}',
        b'{"errno": 1e400, "stage": "fork", "message": ""}',
    ],
)  # fmt: skip
def test_anything_else_is_no_complaint_and_no_error(word: bytes) -> None:
    assert complaint_of(word) == Complaint(errno.ECHILD, FORK_STAGE, "the fork says what cannot be read")


def test_text_is_bounded_and_can_be_written_everywhere() -> None:
    told = complaint_of(json.dumps({"errno": 1, "stage": "s" * 1000, "message": "a\n\x1b\ud800b"}).encode())
    assert told == Complaint(1, "s" * 64, "a???b")
