"""Event ids of streams that can be resumed: `{stream}-{number}`."""

import re
from hashlib import sha256
from typing import NamedTuple

from app.protocol.revisions import Revision

STREAM_NAME_BYTES = 6  # random, so that an id of another session names no stream of this one

# No leading zeros: there is one way to write an id.
_match = re.compile(rb"([0-9a-f]{12})-(0|[1-9][0-9]{0,8})\Z").match


class EventId(NamedTuple):
    """A place in one stream; number 0 is before its first message."""

    stream: str
    number: int

    def encode(self) -> bytes:
        return b"%b-%d" % (self.stream.encode("ascii"), self.number)


def parse_event_id(value: bytes) -> EventId | None:
    """The value of a Last-Event-ID header; None if it is not one of ours."""
    found = _match(value)
    return None if found is None else EventId(found[1].decode("ascii"), int(found[2]))


def listen_name(session_id: str) -> str:
    """The name of a session's listen stream; it follows from the id, so that every node knows it."""
    return sha256(b"listen stream of " + session_id.encode()).digest()[:STREAM_NAME_BYTES].hex()


def is_primed(version: str) -> bool:
    """Whether streams begin with an event without data: since 2025-11-25; older clients fail on it."""
    return version == Revision.R2025_11_25
