"""Inspecting: opens inspections of this node's sessions, shows them as values, and ends them. `run` is a task.

One of a backend is open on every node, and sees what opens there; each node has its part, with its own limits.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import anyio

from app.cluster.node_status.inspection_views import InspectionView, Opened, Seen, moment, view_of
from app.cluster.node_status.problems.problem import Problem
from app.domain import BackendSpec
from app.errors import Conflict, GatewayError, QuotaExceeded
from app.sessions.loop_pause import since_boot
from app.sessions.open_sessions import OpenSessions
from app.sessions.session import Session, SessionState
from app.storage.audit import Act
from app.telemetry.capture.captured_message import InspectedMessage, Place
from app.telemetry.capture.inspection import About, Ending, Identity, Inspection
from app.telemetry.capture.inspections import Inspections
from app.telemetry.capture.masking import Mask
from app.telemetry.capture.session_capture import SessionCapture
from app.telemetry.metrics import Metrics
from app.text.credentials import secrets_in

LOOK_EVERY_S = 0.5  # so late its time, or the end of its session, may be noticed
MAX_UNWRITTEN = 1000  # ends whose entries in the audit trail could not be written yet; the oldest are logged only
MAX_PAGE_BYTES = 4 << 20  # of payloads that are shown at once
LAST_WORDS_S = 1.0
MAX_SESSIONS = 64  # that an inspection of a backend sees at a time; it counts the others
CONFIRM_S = 10.0  # in which whoever has opened one must have asked again whether that is allowed
STANDSTILL_S = 5.0  # as long as other nodes take it for living; later they have said that its inspections are over

log = logging.getLogger(__name__)


class Inspecting:
    """`sessions` are those of this node. `specs`: all versions of a backend that this node starts or runs. `headers`:
    those of a backend with a URL, opened. `write`: appends to the audit trail."""

    def __init__(  # noqa: PLR0913 - once, of parts
        self,
        node: str,
        sessions: OpenSessions,
        specs: Callable[[tuple[str, str]], Iterable[BackendSpec]],
        headers: Callable[[BackendSpec], Iterable[str]],
        write: Callable[[Act], Awaitable[None]],
        metrics: Metrics,
        max_bytes: int,
        charge: Callable[[str, float], None] = lambda tenant, seconds: None,
    ) -> None:
        self._node, self._registry, self._specs, self._headers, self._write = node, sessions, specs, headers, write
        dropped = metrics.inspection_messages_dropped
        self._inspections = Inspections(max_bytes, on_end=self._has_ended, on_dropped=dropped.inc, charge=charge)
        self._open_now = metrics.inspections_open
        self._sessions: dict[str, list[Session]] = {}  # by inspection
        self._unconfirmed: dict[str, float] = {}  # until when, by the monotonic clock
        self._ends_at: dict[str, float] = {}  # by a clock that nobody sets back
        self._unwritten: deque[Act] = deque(maxlen=MAX_UNWRITTEN)

    async def run(self) -> None:
        """Ends what is over, and writes ends to the audit trail, until it is cancelled; then ends all."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._look_for_ever)  # also while the trail does not answer
                while True:
                    await anyio.sleep(LOOK_EVERY_S)
                    await self._write_ends()
        finally:
            self.end_where(lambda inspection: True, "shutdown")
            with anyio.move_on_after(LAST_WORDS_S, shield=True):
                await self._write_ends()

    async def _look_for_ever(self) -> None:
        while True:
            began = since_boot()
            await anyio.sleep(LOOK_EVERY_S)
            if since_boot() - began > STANDSTILL_S:
                self.end_where(lambda inspection: True, "standstill")
            self._look(time.time())

    # --- opening and ending

    def open(self, about: About, nodes: Sequence[str]) -> Opened | None:
        """It ends soon unless it is confirmed. None: this node does not have the session. Each of several `nodes` has a
        part."""
        tenant, session, now = about.tenant, None, time.time()
        if about.session:
            meant = (each for each in self._registry if each.spec.tenant == tenant and each.public_id == about.session)
            session = next(meant, None)
            if session is None:
                return None
            if session.state is not SessionState.OPEN:
                return Opened(refusal="the session is still being opened; ask again in a moment")
            if session.calls.capture is not None:
                return Opened(refusal=self._by_which(session))
            about = replace(about, backend=session.spec.name, transport=session.transport)
        number = nodes.index(self._node) if self._node in nodes else 0
        place = Place(number, len(nodes), now - about.opened_at) if len(nodes) > 1 else None
        try:
            inspection = self._inspections.open(about, Mask(), self._secrets_of(tenant), place)
        except (Conflict, QuotaExceeded) as error:
            return Opened(refusal=str(error), is_limit=isinstance(error, QuotaExceeded))
        self._sessions[about.id] = []
        self._unconfirmed[about.id] = time.monotonic() + CONFIRM_S
        self._ends_at[about.id] = since_boot() + about.ends_at - now
        if session is None:
            self._registry.watch((tenant, about.backend), partial(self._session_opened, inspection))
            for spec in self._specs((tenant, about.backend)):
                inspection.learn(self._secrets(spec))
        else:
            self._record(inspection, session)
        self._open_now.set(len(self._inspections))
        log.info(
            "Inspection %s of %s of %s/%s opened by %s of %s until %s, %s payloads: %s",
            about.id, _what(about), tenant, about.backend, " ".join(about.opener[1:]), about.opener[0],
            moment(about.ends_at).isoformat(timespec="seconds"), "with" if about.payloads else "without", about.reason,
        )  # fmt: skip
        return Opened(view_of(inspection, self._node))

    def confirm(self, tenant: str, id: str) -> InspectionView | None:
        """Who has opened it was still allowed to when it was open; None: it has ended."""
        inspection = self._inspections.find(tenant, id)
        if inspection is None or not inspection.is_open:
            return None
        self._unconfirmed.pop(id, None)
        return view_of(inspection, self._node)

    def _session_opened(self, inspection: Inspection, session: Session) -> None:
        """A new session, before anything has passed; or one that another node has had, perhaps since before."""
        age_s = time.monotonic() - session.opened_at
        if session.state is SessionState.OPEN and time.time() - age_s < inspection.about.opened_at:
            return
        theirs = self._sessions[inspection.about.id]
        theirs[:] = [each for each in theirs if each.state is not SessionState.CLOSED]
        if len(theirs) >= MAX_SESSIONS:
            inspection.misses_session()
        else:
            self._record(inspection, session)

    def _record(self, inspection: Inspection, session: Session) -> None:
        inspection.learn(self._secrets(session.spec))
        inspection.sees_session()
        self._sessions[inspection.about.id].append(session)
        is_pooled = partial(getattr, session, "is_pooled")
        session.observe(SessionCapture(inspection, time.time, session=session.public_id, is_pooled=is_pooled))

    def _by_which(self, session: Session) -> str:
        id = next((id for id, sessions in self._sessions.items() if session in sessions), "")
        return f"this session is inspected already: {id}"

    def backend_changed(self, spec: BackendSpec) -> None:
        """Processes get other secrets from now on."""
        for each in self._inspections:
            if each.about.tenant == spec.tenant and (each.about.backend == spec.name or each.met(spec.name)):
                each.learn(self._secrets(spec))

    def close(self, tenant: str, id: str) -> bool:
        """An administrator closes it, and nobody may see what it has seen any more; whether there was one."""
        return self._end(lambda each: (each.about.tenant, each.about.id) == (tenant, id), "closed") > 0

    def end_where(self, matches: Callable[[Inspection], bool], ending: Ending) -> None:
        """Ends those that match."""
        self._inspections.end_where(matches, time.time(), ending)

    def end_of_opener(self, matches: Callable[[Identity], bool]) -> None:
        """The credentials of these principals are not valid any more."""
        self.end_where(lambda each: matches(each.about.opener), "revoked")

    def restrict(self, tenant: str, mode: str) -> None:
        """The tenant allows no more than this from now on."""
        if mode != "allowed":
            self.end_where(
                lambda each: each.about.tenant == tenant and (mode == "forbidden" or each.about.payloads), "forbidden"
            )

    def tenant_removed(self, tenant: str) -> None:
        self.end_where(lambda each: each.about.tenant == tenant, "forbidden")
        self._inspections.forget(tenant)

    def _end(self, matches: Callable[[Inspection], bool], ending: Ending) -> int:
        return self._inspections.end_where(matches, time.time(), ending)

    def _look(self, now: float) -> None:
        self._inspections.sweep(now)
        for each in self._inspections:
            about = each.about
            if about.session and self._sessions[about.id][0].state is SessionState.CLOSED:
                self._inspections.end(each, now, "session_ended")
            elif self._ends_at[about.id] <= since_boot():
                self._inspections.end(each, now, "time")
            elif self._unconfirmed.get(about.id, math.inf) < time.monotonic():
                self._inspections.end(each, now, "not_confirmed")

    def _has_ended(self, inspection: Inspection) -> None:
        about = inspection.about
        self._unconfirmed.pop(about.id, None)
        del self._ends_at[about.id]
        if not about.session:
            self._registry.watch((about.tenant, about.backend), None)
        for session in self._sessions.pop(about.id):
            if session.state is not SessionState.CLOSED:
                session.observe(None)
        self._open_now.set(len(self._inspections))
        log.info(
            "Inspection %s of %s of %s/%s ended (%s): %d messages, %d of them dropped",
            about.id, _what(about), about.tenant, about.backend, inspection.ending, inspection.seen, inspection.dropped,
        )  # fmt: skip
        if inspection.ending != "closed":  # whose entry is written by the request
            detail = f"{inspection.ending}; {_what(about)}; {inspection.seen} messages; on {self._node}"
            target = f"inspections/{about.id}"
            self._unwritten.append(
                Act(about.tenant, about.opener, "inspection.close", target, datetime.now(UTC), "", detail)
            )

    async def _write_ends(self) -> None:
        while self._unwritten:
            act = self._unwritten[0]
            try:
                await self._write(act)
            except GatewayError as error:
                log.warning("Could not write the end of an inspection to the audit trail; will retry: %s", error)
                return
            if self._unwritten and self._unwritten[0] is act:
                self._unwritten.popleft()

    # --- what is shown

    def openers(self) -> set[Identity]:
        """Who has opened those that are open."""
        return {each.about.opener for each in self._inspections}

    def tenants(self) -> set[str]:
        """Whose sessions are inspected."""
        return {each.about.tenant for each in self._inspections}

    def of(self, tenant: str) -> Sequence[InspectionView]:
        """The tenant's inspections on this node, the newest first."""
        self._look(time.time())
        return [view_of(each, self._node) for each in self._inspections.of(tenant)]

    def seen(self, tenant: str, id: str, after: int, limit: int) -> Seen | None:
        """The messages with higher numbers than `after`; None: there is no such inspection here."""
        self._look(time.time())
        inspection = self._inspections.find(tenant, id)
        if inspection is None:
            return None
        messages, size, bound = list[InspectedMessage](), 0, inspection.numbers.bound()
        for message in inspection.after(after):
            size += message.kept_bytes
            if len(messages) >= limit or (messages and size > MAX_PAGE_BYTES):
                bound = None if bound is None else min(bound, message.number)
                break
            messages.append(message)
        return Seen(view_of(inspection, self._node), messages, bound)

    def problems(self) -> Iterator[Problem]:
        """Open inspections: the tenant is to know of them."""
        for each in self._inspections:
            about = each.about
            what = "with their payloads" if about.payloads else "without their payloads"
            words = (
                f"The messages of {_what(about)} of the backend {about.backend} are being inspected, {what}, "
                f"by {' '.join(about.opener[1:])} of {about.opener[0]}: {about.reason}"
            )
            until = moment(about.ends_at).strftime("%H:%M UTC")
            do = f"It ends at {until}. If it should not be, close it, and restrict the tenant's `inspections`."
            yield Problem(
                "inspection_open", "info", ("inspection", about.id), words, do, ("inspection", about.id), about.tenant,
                about.opened_at,
            )  # fmt: skip

    # --- secrets

    def _secrets_of(self, tenant: str) -> Callable[[str], Iterable[str] | None]:
        def of(member: str) -> Iterable[str] | None:
            known = [self._secrets(spec) for spec in self._specs((tenant, member))]
            return [each for secrets in known for each in secrets] if known else None

        return of

    def _secrets(self, spec: BackendSpec) -> list[str]:
        return [*spec.env.values(), *secrets_in([*spec.args, *([spec.url] if spec.url else [])]), *self._headers(spec)]


def _what(about: About) -> str:
    return f"session {about.session}" if about.session else "the next sessions"
