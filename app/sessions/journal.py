"""Journal: what the other nodes must know to go on with one durable session. Pure: says what to write, and how it is
read again; writing and sealing are the business of others.

Two parts: the head, small, written anew each time (whose session it is, its handshake, its open streams and calls),
and the list of the events that its ReplayLog holds. An entry has a serial number that is never used again, and is
sealed with it: entries that were exchanged, left out or put back from earlier do not open.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from app.domain import Principal
from app.protocol.handshake_record import HandshakeRecord
from app.routing.journal_store import REPLACES, JournalWrite
from app.sessions import event_form
from app.sessions.replay import MAX_BYTES, MAX_EVENTS, ReplayLog
from app.sessions.streams import Entry

FORM = 1  # of head and entries; a node that knows another one cannot go on with the session
WRITE_BYTES = 512 << 10  # of events in one write: a slow network has to carry it within the store's deadline
MAX_STORED = 2 * MAX_BYTES  # of a list, events that are gone included
SLACK_ENTRIES, SLACK_BYTES = 64, 1 << 20  # of events that are gone; the list is shortened when it has as many

HEAD_PLACE = "head"

Seal = Callable[[bytes, str], bytes]


class StreamHead(msgspec.Struct, array_like=True, frozen=True):
    """A stream that goes on, or that calls wait on: their ids and methods."""

    name: str
    number: int
    taken: int
    is_listen: bool
    calls: list[tuple[bytes, str]]


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session without its events. `opened_at` is of the wall clock; the entries' serials begin with `first`."""

    tenant: str
    backend: str
    principal_tenant: str
    issuer: str
    subject: str
    scopes: list[str]
    transport: str
    version: str
    opened_at: float
    handshake: bytes
    streams: list[StreamHead]
    first: int = 0
    length: int = 0
    form: int = FORM

    @property
    def principal(self) -> Principal:
        """Who the session is bound to."""
        return Principal(self.principal_tenant, self.issuer, self.subject, frozenset(self.scopes))


class JournalOwner(Protocol):
    """Who writes it."""

    def has_news(self, journal: "Journal") -> None:
        """There is something to be written."""

    def has_ended(self, journal: "Journal") -> None:
        """The session is over, or not durable any more: what was written is to be deleted."""


@runtime_checkable
class Remembering(Protocol):
    """A lease that keeps what a fresh process must hear."""

    record: HandshakeRecord


class Journal:
    """One session's. It is told what happens, and says `next_write`; a write that did not arrive is made up for by
    one that replaces everything: `lost`.

    While the store is away nothing gathers here: the session's own log has it all.
    """

    __slots__ = (
        "_first", "_gone", "_is_dirty", "_is_grown", "_length", "_next", "_owner", "_pending", "_replaces", "_sizes",
        "_stored", "accounted", "describe", "is_over", "key", "log", "number", "record", "token",
    )  # fmt: skip

    def __init__(self, key: str, token: int, owner: JournalOwner) -> None:
        self.key, self.token, self._owner = key, token, owner
        self.log: ReplayLog | None = None
        self.record: HandshakeRecord | None = None
        self.describe: Callable[[], Head | None] = lambda: None  # None while there is nothing to go on with
        self.is_over = False
        self.number = 0  # of the last write
        self.accounted = 0  # bytes that the owner has counted for it
        self._is_dirty, self._replaces = False, True
        self._is_grown = False  # the store has it all, and too much: it is replaced at once, not in parts
        self._pending: dict[int, Entry] | None = None  # by identity
        self._gone: list[int] | None = None
        self._sizes: deque[int] | None = None  # of the entries of the list
        self._first, self._next, self._length, self._stored = 1, 1, 0, 0

    # --- from the session

    def attach(self, lease: object) -> None:
        """The session has its link; without a record of the handshake it cannot be durable."""
        if isinstance(lease, Remembering):
            self.record, lease.record.on_change = lease.record, self.changed
        else:
            self.end()

    def recorded(self, entry: Entry) -> None:
        """An event has come."""
        if not self._replaces and not self.is_over:
            self._pending = {} if self._pending is None else self._pending
            self._pending[id(entry)] = entry
        self.changed()

    def dropped(self, entry: Entry) -> None:
        """An event has left the log."""
        if self._pending is not None:
            self._pending.pop(id(entry), None)
        if entry.serial and not self.is_over:
            self._gone = [] if self._gone is None else self._gone
            self._gone.append(entry.serial)
            entry.serial = 0
        self.changed()

    def replaced(self, entry: Entry, by: Entry) -> None:
        """An event has become another one."""
        self.dropped(entry)
        self.recorded(by)

    def changed(self) -> None:
        """Something has changed; what it is is asked when it is written."""
        if not self._is_dirty and not self.is_over:
            self._is_dirty = True
            self._owner.has_news(self)

    def end(self) -> None:
        """The session is over, or not durable any more. Idempotent."""
        if not self.is_over:
            self.let_go()
            self._owner.has_ended(self)

    def let_go(self) -> None:
        """Nothing more is written; what was written stays. Idempotent."""
        self.is_over = True
        self._pending = self._gone = self._sizes = None
        self.describe = lambda: None
        if self.record is not None:
            self.record.on_change = None

    # --- to be written

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything to be written."""
        return self._is_dirty and not self.is_over

    def lost(self) -> None:
        """It is not known what the store has."""
        self._replaces, self._is_grown = True, False
        self._pending = self._gone = None
        self.changed()

    def next_write(self, seal: Seal, wall_offset_s: float) -> JournalWrite | None:
        """What to write now, WRITE_BYTES and one event at most; None if nothing. `is_dirty` says whether that is all.

        `wall_offset_s` is to be added to the clock of events to get the wall clock.
        """
        self._is_dirty = False
        head = None if self.is_over else self.describe()
        if head is None or self.log is None:
            return None
        if self._replaces:
            self._start_over()
        length = REPLACES if self._replaces else self._length
        at_most = MAX_STORED if self._is_grown else WRITE_BYTES
        entries = [seal(form, str(serial)) for serial, form in self._next_entries(at_most, wall_offset_s)]
        trim = self._trim()
        if self._pending:
            head = msgspec.structs.replace(head, streams=_with_unwritten(head.streams, self._pending.values()))
        head = msgspec.structs.replace(head, first=self._first, length=self._length)
        self.number += 1
        self._is_grown = self._length - len(self.log) > MAX_EVENTS or self._stored - self.log.bytes > MAX_BYTES
        self._replaces = self._is_grown
        if self._pending or self._replaces:
            self.changed()
        sealed = seal(msgspec.msgpack.encode(head), HEAD_PLACE)
        return JournalWrite(self.key, self.token, self.number, sealed, entries, length, trim)

    def _start_over(self) -> None:
        assert self.log is not None
        self._pending = {id(entry): entry for entry in self.log}
        self._gone = None
        for entry in self._pending.values():
            entry.serial = 0
        self._first, self._length, self._stored = self._next, 0, 0
        self._sizes = None

    def _next_entries(self, at_most: int, wall_offset_s: float) -> list[tuple[int, bytes]]:
        entries: list[tuple[int, bytes]] = []
        if self._gone:
            entries.append(self._add(event_form.write_gone(self._gone)))
            self._gone = None
        size = 0
        while self._pending and size < at_most:
            entry = self._pending.pop(next(iter(self._pending)))
            serial, form = self._add(event_form.write(entry, entry.at + wall_offset_s))
            entry.serial = serial
            entries.append((serial, form))
            size += len(form)
        return entries

    def _add(self, form: bytes) -> tuple[int, bytes]:
        if self._sizes is None:
            self._sizes = deque()
        self._sizes.append(len(form))
        self._stored += len(form)
        self._length += 1
        self._next += 1
        return self._next - 1, form

    def _trim(self) -> int:
        """How many entries go from the front of the list: none until it is worth while to look."""
        assert self.log is not None
        is_worth_while = self._length - len(self.log) >= SLACK_ENTRIES or self._stored - self.log.bytes >= SLACK_BYTES
        if not self._length or (len(self.log) and not is_worth_while):
            return 0
        first = min((entry.serial for entry in self.log if entry.serial), default=self._next)
        trim, self._first = first - self._first, first
        self._length -= trim
        for _ in range(trim if self._sizes is not None else 0):
            assert self._sizes is not None
            self._stored -= self._sizes.popleft()
        if not self._length:
            self._sizes = None
        return trim

    def __repr__(self) -> str:
        state = "over" if self.is_over else "dirty" if self._is_dirty else "clean"
        return f"<Journal {self.key[:6]}… {self.token}.{self.number} {state} [{self._length} entries]>"


def _with_unwritten(streams: list[StreamHead], unwritten: Iterable[Entry]) -> list[StreamHead]:
    """The streams as they are without these events: what these answer is not answered yet."""
    heads = {stream.name: stream for stream in streams}
    for entry in unwritten:
        if entry.call is not None:
            name, number = entry.id
            head = heads.get(name) or StreamHead(name, number, 0, is_listen=False, calls=[])
            heads[name] = msgspec.structs.replace(head, calls=[*head.calls, (entry.call.id, entry.call.method)])
    return list(heads.values())


class JournalBroken(Exception):
    """A journal cannot be read: it was tampered with, or another version has written it."""


def read(sealed_head: bytes, sealed: Sequence[bytes], unseal: Seal) -> tuple[Head, list[event_form.Event]]:
    """The head, and the events that are left, in the order of their numbers for each stream.

    Raises:
        JournalBroken: it is not what one node has written last.
        Exception: whatever `unseal` raises.
    """
    try:
        head = msgspec.msgpack.decode(unseal(sealed_head, HEAD_PLACE), type=Head)
        if head.form != FORM or head.length != len(sealed):
            raise JournalBroken("it has another form, or another length than its head says")
        forms = {serial: event_form.read(unseal(entry, str(serial))) for serial, entry in enumerate(sealed, head.first)}
    except msgspec.MsgspecError as error:
        raise JournalBroken(str(error)) from None
    for form in list(forms.values()):
        if isinstance(form, event_form.Gone):
            for serial in form.serials:
                forms.pop(serial, None)
    return head, _in_order([form for form in forms.values() if isinstance(form, event_form.Event)])


def _in_order(events: Sequence[event_form.Event]) -> list[event_form.Event]:
    """The events as they came: each stream's by number, since one that took another's place was written later.

    Their times are of no help: they may be by the clocks of several nodes.
    """
    streams: dict[str, list[event_form.Event]] = defaultdict(list)
    for event in events:
        streams[event.stream].append(event)
    ordered = {name: iter(sorted(each, key=lambda event: event.number)) for name, each in streams.items()}
    return [next(ordered[event.stream]) for event in events]
