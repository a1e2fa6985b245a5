"""Journal: what the other nodes must know to go on with one durable session. Pure: says what to write, and how it is
read again; writing and sealing are the business of others.

Two parts: the head, small, written anew each time (whose session it is, its handshake, its open streams and calls),
and the list of the events that its ReplayLog holds. An entry has a serial number that is never used again, and is
sealed with it: entries that were exchanged, left out or put back from earlier do not open.

A node may die between any two writes, and what the store has must be good after each. So an event is gone in the same
write in which the one that took its place arrives, and what replaces everything does so when it is whole.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Protocol, runtime_checkable

import msgspec

from app.domain import Principal
from app.errors import GatewayError
from app.protocol.handshake_record import HandshakeRecord
from app.routing.journal_store import REPLACES, JournalWrite, Target
from app.streams import event_form
from app.streams.replay import MAX_BYTES, MAX_EVENTS, ReplayLog
from app.streams.streams import Entry

FORM = 1  # of head and entries; a node that knows another one cannot go on with the session
WRITE_BYTES = 512 << 10  # of events in one write: a slow network has to carry it within the store's deadline
MAX_STORED = 2 * MAX_BYTES  # of a list, events that are gone included
MAX_ASIDE = MAX_STORED // WRITE_BYTES  # writes; then all that is left goes at once, however fast more comes
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

    def has_let_go(self, journal: "Journal") -> None:
        """Nothing more comes: what was written is another node's, or will be."""


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
        "_aside", "_first", "_gone", "_gone_with", "_is_dirty", "_is_grown", "_length", "_next", "_owner", "_pending",
        "_replaces", "_sizes", "_stored", "_under_way", "accounted", "describe", "is_over", "key", "log", "number",
        "record", "token",
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
        self._aside = 0  # writes of what is to replace everything, and is not whole yet
        self._pending: dict[int, Entry] | None = None  # by identity
        self._gone: list[int] | None = None  # they are gone once what comes next is written, or nothing is pending
        self._gone_with: dict[int, list[int]] | None = None  # by identity of the pending event that they wait for
        self._sizes: deque[int] | None = None  # of the entries of the list
        self._first, self._next, self._length, self._stored = 1, 1, 0, 0
        self._under_way: list[Entry] | None = None  # written, and not yet known to be in the store

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
            if self._gone:
                self._gone_with = {} if self._gone_with is None else self._gone_with
                self._gone_with[id(entry)], self._gone = self._gone, None
        self.changed()

    def dropped(self, entry: Entry) -> None:
        """An event has left the log; one that takes its place is recorded next."""
        if self._pending is not None:
            self._pending.pop(id(entry), None)
        gone = self._gone_with.pop(id(entry), []) if self._gone_with else []
        if entry.serial:
            gone.append(entry.serial)
            entry.serial = 0
        if gone and not self.is_over:
            self._gone = [] if self._gone is None else self._gone
            self._gone += gone
        self.changed()

    def outdated(self, changes: Sequence[Entry]) -> list[Entry]:
        """Those of these changes of one thing, oldest first, that another node need not know when another one comes.

        The last that the store has stays until it has a later one, and so does the last that may be there in a moment:
        a client that has taken what was sent between the two, and comes back to another node, would get neither. What
        is aside does not count: it comes into force together with all that is pending.
        """
        under_way = () if self._aside else self._under_way or ()
        stored = [entry for entry in changes if entry.is_stored and not self.is_over]
        arriving = [entry for entry in changes if entry in under_way]
        return [entry for entry in changes if entry not in stored[-1:] and entry not in arriving[-1:]]

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
        self._owner.has_let_go(self)
        self._pending = self._gone = self._gone_with = self._under_way = self._sizes = None
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
        self._replaces, self._is_grown, self._aside = True, False, 0
        self._pending = self._gone = self._gone_with = self._under_way = None
        self.changed()

    def written(self, write: JournalWrite) -> None:
        """The last `next_write` has arrived."""
        if write.target is not Target.ASIDE:
            for entry in self._under_way or ():
                entry.is_stored = True
            self._under_way = None

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
        at_most = MAX_STORED if self._is_grown or self._aside >= MAX_ASIDE else WRITE_BYTES
        entries = [seal(form, str(serial)) for serial, form in self._next_entries(at_most, wall_offset_s)]
        trim, target = self._trim(), self._target()
        if self._pending:
            head = msgspec.structs.replace(head, streams=_with_unwritten(head.streams, self._pending.values()))
        head = msgspec.structs.replace(head, first=self._first, length=self._length)
        self.number += 1
        self._is_grown = self._length - len(self.log) > MAX_EVENTS or self._stored - self.log.bytes > MAX_BYTES
        self._replaces = self._is_grown
        if self._pending or self._replaces:
            self.changed()
        sealed = b"" if target is Target.ASIDE else seal(msgspec.msgpack.encode(head), HEAD_PLACE)
        return JournalWrite(self.key, self.token, self.number, sealed, entries, length, trim, target)

    def _start_over(self) -> None:
        assert self.log is not None
        self._pending = {id(entry): entry for entry in self.log}
        self._gone = self._gone_with = self._under_way = None
        self._aside = 0
        for entry in self._pending.values():
            entry.serial = 0
        self._first, self._length, self._stored = self._next, 0, 0
        self._sizes = None

    def _next_entries(self, at_most: int, wall_offset_s: float) -> list[tuple[int, bytes]]:
        entries: list[tuple[int, bytes]] = []
        written: list[Entry] = []
        gone: list[int] = []
        size = 0
        while self._pending and size < at_most:
            entry = self._pending.pop(next(iter(self._pending)))
            serial, form = self._add(event_form.write(entry, entry.at + wall_offset_s))
            entry.serial = serial
            written.append(entry)
            entries.append((serial, form))
            gone += self._gone_with.pop(id(entry), ()) if self._gone_with else ()
            size += len(form)
        if not self._pending and self._gone:
            gone += self._gone
            self._gone = None
        if gone:
            entries.append(self._add(event_form.write_gone(gone)))
        if written:
            self._under_way = written if self._under_way is None else self._under_way + written
        return entries

    def _target(self) -> Target:
        """Where the write goes whose entries have just been made."""
        if self._pending and (self._replaces or self._aside):
            self._aside += 1
            return Target.ASIDE
        target = Target.INSTEAD if self._aside else Target.JOURNAL
        self._aside = 0
        return target

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
        waiting = chain(self._gone or (), *(self._gone_with or {}).values())
        first = min(chain((entry.serial for entry in self.log if entry.serial), waiting), default=self._next)
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


class NotDurable(GatewayError):
    """The session cannot go on at another node."""


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
