"""Event ids of streams that can be resumed: `{stream}-{number}`, both of our own making."""

import re
from hashlib import sha256
from typing import NamedTuple

from app.protocol.revisions import Revision

STREAM_NAME_BYTES = 6  # nobody can guess them, and an id of another session names no stream of this one

# Twelve hexadecimal digits and a number without leading zeros: there is one way to write an id.
_match = re.compile(rb"([0-9a-f]{12})-(0|[1-9][0-9]{0,8})\Z").match


class EventId(NamedTuple):
    """A place in one stream. Number 0 is the place before its first message."""

    stream: str
    number: int

    def encode(self) -> bytes:
        """The id as it stands on the wire."""
        return b"%b-%d" % (self.stream.encode("ascii"), self.number)


def parse_event_id(value: bytes) -> EventId | None:
    """The value of a Last-Event-ID header; None where we cannot have written it."""
    found = _match(value)
    return None if found is None else EventId(found[1].decode("ascii"), int(found[2]))


def listen_name(session_id: str) -> str:
    """The name of a session's listen stream: the same on every node, whatever that knows of the session."""
    return sha256(b"listen stream of " + session_id.encode()).digest()[:STREAM_NAME_BYTES].hex()


def is_primed(version: str) -> bool:
    """Whether streams begin with an event that has an id and no data: since 2025-11-25.

    Clients of older revisions take every event for a message and fail on empty data.
    """
    return version == Revision.R2025_11_25
