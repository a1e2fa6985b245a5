"""Notice: what the nodes tell each other about changes, how it is written down, and which were heard already. Pure."""

from collections import deque
from dataclasses import dataclass
from enum import Enum, StrEnum
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


MAX_REMEMBERED = 10_000
MAX_SENDERS = 1000


class Way(Enum):
    """How a node learns of a change; the value is for how many seconds the other way is waited for."""

    NOTICE = 60.0  # a sender gives up sooner
    TRAIL = 3600.0  # what is written there comes as soon as the database answers


class Once:
    """Each change takes effect once, though it comes as a notice and in the audit trail, in either order.

    What came on one way is owed by the other. Where one of them stays away something may take effect twice; nothing
    is left out. The clock is passed in.
    """

    def __init__(self) -> None:
        self._owed: dict[tuple[Way, Notice], deque[float]] = {}

    def owe(self, way: Way, notice: Notice, now: float) -> None:
        """It has taken effect, and will come on this way too."""
        if len(self._owed) >= MAX_REMEMBERED:
            self._forget_some(now)
        self._owed.setdefault((way, notice), deque(maxlen=MAX_REMEMBERED)).append(now + way.value)

    def is_repeated(self, way: Way, notice: Notice, now: float) -> bool:
        """Whether this is what was owed; then it is no longer."""
        owed = self._owed.pop((way, notice), None)
        if owed is None:
            return False
        while owed and owed[0] <= now:
            owed.popleft()
        if not owed:
            return False
        owed.popleft()
        if owed:
            self._owed[way, notice] = owed
        return True

    def forget(self, way: Way) -> None:
        """Nothing that was owed on this way is waited for any more."""
        self._owed = {key: owed for key, owed in self._owed.items() if key[0] is not way}

    def _forget_some(self, now: float) -> None:
        """What never came; and the oldest half, if that is not enough."""
        kept = {key: owed for key, owed in self._owed.items() if owed[-1] > now}
        if len(kept) >= MAX_REMEMBERED:
            kept = dict(list(kept.items())[len(kept) // 2 :])
        self._owed = kept

    def __repr__(self) -> str:
        return f"<Once [{len(self._owed)} owed]>"


class Numbers:
    """Each sender numbers its notices."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def step(self, sender: str, number: int) -> int:
        """How far this one is from the last: 1 is the next, less was there before, more means that some are missing.

        Of a sender that was not heard before, any is the next.
        """
        last = self._last.pop(sender, number - 1)
        if len(self._last) >= MAX_SENDERS:
            del self._last[next(iter(self._last))]
        self._last[sender] = max(last, number)
        return number - last
