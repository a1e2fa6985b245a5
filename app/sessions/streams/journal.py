"""Journal: what other nodes need to continue one durable session. Pure: says what to write, and reads it back;
JournalWriter writes and seals it.

It has two parts: the head, small, and written anew each time (the principal, the handshake, open streams and calls),
and the list of the events in the session's ReplayLog. Each entry has a serial number that is never used again, and is
sealed with it: entries that were exchanged, left out or restored from earlier do not open.

A node may die between any two writes, and the store must be consistent after each. So an event is removed in the same
write that adds its replacement, and a journal that is written anew replaces the old one when it is complete.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Protocol

import msgspec

from app.domain import Principal
from app.errors import GatewayError
from app.protocol.handshake_record import HandshakeRecord
from app.sessions.streams import journal_record as event_form
from app.sessions.streams._replay import MAX_BYTES, MAX_EVENTS, ReplayLog
from app.sessions.streams.entry import Entry
from app.sessions.streams.journal_store import REPLACES, JournalWrite, Target

FORM = 1  # of head and entries; a node with another one cannot continue the session
WRITE_BYTES = 512 << 10  # of events in one write: a slow network has to carry it within the store's deadline
MAX_STORED = 2 * MAX_BYTES  # of a list, removed events included
MAX_ASIDE = MAX_STORED // WRITE_BYTES  # writes; then the rest is written at once, however fast more comes
SLACK_ENTRIES, SLACK_BYTES = 64, 1 << 20  # of removed events; with as many the list is trimmed

HEAD_PLACE = "head"

Seal = Callable[[bytes, str], bytes]


class StreamHead(msgspec.Struct, array_like=True, frozen=True):
    """A stream that goes on, or on which calls wait: `calls` are their ids and methods."""

    name: str
    number: int
    taken: int
    is_listen: bool
    calls: list[tuple[bytes, str]]


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session without its events. `opened_at` is Unix time; `first` is the serial of the first entry."""

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
    parked: bool = False
    made: int = 0  # when its backend was
    grant: str = ""  # of the principal
    groups: list[str] = []  # likewise

    @property
    def principal(self) -> Principal:
        who = self.principal_tenant, self.issuer, self.subject
        return Principal(*who, frozenset(self.scopes), grant=self.grant, groups=frozenset(self.groups))


class JournalOwner(Protocol):
    """The JournalWriter."""

    def has_news(self, journal: "Journal") -> None:
        """There is something to write."""

    def has_ended(self, journal: "Journal") -> None:
        """The session has ended, or is not durable any more: the journal is to be deleted."""

    def has_let_go(self, journal: "Journal") -> None:
        """There will be no more writes; the stored journal stays, for another node."""


class Journal:
    """That of one session. It notes what changes, and `next_write` says what to write. After a write that may not have
    arrived (`lost`), the next one replaces everything.

    While the store does not answer nothing accumulates here: the session's own log has all events.
    """

    __slots__ = (
        "_aside", "_describe", "_first", "_gone", "_gone_with", "_is_dirty", "_is_grown", "_length", "_log", "_next",
        "_owner", "_pending", "_replaces", "_sizes", "_stored", "_under_way", "counted_bytes", "is_over", "key",
        "number", "record", "token",
    )  # fmt: skip

    def __init__(self, key: str, token: int, owner: JournalOwner) -> None:
        self.key, self.token, self._owner = key, token, owner
        self._log: ReplayLog | None = None
        self.record: HandshakeRecord | None = None
        self._describe: Callable[[], Head | None] = lambda: None
        self.is_over = False
        self.number = 0  # of the last write
        self.counted_bytes = 0  # of its log, at the last `grown`
        self._is_dirty, self._replaces = False, True
        self._is_grown = False  # the store has too many removed events: all is replaced in one write, not in parts
        self._aside = 0  # writes of a replacement that is not complete yet
        self._pending: dict[int, Entry] | None = None  # by identity
        self._gone: list[int] | None = None  # serials to remove with the next event, or when nothing is pending
        self._gone_with: dict[int, list[int]] | None = None  # serials, by identity of the pending event they wait for
        self._sizes: deque[int] | None = None  # of the entries of the list
        self._first, self._next, self._length, self._stored = 1, 1, 0, 0
        self._under_way: list[Entry] | None = None  # written, and not yet known to be in the store

    # --- from the session

    def begin(self, log: ReplayLog, describe: Callable[[], Head | None]) -> None:
        """The session's log, and its head: None before the handshake."""
        self._log, self._describe = log, describe

    def attach(self, record: HandshakeRecord | None) -> None:
        """The session's connection keeps this record of the handshake; without one the session cannot be durable."""
        self.record = record
        if record is None:
            self.end()
        else:
            record.watch(self.changed)

    def recorded(self, entry: Entry) -> None:
        """The log has a new event."""
        if not self._replaces and not self.is_over:
            self._pending = {} if self._pending is None else self._pending
            self._pending[id(entry)] = entry
            if self._gone:
                self._gone_with = {} if self._gone_with is None else self._gone_with
                self._gone_with[id(entry)], self._gone = self._gone, None
        self.changed()

    def dropped(self, entry: Entry) -> None:
        """An event has left the log; if another replaces it, that is recorded next."""
        if self._pending is not None:
            self._pending.pop(id(entry), None)
        gone = self._gone_with.pop(id(entry), []) if self._gone_with else []
        if entry.serial:
            gone.append(entry.serial)
            entry.written(0)
        if gone and not self.is_over:
            self._gone = [] if self._gone is None else self._gone
            self._gone += gone
        self.changed()

    def outdated(self, changes: Sequence[Entry]) -> list[Entry]:
        """As Recorder.outdated, but keeps the last change that the store has, and the last that is being written.

        The store keeps a change until it has a later one: else a client that has taken those in between, and comes back
        to another node, would get neither. Writes aside do not count: they take effect with all that is pending.
        """
        under_way = () if self._aside else self._under_way or ()
        stored = [entry for entry in changes if entry.is_stored and not self.is_over]
        arriving = [entry for entry in changes if entry in under_way]
        return [entry for entry in changes if entry not in stored[-1:] and entry not in arriving[-1:]]

    def replaced(self, entry: Entry, by: Entry) -> None:
        self.dropped(entry)
        self.recorded(by)

    def changed(self) -> None:
        """Something has changed; the write will ask what."""
        if not self._is_dirty and not self.is_over:
            self._is_dirty = True
            self._owner.has_news(self)

    def end(self) -> None:
        """The session has ended, or is not durable any more. Idempotent."""
        if not self.is_over:
            self.let_go()
            self._owner.has_ended(self)

    def let_go(self) -> None:
        """Writes nothing more; the stored journal stays. Idempotent."""
        self.is_over = True
        self._owner.has_let_go(self)
        self._pending = self._gone = self._gone_with = self._under_way = self._sizes = None
        self._describe = lambda: None
        if self.record is not None:
            self.record.watch(None)

    def grown(self) -> int:
        """By how many bytes its log has grown since the last call; a journal that is over has no bytes."""
        before, self.counted_bytes = self.counted_bytes, 0 if self.is_over or self._log is None else self._log.bytes
        return self.counted_bytes - before

    # --- to be written

    @property
    def is_dirty(self) -> bool:
        return self._is_dirty and not self.is_over

    def lost(self) -> None:
        """It is not known what the store has: the next write replaces everything."""
        self._replaces, self._is_grown, self._aside = True, False, 0
        self._pending = self._gone = self._gone_with = self._under_way = None
        self.changed()

    def written(self, write: JournalWrite) -> None:
        """The last `next_write` has arrived."""
        if write.target is not Target.ASIDE:
            for entry in self._under_way or ():
                entry.stored()
            self._under_way = None

    def next_write(self, seal: Seal, wall_offset_s: float) -> JournalWrite | None:
        """What to write now, at most WRITE_BYTES and one event; None if nothing. If `is_dirty`, there is more.

        `wall_offset_s` plus the time of an event is Unix time.
        """
        self._is_dirty = False
        head = None if self.is_over else self._describe()
        if head is None or self._log is None:
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
        self._is_grown = self._length - len(self._log) > MAX_EVENTS or self._stored - self._log.bytes > MAX_BYTES
        self._replaces = self._is_grown
        if self._pending or self._replaces:
            self.changed()
        sealed = b"" if target is Target.ASIDE else seal(msgspec.msgpack.encode(head), HEAD_PLACE)
        return JournalWrite(self.key, self.token, self.number, sealed, entries, length, trim, target)

    def _start_over(self) -> None:
        assert self._log is not None
        self._pending = {id(entry): entry for entry in self._log}
        self._gone = self._gone_with = self._under_way = None
        self._aside = 0
        for entry in self._pending.values():
            entry.written(0)
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
            entry.written(serial)
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
        """The target of the write whose entries have just been made."""
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
        """How many entries to trim from the front of the list; 0 while few are removed."""
        assert self._log is not None
        is_worth_while = self._length - len(self._log) >= SLACK_ENTRIES or self._stored - self._log.bytes >= SLACK_BYTES
        if not self._length or (len(self._log) and not is_worth_while):
            return 0
        waiting = chain(self._gone or (), *(self._gone_with or {}).values())
        first = min(chain((entry.serial for entry in self._log if entry.serial), waiting), default=self._next)
        trim, self._first = first - self._first, first
        self._length -= trim
        for _ in range(trim):
            assert self._sizes is not None
            self._stored -= self._sizes.popleft()
        if not self._length:
            self._sizes = None
        return trim


def _with_unwritten(streams: list[StreamHead], unwritten: Iterable[Entry]) -> list[StreamHead]:
    """The streams without these events: the calls that these answer are still open."""
    heads = {stream.name: stream for stream in streams}
    for entry in unwritten:
        if entry.call is not None:
            name, number = entry.id
            head = heads.get(name) or StreamHead(name, number, 0, is_listen=False, calls=[])
            heads[name] = msgspec.structs.replace(head, calls=[*head.calls, (entry.call.id, entry.call.method)])
    return list(heads.values())


class NotDurable(GatewayError):
    """Other nodes cannot continue the session."""


class JournalBroken(Exception):
    """The journal cannot be read: it was tampered with, or another version has written it."""


def read(sealed_head: bytes, sealed: Sequence[bytes], unseal: Seal) -> tuple[Head, list[event_form.Event]]:
    """The head, and the events that were not removed, those of each stream by number.

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
    """Sorts the events of each stream by number: those that replace others were written later. Their times may be by
    the clocks of several nodes."""
    streams: dict[str, list[event_form.Event]] = defaultdict(list)
    for event in events:
        streams[event.stream].append(event)
    ordered = {name: iter(sorted(each, key=lambda event: event.number)) for name, each in streams.items()}
    return [next(ordered[event.stream]) for event in events]
