"""Inspections: those of one node, within its limits. They end with their time; what they have shown stays for a while.

What they keep together is bounded by InspectionMemory.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from app.errors import Conflict, QuotaExceeded
from app.telemetry.capture._looking_time import LookingTime, of_node
from app.telemetry.capture._memory import InspectionMemory
from app.telemetry.capture.captured_message import Place
from app.telemetry.capture.inspection import LEAVES_MESSAGES, About, Ending, Inspection
from app.telemetry.capture.masking import Mask

MAX_OPEN = 64  # on a node
MAX_OPEN_OF_TENANT = 16
KEPT_S = 600.0  # messages, after the end
MAX_ENDED = 100  # of a tenant that are still listed; the audit trail has all


class Inspections:
    """`max_bytes` of 0: none can be opened. `on_end` is called with each one that has ended.
    `charge`: a tenant has used the event loop for so many seconds."""

    def __init__(
        self,
        max_bytes: int,
        *,
        on_end: Callable[[Inspection], None] = lambda inspection: None,
        on_dropped: Callable[[int], None] = lambda count: None,
        charge: Callable[[str, float], None] = lambda tenant, seconds: None,
    ) -> None:
        self._memory, self._on_end = InspectionMemory(max_bytes, on_dropped), on_end
        self._looking_time, self._charge = of_node(), charge
        self._open: dict[str, Inspection] = {}
        self._ended: dict[str, deque[Inspection]] = {}  # by tenant, oldest first

    def __iter__(self) -> Iterator[Inspection]:
        """The open ones."""
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    @property
    def bytes(self) -> int:
        """What is kept, about."""
        return self._memory.bytes

    def open(
        self,
        about: About,
        mask: Mask,
        secrets_of: Callable[[str], Iterable[str] | None] = lambda member: None,
        place: Place | None = None,
    ) -> Inspection:
        """A new one, which sees nothing yet. `secrets_of` and `place` as in Inspection.

        Raises:
            Conflict: the same is inspected already, or this node keeps nothing.
            QuotaExceeded: too many are open.
        """
        if not self._memory.max_bytes:
            raise Conflict("this node keeps no messages: its INSPECTION_MEMORY_MB is 0")
        for each in self._open.values():
            if _object(each.about) == _object(about):
                raise Conflict(
                    f"this {'session' if about.session else 'backend'} is inspected already: {each.about.id}"
                )
        theirs = sum(each.about.tenant == about.tenant for each in self._open.values())
        if theirs >= MAX_OPEN_OF_TENANT or len(self._open) >= MAX_OPEN:
            words = (
                f"{theirs} inspections of this tenant are open on this node, and {len(self._open)} in all; close one"
            )
            raise QuotaExceeded("inspections", words, retry_after_s=60.0)
        looking_time = LookingTime(within=self._looking_time, charge=partial(self._charge, about.tenant))
        inspection = self._open[about.id] = Inspection(about, mask, self._memory, secrets_of, looking_time, place)
        return inspection

    def of(self, tenant: str) -> Sequence[Inspection]:
        """The tenant's, open or ended, the newest first."""
        theirs = [each for each in self._open.values() if each.about.tenant == tenant]
        return sorted([*theirs, *self._ended.get(tenant, ())], key=lambda each: -each.about.opened_at)

    def find(self, tenant: str, id: str) -> Inspection | None:
        return next((each for each in self.of(tenant) if each.about.id == id), None)

    def end(self, inspection: Inspection, at: float, ending: Ending) -> None:
        """Idempotent. What it has shown goes at once, unless it has just run out or its session is over."""
        if not inspection.is_open:
            if ending not in LEAVES_MESSAGES:
                inspection.forget_messages()
            return
        inspection.end(at, ending)
        del self._open[inspection.about.id]
        if ending not in LEAVES_MESSAGES:
            inspection.forget_messages()
        kept = self._ended.setdefault(inspection.about.tenant, deque())
        kept.append(inspection)
        if len(kept) > MAX_ENDED:
            kept.popleft().forget_messages()
        self._on_end(inspection)

    def end_where(self, matches: Callable[[Inspection], bool], at: float, ending: Ending) -> int:
        """Ends those that match, also those that have ended and still show something; returns how many were open."""
        found = [each for each in self._every() if matches(each)]
        were_open = sum(each.is_open for each in found)
        for each in found:
            self.end(each, at, ending)
        return were_open

    def sweep(self, now: float) -> None:
        """Ends what is over, and forgets what has been over for long."""
        for each in self:
            if now >= each.about.ends_at:
                self.end(each, now, "time")
        for ended in self._ended.values():
            for each in ended:
                if each.ended_at is not None and now - each.ended_at > KEPT_S:
                    each.forget_messages()

    def forget(self, tenant: str) -> None:
        """The tenant is gone."""
        self._ended.pop(tenant, None)

    def _every(self) -> Iterator[Inspection]:
        yield from list(self._open.values())
        for ended in self._ended.values():
            yield from ended


def _object(about: About) -> tuple[str, str]:
    """What it looks at: a session, or the next ones of a backend."""
    return about.tenant, about.session or f"/{about.backend}"
