"""Inspecting: opens inspections of this node's sessions, shows them as values, and ends them. `run` is a task."""

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio

from app.domain import BackendSpec
from app.errors import Conflict, GatewayError, QuotaExceeded
from app.inspections.inspection import About, Ending, Identity, Inspection
from app.inspections.inspections import Inspections
from app.inspections.masking import Mask, names_secret
from app.inspections.message import InspectedMessage
from app.inspections.recorder import Recorder
from app.metrics import Metrics
from app.protocol.lifecycle import SessionState
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.storage.audit_act import Act
from app.this_node.problems.problem import Problem

LOOK_EVERY_S = 0.5  # so late its time, or the end of its session, may be noticed
MAX_UNWRITTEN = 1000  # ends whose entries in the audit trail could not be written yet; the oldest are logged only
MAX_PAGE_BYTES = 4 << 20  # of payloads that are shown at once
LAST_WORDS_S = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InspectionAsked:
    """What an administrator wants to see. `expires_at`: of the administrator's credential; 0 is never."""

    id: str
    session: str
    payloads: bool
    seconds: float
    reason: str
    opener: Identity
    expires_at: float = 0.0

    def words(self) -> Mapping[str, str]:
        """For another node."""
        tenant, issuer, subject = self.opener
        return {
            "id": self.id, "session": self.session, "payloads": str(int(self.payloads)), "seconds": str(self.seconds),
            "reason": self.reason, "opener_tenant": tenant, "issuer": issuer, "subject": subject,
            "expires_at": str(self.expires_at),
        }  # fmt: skip

    @classmethod
    def said(cls, words: Mapping[str, str]) -> "InspectionAsked":
        """The inverse of `words`."""
        opener = (words["opener_tenant"], words["issuer"], words["subject"])
        payloads, seconds, expires_at = words["payloads"] == "1", float(words["seconds"]), float(words["expires_at"])
        return cls(words["id"], words["session"], payloads, seconds, words["reason"], opener, expires_at)


@dataclass(frozen=True, slots=True)
class InspectionView:
    """An inspection, without what it has seen. `last` is the number of the last message."""

    id: str
    tenant: str
    backend: str
    session: str
    transport: str
    node: str
    payloads: bool
    reason: str
    opener_tenant: str
    issuer: str
    subject: str
    opened_at: datetime
    ends_at: datetime
    ended_at: datetime | None
    ending: Ending | None
    kept: int
    dropped: int
    last: int


@dataclass(frozen=True, slots=True)
class Opened:
    """An inspection that was opened, or why not: `refusal` and whether it is a limit."""

    view: InspectionView | None = None
    refusal: str = ""
    is_limit: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """Some messages of an inspection, and the inspection as it is now."""

    view: InspectionView
    messages: Sequence[InspectedMessage]


class Inspecting:
    """`specs`: a backend as this node starts it, None if it does not know it. `headers`: those of a backend with a
    URL, opened. `write`: appends to the audit trail."""

    def __init__(  # noqa: PLR0913 - once, of parts
        self,
        node: str,
        registry: SessionRegistry,
        specs: Callable[[tuple[str, str]], BackendSpec | None],
        headers: Callable[[BackendSpec], Iterable[str]],
        write: Callable[[Act], Awaitable[None]],
        metrics: Metrics,
        max_bytes: int,
    ) -> None:
        self._node, self._registry, self._specs, self._headers, self._write = node, registry, specs, headers, write
        dropped = metrics.inspection_messages_dropped
        self._inspections = Inspections(max_bytes, on_end=self._has_ended, on_dropped=dropped.inc)
        self._open_now = metrics.inspections_open
        self._sessions: dict[str, Session] = {}  # by inspection
        self._unwritten: deque[Act] = deque(maxlen=MAX_UNWRITTEN)

    async def run(self) -> None:
        """Ends what is over, and writes ends to the audit trail, until it is cancelled; then ends all."""
        try:
            while True:
                await anyio.sleep(LOOK_EVERY_S)
                self._look(time.time())
                await self._write_ends()
        finally:
            self.end_where(lambda inspection: True, "shutdown")
            with anyio.move_on_after(LAST_WORDS_S, shield=True):
                await self._write_ends()

    # --- opening and ending

    def open(self, tenant: str, asked: InspectionAsked) -> Opened | None:
        """None: this node does not have the session."""
        meant = (each for each in self._registry if each.spec.tenant == tenant and each.public_id == asked.session)
        session = next(meant, None)
        if session is None:
            return None
        if session.state is not SessionState.OPEN:
            return Opened(refusal="the session is still being opened; ask again in a moment")
        now = time.time()
        ends_at = min(now + asked.seconds, asked.expires_at or now + asked.seconds)
        backend, transport = session.spec.name, session.transport
        about = About(
            asked.id,
            tenant,
            backend,
            asked.session,
            transport,
            asked.payloads,
            asked.reason,
            asked.opener,
            now,
            ends_at,
        )
        try:
            inspection = self._inspections.open(about, Mask(self._secrets(session.spec)), self._secrets_of(tenant))
        except (Conflict, QuotaExceeded) as error:
            return Opened(refusal=str(error), is_limit=isinstance(error, QuotaExceeded))
        self._sessions[asked.id] = session
        session.record(Recorder(inspection, time.time, is_pooled=session.is_pooled))
        self._open_now.set(len(self._inspections))
        log.info(
            "Inspection %s of session %s of %s/%s opened by %s of %s until %s, %s payloads: %s",
            asked.id, asked.session, tenant, backend, " ".join(asked.opener[1:]), asked.opener[0],
            _at(ends_at).isoformat(timespec="seconds"), "with" if asked.payloads else "without", asked.reason,
        )  # fmt: skip
        return Opened(view_of(inspection, self._node))

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
            if self._sessions[each.about.id].state is SessionState.CLOSED:
                self._inspections.end(each, now, "session_ended")

    def _has_ended(self, inspection: Inspection) -> None:
        about = inspection.about
        session = self._sessions.pop(about.id)
        if session.state is not SessionState.CLOSED:
            session.record(None)
        self._open_now.set(len(self._inspections))
        seen = inspection.next_number - 1
        log.info(
            "Inspection %s of session %s of %s/%s ended (%s): %d messages, %d of them dropped",
            about.id, about.session, about.tenant, about.backend, inspection.ending, seen, inspection.dropped,
        )  # fmt: skip
        if inspection.ending != "closed":  # whose entry is written by the request
            detail = f"{inspection.ending}; session {about.session}; {seen} messages"
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
        messages, size = list[InspectedMessage](), 0
        for message in inspection.after(after):
            size += message.kept_bytes
            if len(messages) >= limit or (messages and size > MAX_PAGE_BYTES):
                break
            messages.append(message)
        return Seen(view_of(inspection, self._node), messages)

    def problems(self) -> Iterator[Problem]:
        """Open inspections: the tenant is to know of them."""
        for each in self._inspections:
            about = each.about
            what = "with their payloads" if about.payloads else "without their payloads"
            words = (
                f"The messages of session {about.session} of the backend {about.backend} are being inspected, {what}, "
                f"by {' '.join(about.opener[1:])} of {about.opener[0]}: {about.reason}"
            )
            until = datetime.fromtimestamp(about.ends_at, UTC).strftime("%H:%M UTC")
            do = f"It ends at {until}. If it should not be, close it, and restrict the tenant's `inspections`."
            yield Problem(
                "inspection_open", "info", ("inspection", about.id), words, do, ("inspection", about.id), about.tenant,
                about.opened_at,
            )  # fmt: skip

    # --- secrets

    def mask_for(self, spec: BackendSpec) -> Mask:
        """Removes the secrets of this backend."""
        return Mask(self._secrets(spec))

    def _secrets_of(self, tenant: str) -> Callable[[str], Iterable[str] | None]:
        def of(member: str) -> Iterable[str] | None:
            spec = self._specs((tenant, member))
            return None if spec is None else self._secrets(spec)

        return of

    def _secrets(self, spec: BackendSpec) -> list[str]:
        return [*spec.env.values(), *_in_arguments(spec.args), *self._headers(spec)]


def view_of(inspection: Inspection, node: str) -> InspectionView:
    about, ended_at = inspection.about, inspection.ended_at
    return InspectionView(
        id=about.id,
        tenant=about.tenant,
        backend=about.backend,
        session=about.session,
        transport=about.transport,
        node=node,
        payloads=about.payloads,
        reason=about.reason,
        opener_tenant=about.opener[0],
        issuer=about.opener[1],
        subject=about.opener[2],
        opened_at=_at(about.opened_at),
        ends_at=_at(about.ends_at),
        ended_at=None if ended_at is None else _at(ended_at),
        ending=inspection.ending,
        kept=len(inspection),
        dropped=inspection.dropped,
        last=inspection.next_number - 1,
    )


def _in_arguments(args: Sequence[str]) -> Iterator[str]:
    """Values of arguments whose names say that they are secret: `--api-key x`, `--api-key=x`."""
    for before, each in zip(["", *args], args, strict=False):
        name, _, value = each.partition("=")
        if value and names_secret(name.lstrip("-")):
            yield value
        elif before.startswith("-") and "=" not in before and names_secret(before.lstrip("-")):
            yield each


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
