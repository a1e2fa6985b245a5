"""Durability: sessions of `recovery: respawn` backends that survive their node. Starts their journals, and restores
sessions from the journals of other nodes.

Restored are the id, the principal, the handshake, and the streams with undelivered events. Calls in flight are not:
they get an error on their stream and are never run again. Questions of the dead process are withdrawn.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import anyio
import msgspec

from app.backends.connections.source import ConnectionLease
from app.cluster.journal_writer import JournalWriter
from app.domain import BackendSpec, Limits, Principal
from app.errors import NodeLost, RoutesUnavailable
from app.protocol.commands import Failed, Listen, ToStream
from app.protocol.event_ids import listen_name
from app.protocol.handshake_record import HandshakeRecord
from app.protocol.jsonrpc import dump_notification
from app.protocol.questions import MAX_QUESTIONS
from app.sessions.routes import Route
from app.sessions.session import Session
from app.sessions.streams.entry import Fate
from app.sessions.streams.journal import Head, NotDurable, StreamHead
from app.sessions.streams.journal_record import Event, call_of, entry_of
from app.sessions.streams.resumption import Resumption, StreamRecorder
from app.sessions.streams.streams import EventStream, Reply

DURABLE = "streamable_http"  # the only transport with streams that can be resumed
SAFE_WITHIN_S = 0.5  # sessions are opened without a store that takes longer
LEAP = 1_000_000  # event numbers skipped: more than the last node can have used without writing them down
IDS_PER_OWNER = 1_000_000_000  # of requests; 2 ** 53 is the largest number that every client reads exactly

log = logging.getLogger(__name__)


def is_durable(spec: BackendSpec, transport: str) -> bool:
    """Whether such a session can go on at another node: its server keeps no state, and its client reconnects. One that
    is shown only some of the tools cannot: what is restored is the line to the process, without what stands before it.
    """
    return spec.is_respawned and transport == DURABLE and not spec.is_toolset


AddSession = Callable[[str, Principal, BackendSpec, Limits, str], Session]
"""Adds a session under this id (`SessionRegistry.restored`). Raises QuotaExceeded, ShuttingDown."""

StartConnection = Callable[[BackendSpec, Limits, Principal, HandshakeRecord, bool], ConnectionLease]
"""A connection whose process is being started, or which is parked (`ProcessLeasing.restore`). Raises ShuttingDown."""


class Durability:
    """One per node. `adopt` is told of each session that was parked and still is."""

    def __init__(
        self,
        writer: JournalWriter,
        start_connection: StartConnection,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        adopt: Callable[[Session], None] = lambda session: None,
    ) -> None:
        self._adopt = adopt
        self._writer, self._start_connection, self._clock, self._wall_clock = (
            writer,
            start_connection,
            clock,
            wall_clock,
        )

    def start(self, session: Session, key: str, token: int) -> None:
        """Makes a new session durable, if its backend and transport allow it. `token` is that of its route."""
        if is_durable(session.spec, session.transport):
            self._begin(session, key, token).name(session.streams.listen, collects=False)

    async def restore(
        self, add_session: AddSession, session_id: str, route: Route, spec: BackendSpec, limits: Limits
    ) -> Session | None:
        """The session of this route, which must be ours, as its last owner left it; None without a usable journal. Its
        process is still being started, and requests wait for it; or it is parked, as it was there. If this raises or is
        cancelled, nothing has changed.

        Raises:
            RoutesUnavailable, QuotaExceeded, ShuttingDown: it cannot be restored now, or not here.
        """
        found = await self._writer.take(route.key, route.token)
        if found is None:
            return None
        head, events, written_under = found
        record = _record_of(head, route)
        if record is None or head.made not in (0, spec.made):  # 0: written by an earlier version
            return None
        lease = self._start_connection(spec, limits, head.principal, record, head.parked)
        try:
            session = add_session(session_id, head.principal, spec, limits, head.transport)
        except BaseException:
            lease.release("not_restored")
            raise
        session.exchange.number_from((route.token - 1) * IDS_PER_OWNER)
        resumption = self._begin(session, route.key, route.token)
        owners = route.token - written_under  # more than one if some died before they wrote anything
        _Streams(session, resumption, head.streams).restore(events, self._clock() - self._wall_clock(), owners)
        assert session.journal is not None
        session.journal.attach(record)
        opened_at = self._clock() - max(0.0, self._wall_clock() - head.opened_at)
        session.restore(lease, head.version, opened_at, record.hello)
        if head.parked:
            self._adopt(session)
        session.journal.changed()
        return session

    async def make_safe(self, session: Session) -> None:
        """Waits until another node could go on with the session, for at most SAFE_WITHIN_S."""
        if session.journal is None:
            return
        with anyio.move_on_after(SAFE_WITHIN_S), suppress(NotDurable, RoutesUnavailable):
            await self._writer.flush(session.journal)

    async def hand_over(self, session: Session) -> None:
        """Waits until another node can go on with the session; call it after `session.close("handed_over")`. Raises
        NotDurable, or RoutesUnavailable if the store is away."""
        if session.journal is not None:
            await self._writer.hand_over(session.journal)

    def _begin(self, session: Session, key: str, token: int) -> Resumption:
        journal = self._writer.open(key, token)
        resumption = session.make_durable(journal)
        offset_s = self._wall_clock() - self._clock()
        journal.begin(resumption.log, partial(_head_of, session, resumption, offset_s))
        return resumption


def _head_of(session: Session, resumption: Resumption, wall_offset_s: float) -> Head | None:
    """What another node must know of the session, besides events; None before its handshake."""
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
        parked=session.connection.rest == "parked",
        made=session.spec.made,
        grant=principal.grant,
        groups=sorted(principal.groups),
    )


def _calls_by_stream(session: Session) -> dict[EventStream, list[tuple[bytes, str]]]:
    """The calls in flight that have a stream. A JSON answer is lost with its connection, and its client notices."""
    waiting: dict[EventStream, list[tuple[bytes, str]]] = defaultdict(list)
    for call in session.exchange.every_call():
        if isinstance(call.stream, Reply) and call.stream.stream is not None:
            waiting[call.stream.stream].append((call.id, call.method))
    return waiting


def _record_of(head: Head, route: Route) -> HandshakeRecord | None:
    """The handshake to repeat to the next process, if the head is that of this route's session."""
    if head.principal.identity != route.identity or (head.tenant, head.backend) != (route.tenant, route.backend):
        log.error("Cannot restore a session: its journal and its route name different principals or backends")
        return None
    try:
        return HandshakeRecord.restored(head.handshake)
    except msgspec.MsgspecError:
        log.error("Cannot restore a session: the handshake in its journal is in an unknown format")
        return None


class _Streams:
    """Restores the streams of one session. The listen stream goes on; all others end."""

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
        """Restores the events, then adds errors for the calls in flight and ends their streams.

        Each owner since the writer of the journal has used numbers on the listen stream. On the others it used the same
        ones as we do now: errors that a client has received already keep their numbers.
        """
        listen = self._session.streams.listen
        for event in events:
            if event.stream not in self._recorders:
                self._add(self._session.streams.new(), event.stream)
            self._put(event, clock_offset_s)
        for name, recorder in self._recorders.items():
            if self._streams[name] is listen:
                recorder.skip_to(recorder.number + LEAP * max(1, owners))
            elif name in self._heads:
                recorder.skip_to(recorder.number + LEAP)
        self._withdraw([event for event in events if event.question is not None and event.stream in self._heads])
        self._fail_calls(events)
        for stream in self._streams.values():
            if stream is not listen:
                stream.end()

    def _fail_calls(self, events: Sequence[Event]) -> None:
        answered = {(event.stream, event.id) for event in events if event.id is not None}
        for name, head in self._heads.items():
            for call_id, method in head.calls:
                if (name, call_id) not in answered:
                    self._streams[name].answer(Failed(call_of(call_id, method), NodeLost()))

    def _add(self, stream: EventStream, name: str | None) -> None:
        recorder = self._resumption.name(stream, collects=stream is not self._session.streams.listen, name=name)
        self._recorders[recorder.name], self._streams[recorder.name] = recorder, stream
        head = self._heads.get(recorder.name)
        if head is not None:
            recorder.goes_on(head.number, head.taken)

    def _put(self, event: Event, clock_offset_s: float) -> None:
        recorder, stream = self._recorders[event.stream], self._streams[event.stream]
        recorder.skip_to(event.number)
        is_new = event.stream in self._heads and event.number > recorder.place.number
        unseen = Fate.QUEUED if stream is self._session.streams.listen else Fate.KEPT
        at = min(event.at + clock_offset_s, time.monotonic())  # the other node's clock may be ahead of ours
        entry = entry_of(event, at, unseen if is_new else Fate.SENT)
        if entry.fate is Fate.QUEUED:
            stream.queue(entry)
        self._resumption.append(entry)

    def _withdraw(self, questions: Sequence[Event]) -> None:
        """Cancels the questions of the dead process; the client may have answered some already."""
        for event in questions[-MAX_QUESTIONS:]:
            assert event.question is not None
            cancelled = dump_notification("notifications/cancelled", {"requestId": msgspec.Raw(event.question)})
            self._streams[event.stream].push(ToStream(Listen.STREAM, cancelled))
