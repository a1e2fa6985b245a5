"""Notice: what the nodes tell each other about changes, and how it is written down. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec


class Kind(StrEnum):
    """What has happened. What a notice is about, in words, stands behind it."""

    TENANT_CHANGED = "tenant_changed"  # tenant
    TENANT_REMOVED = "tenant_removed"  # tenant
    BACKEND_CHANGED = "backend_changed"  # tenant, backend
    BACKEND_REMOVED = "backend_removed"  # tenant, backend
    BACKEND_RESTARTED = "backend_restarted"  # tenant, backend
    KEY_REVOKED = "key_revoked"  # tenant, issuer, subject
    PRINCIPAL_CHANGED = "principal_changed"  # tenant, issuer, subject
    ISSUER_CHANGED = "issuer_changed"  # tenant, issuer
    NODE_LEAVING = "node_leaving"  # node
    RESYNC = "resync"  # some notices may have been missed: nothing that is remembered may be believed


WORDS = {
    Kind.TENANT_CHANGED: 1,
    Kind.TENANT_REMOVED: 1,
    Kind.BACKEND_CHANGED: 2,
    Kind.BACKEND_REMOVED: 2,
    Kind.BACKEND_RESTARTED: 2,
    Kind.KEY_REVOKED: 3,
    Kind.PRINCIPAL_CHANGED: 3,
    Kind.ISSUER_CHANGED: 2,
    Kind.NODE_LEAVING: 1,
    Kind.RESYNC: 0,
}


@dataclass(frozen=True, slots=True)
class Notice:
    """One change, by name: whoever hears of it looks up what is true now."""

    kind: Kind
    about: tuple[str, ...] = ()


RESYNC = Notice(Kind.RESYNC)


class Seals(Protocol):
    """Makes unreadable, and refuses what others made (`auth.sealing.Sealer`)."""

    def seal(self, secret: bytes, place: str) -> bytes:
        """For this place only."""

    def open(self, sealed: bytes, place: str) -> bytes:
        """Raises an exception of its own for what was not sealed for this place."""


class _Written(msgspec.Struct, array_like=True):
    sender: str
    number: int
    kind: str
    about: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Received:
    """A notice as it came: its sender counts what it sends."""

    sender: str
    number: int
    notice: Notice


class Unreadable(Exception):
    """No node of ours has written this, or one of another version."""


_decode = msgspec.msgpack.Decoder(_Written).decode


def write(seals: Seals, place: str, received: Received) -> bytes:
    """For the stream."""
    notice = received.notice
    written = _Written(received.sender, received.number, notice.kind.value, notice.about)
    return seals.seal(msgspec.msgpack.encode(written), place)


def read(seals: Seals, place: str, sealed: bytes) -> Received:
    """What stood there.

    Raises:
        Unreadable: it was changed, moved here from elsewhere, or is of a kind that this version does not know.
    """
    try:
        written = _decode(seals.open(sealed, place))
        kind = Kind(written.kind)
    except Exception as problem:  # the seal's own kind is not known here
        raise Unreadable from problem
    if len(written.about) != WORDS[kind]:
        raise Unreadable
    return Received(written.sender, written.number, Notice(kind, written.about))
