"""Durability: sessions of `recovery: respawn` backends that outlive their node. Starts their journals, and makes the
session again from what another node has written.

What comes back: the id, whose it is, the handshake, the streams with what was not delivered. What does not: calls in
flight, which get an error on their stream and are never run again, and the answers to questions of a process that is
gone, which are withdrawn.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import anyio
import msgspec

from app.cluster.journal_writer import JournalWriter
from app.domain import BackendSpec, Limits, Principal
from app.errors import NodeLost, RoutesUnavailable
from app.links.source import LinkLease
from app.protocol.calls.questions import MAX_QUESTIONS
from app.protocol.commands import Failed, Listen, ToStream
from app.protocol.event_ids import EventId, listen_name
from app.protocol.handshake_record import HandshakeRecord
from app.protocol.jsonrpc import dump_notification
from app.routing.routes import Route
from app.sessions.session import Session
from app.streams.event_form import Event, call_of, entry_of
from app.streams.journal import Head, NotDurable, StreamHead
from app.streams.resumption import Resumption, StreamRecorder
from app.streams.streams import EventStream, Fate, Reply

DURABLE = "streamable_http"  # the one transport whose streams can be resumed
SAFE_WITHIN_S = 0.5  # longer takes a store that is away: sessions are opened without it
LEAP = 1_000_000  # of a stream's numbers: more than its last node can have given out without writing it down
IDS_PER_OWNER = 1_000_000_000  # of requests; 2 ** 53 is the largest number that every client reads as it was written

log = logging.getLogger(__name__)


def is_durable(spec: BackendSpec, transport: str) -> bool:
    """Whether such a session can go on at another node: its server keeps no state, and its client asks again."""
    return spec.recovery == "respawn" and transport == DURABLE


class Sessions(Protocol):
    """Where a session that was made again is at home: the registry."""

    def restored(
        self, session_id: str, principal: Principal, spec: BackendSpec, limits: Limits, transport: str
    ) -> Session:
        """A session under this id. Raises QuotaExceeded, ShuttingDown."""


class Links(Protocol):
    """Where its link comes from: the ProcessLeasing."""

    def restore(self, spec: BackendSpec, limits: Limits, principal: Principal, record: HandshakeRecord) -> LinkLease:
        """A link whose process is on its way. Raises ShuttingDown."""


class Durability:
    """One per node."""

    def __init__(
        self,
        writer: JournalWriter,
        links: Links,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._writer, self._links, self._clock, self._wall_clock = writer, links, clock, wall_clock

    def start(self, session: Session, key: str, token: int) -> None:
        """Makes a new session durable, if its backend and its transport allow; its route is ours under this token."""
        if is_durable(session.spec, session.transport):
            self._begin(session, key, token).name(session.streams.listen, collects=False)

    async def restore(
        self, sessions: Sessions, session_id: str, route: Route, spec: BackendSpec, limits: Limits
    ) -> Session | None:
        """The session that this route is of, as its last owner has left it; None where nothing usable is known of it.

        The route must be ours already, under its present token. The process is on its way when this returns, and
        requests wait for it. Where it raises, or is cancelled, nothing stays here and the journal is what it was.

        Raises:
            RoutesUnavailable, QuotaExceeded, ShuttingDown: not now, or not here.
        """
        found = await self._writer.take(route.key, route.token)
        if found is None:
            return None
        head, events, written_under = found
        record = _record_of(head, route)
        if record is None:
            return None
        lease = self._links.restore(spec, limits, head.principal, record)
        try:
            session = sessions.restored(session_id, head.principal, spec, limits, head.transport)
        except BaseException:
            lease.release("not_restored")
            raise
        session.exchange.number_from((route.token - 1) * IDS_PER_OWNER)
        resumption = self._begin(session, route.key, route.token)
        owners = route.token - written_under  # more than one where some died before they wrote anything
        _Streams(session, resumption, head.streams).restore(events, self._clock() - self._wall_clock(), owners)
        assert session.journal is not None
        session.journal.attach(lease)
        opened_at = self._clock() - max(0.0, self._wall_clock() - head.opened_at)
        session.restore(lease, head.version, opened_at, record.hello)
        session.journal.changed()
        return session

    async def make_safe(self, session: Session) -> None:
        """Waits until another node could go on with a session of ours; not for longer than SAFE_WITHIN_S."""
        if session.journal is None:
            return
        with anyio.move_on_after(SAFE_WITHIN_S), suppress(NotDurable, RoutesUnavailable):
            await self._writer.flush(session.journal)

    async def hand_over(self, session: Session) -> None:
        """Returns when another node can go on with the session; call it after `session.close("handed_over")`.

        Raises:
            NotDurable: none can.
            RoutesUnavailable: the store is away.
        """
        if session.journal is not None:
            await self._writer.hand_over(session.journal)

    def _begin(self, session: Session, key: str, token: int) -> Resumption:
        journal = self._writer.open(key, token)
        resumption = session.make_durable(journal)
        offset_s = self._wall_clock() - self._clock()
        journal.describe = partial(_head_of, session, resumption, offset_s)
        return resumption


def _head_of(session: Session, resumption: Resumption, wall_offset_s: float) -> Head | None:
    """The session as another node must know it; None before its handshake."""
    record = None if session.journal is None else session.journal.record
    handshake = None if record is None else record.snapshot()
    if handshake is None:
        return None
    waiting = _calls_by_stream(session)
    streams = [
        StreamHead(
            recorder.name, recorder.number, recorder.place.number, stream is session.streams.listen, waiting[stream]
        )
        for recorder, stream in resumption
        if stream is session.streams.listen or stream in waiting
    ]
    principal, (tenant, backend) = session.principal, session.spec.key
    return Head(
        tenant=tenant,
        backend=backend,
        principal_tenant=principal.tenant,
        issuer=principal.issuer,
        subject=principal.subject,
        scopes=sorted(principal.scopes),
        transport=session.transport,
        version=session.version,
        opened_at=session.opened_at + wall_offset_s,
        handshake=handshake,
        streams=streams,
    )


def _calls_by_stream(session: Session) -> dict[EventStream, list[tuple[bytes, str]]]:
    """The calls in flight that have a stream; a JSON answer is lost with its connection, and its client knows."""
    waiting: dict[EventStream, list[tuple[bytes, str]]] = defaultdict(list)
    for call in session.exchange.every_call():
        if isinstance(call.stream, Reply) and call.stream.stream is not None:
            waiting[call.stream.stream].append((call.id, call.method))
    return waiting


def _record_of(head: Head, route: Route) -> HandshakeRecord | None:
    """What the next process must hear, if the head is that of this route's session."""
    if head.principal.identity != route.identity or (head.tenant, head.backend) != (route.tenant, route.backend):
        log.error("a journal does not fit its route, and counts as none")
        return None
    try:
        return HandshakeRecord.restored(head.handshake)
    except msgspec.MsgspecError:
        log.error("a journal has a handshake in another form, and counts as none")
        return None


class _Streams:
    """Makes the streams of one session again: the listen stream goes on, all others end."""

    def __init__(self, session: Session, resumption: Resumption, heads: Sequence[StreamHead]) -> None:
        self._session, self._resumption = session, resumption
        self._heads = {head.name: head for head in heads}
        listen = next((head.name for head in heads if head.is_listen), None) or listen_name(session.id)
        self._recorders: dict[str, StreamRecorder] = {}
        self._streams: dict[str, EventStream] = {}
        self._add(session.streams.listen, listen)
        for head in heads:
            if not head.is_listen:
                self._add(session.streams.new(), head.name)

    def restore(self, events: Sequence[Event], clock_offset_s: float, owners: int) -> None:
        """Everything as it was; then the errors of the calls in flight, and the ends of their streams.

        Each owner since the one that wrote has given out numbers on the listen stream. On the others it gave out the
        same as we do now: errors that a client has had already keep their numbers.
        """
        for event in events:
            if event.stream not in self._recorders:
                self._add(self._session.streams.new(), event.stream)
            self._put(event, clock_offset_s)
        for name, recorder in self._recorders.items():
            if name in self._heads or self._streams[name] is self._session.streams.listen:
                recorder.number += (
                    LEAP * max(1, owners) if self._streams[name] is self._session.streams.listen else LEAP
                )
        self._withdraw([event for event in events if event.question is not None and event.stream in self._heads])
        answered = {(event.stream, event.id) for event in events if event.id is not None}
        for name, head in self._heads.items():
            for call_id, method in head.calls:
                if (name, call_id) not in answered:
                    self._streams[name].answer(Failed(call_of(call_id, method), NodeLost()))
        for stream in self._streams.values():
            if stream is not self._session.streams.listen:
                stream.end()

    def _add(self, stream: EventStream, name: str | None) -> None:
        recorder = self._resumption.name(stream, collects=stream is not self._session.streams.listen, name=name)
        self._recorders[recorder.name], self._streams[recorder.name] = recorder, stream
        head = self._heads.get(recorder.name)
        if head is not None:
            recorder.number, recorder.place = head.number, EventId(head.name, head.taken)

    def _put(self, event: Event, clock_offset_s: float) -> None:
        recorder, stream = self._recorders[event.stream], self._streams[event.stream]
        recorder.number = max(recorder.number, event.number)
        is_new = event.stream in self._heads and event.number > recorder.place.number
        unseen = Fate.QUEUED if stream is self._session.streams.listen else Fate.KEPT
        at = min(event.at + clock_offset_s, time.monotonic())  # by a clock that may go ahead of ours
        entry = entry_of(event, at, unseen if is_new else Fate.SENT)
        if entry.fate is Fate.QUEUED:
            stream.queue(entry)
        self._resumption.append(entry)

    def _withdraw(self, questions: Sequence[Event]) -> None:
        """Takes back what the process has asked; whether the client has answered already is not known."""
        for event in questions[-MAX_QUESTIONS:]:
            assert event.question is not None
            cancelled = dump_notification("notifications/cancelled", {"requestId": msgspec.Raw(event.question)})
            self._streams[event.stream].push(ToStream(Listen.STREAM, cancelled))
