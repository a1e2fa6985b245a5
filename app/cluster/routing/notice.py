"""Notice: what nodes tell each other about changes, its sealed form, and which were heard already. Pure."""

from collections import deque
from dataclasses import dataclass
from enum import Enum, StrEnum

import msgspec

from app.cluster.routing.records import Seal

STREAM = "trunkline:notices"


class Kind(StrEnum):
    """What has happened."""

    TENANT_CHANGED = "tenant_changed"
    TENANT_REMOVED = "tenant_removed"
    BACKEND_CHANGED = "backend_changed"
    BACKEND_REMOVED = "backend_removed"
    BACKEND_RESTARTED = "backend_restarted"
    KEY_REVOKED = "key_revoked"
    PRINCIPAL_CHANGED = "principal_changed"
    ISSUER_CHANGED = "issuer_changed"
    WRITINGS_CHANGED = "writings_changed"
    NODE_LEAVING = "node_leaving"
    RESYNC = "resync"  # notices may have been missed: nothing that is cached may be trusted


WORDS = {
    Kind.TENANT_CHANGED: 1,  # tenant
    Kind.TENANT_REMOVED: 1,
    Kind.BACKEND_CHANGED: 2,  # tenant, backend
    Kind.BACKEND_REMOVED: 2,
    Kind.BACKEND_RESTARTED: 2,
    Kind.KEY_REVOKED: 3,  # tenant, issuer, subject
    Kind.PRINCIPAL_CHANGED: 3,
    Kind.ISSUER_CHANGED: 2,  # tenant, issuer
    Kind.WRITINGS_CHANGED: 1,  # tenant
    Kind.NODE_LEAVING: 1,  # node
    Kind.RESYNC: 0,
}


@dataclass(frozen=True, slots=True)
class Notice:
    """A change, by name: receivers look up the present state. `about` has as many words as WORDS says."""

    kind: Kind
    about: tuple[str, ...] = ()


RESYNC = Notice(Kind.RESYNC)


class Received(msgspec.Struct, array_like=True, frozen=True):
    """A notice in the stream. Each sender numbers its notices."""

    sender: str
    number: int
    kind: Kind
    about: tuple[str, ...]


_decode = msgspec.msgpack.Decoder(Received).decode


def write(seal: Seal, received: Received) -> bytes:
    return seal.seal(msgspec.msgpack.encode(received), STREAM)


def read(seal: Seal, sealed: bytes) -> Received:
    """Raises ValueError if no node wrote this notice for the stream, or if this version does not know its kind."""
    received = _decode(seal.open(sealed, STREAM))
    if len(received.about) != WORDS[received.kind]:
        raise ValueError("words are missing")
    return received


MAX_REMEMBERED = 10_000
MAX_SENDERS = 1000


class Way(Enum):
    """How a node learns of a change. The value is how long, in seconds, the same change is expected this way."""

    NOTICE = 60.0  # a sender gives up sooner
    TRAIL = 3600.0  # an entry arrives as soon as the database answers


class Once:
    """Applies each change once, although it arrives as a notice and in the audit trail, in either order.

    A change that came one way is expected on the other. If it does not arrive there in time, a later equal one may be
    applied twice; none is skipped. The clock is passed in.
    """

    def __init__(self) -> None:
        self._owed: dict[tuple[Way, Notice], deque[float]] = {}

    def owe(self, way: Way, notice: Notice, now: float) -> None:
        """The change was applied, and will arrive this way too."""
        if len(self._owed) >= MAX_REMEMBERED:
            self._forget_some(now)
        self._owed.setdefault((way, notice), deque(maxlen=MAX_REMEMBERED)).append(now + way.value)

    def is_repeated(self, way: Way, notice: Notice, now: float) -> bool:
        """Whether this change was expected this way; each expectation is met once."""
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
        """Drops all expectations of this way."""
        self._owed = {key: owed for key, owed in self._owed.items() if key[0] is not way}

    def _forget_some(self, now: float) -> None:
        """Drops expired expectations, and the oldest half if that is not enough."""
        kept = {key: owed for key, owed in self._owed.items() if owed[-1] > now}
        if len(kept) >= MAX_REMEMBERED:
            kept = dict(list(kept.items())[len(kept) // 2 :])
        self._owed = kept


class Numbers:
    """The last number of each sender."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def step(self, sender: str, number: int) -> int:
        """The distance from the sender's last number: 1 is the next, less is a repetition, more means missed notices.
        It is 1 for the first notice of a sender."""
        last = self._last.pop(sender, number - 1)
        if len(self._last) >= MAX_SENDERS:
            del self._last[next(iter(self._last))]
        self._last[sender] = max(last, number)
        return number - last
