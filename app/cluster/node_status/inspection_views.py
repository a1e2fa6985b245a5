"""Inspections as values: what is shown, and how the parts of several nodes become one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from app.cluster.node_status.listing import newest_first
from app.telemetry.capture.captured_message import InspectedMessage
from app.telemetry.capture.inspection import About, Ending, Inspection

OF_MANY = "next sessions of "  # so begins what the trail says of one that was opened on every node


@dataclass(frozen=True, slots=True)
class InspectionView:
    """An inspection, without what it has seen, on one node or on all `nodes` that have parts of it. `last` is the
    number of the last message; `missed`: sessions that it could not see."""

    about: About
    nodes: Sequence[str]
    ended_at: datetime | None
    ending: Ending | None
    kept: int
    dropped: int
    last: int
    sessions: int
    missed: int

    @property
    def opened_at(self) -> datetime:
        return moment(self.about.opened_at)

    def position(self, _sort: str) -> str:
        return newest_first(self.about.opened_at, self.about.id)


@dataclass(frozen=True, slots=True)
class Opened:
    """An inspection that was opened, or why not: `refusal` and whether it is a limit."""

    view: InspectionView | None = None
    refusal: str = ""
    is_limit: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """Some messages of an inspection, and the inspection as it is now. What comes later, or was left out, has the
    number `bound` or a higher one; None: there are no other parts. `silent` nodes did not say what their parts have."""

    view: InspectionView
    messages: Sequence[InspectedMessage]
    bound: int | None = None
    silent: Sequence[str] = ()


def view_of(inspection: Inspection, node: str) -> InspectionView:
    """This node's part."""
    return InspectionView(
        about=inspection.about,
        nodes=(node,),
        ended_at=None if inspection.ended_at is None else moment(inspection.ended_at),
        ending=inspection.ending,
        kept=len(inspection),
        dropped=inspection.dropped,
        last=inspection.numbers.last,
        sessions=inspection.sessions,
        missed=inspection.missed,
    )


def views_together(parts: Iterable[InspectionView]) -> list[InspectionView]:
    """One view of each inspection, the newest first."""
    found: dict[str, InspectionView] = {}
    for each in parts:
        known = found.get(each.about.id)
        found[each.about.id] = each if known is None else _together(known, each)
    return sorted(found.values(), key=lambda each: each.about.opened_at, reverse=True)


def seen_together(parts: Sequence[Seen], limit: int, silent: Sequence[str]) -> Seen | None:
    """The parts of all nodes that have answered, in the order of their numbers; what one of them may still add to is
    left for later. None if there are none."""
    if not parts:
        return None
    (view,) = views_together(each.view for each in parts)
    bounds = [each.bound for each in parts if each.bound is not None]
    messages = sorted((each for part in parts for each in part.messages), key=lambda each: each.number)
    if bounds:
        messages = [each for each in messages if each.number < min(bounds)]
    return Seen(view, messages[:limit], silent=silent)


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _together(one: InspectionView, other: InspectionView) -> InspectionView:
    """Open while one of its parts is."""
    last = max(one, other, key=lambda each: each.ended_at or datetime.max.replace(tzinfo=UTC))
    return InspectionView(
        about=one.about,
        nodes=sorted([*one.nodes, *other.nodes]),
        ended_at=last.ended_at,
        ending=last.ending,
        kept=one.kept + other.kept,
        dropped=one.dropped + other.dropped,
        last=max(one.last, other.last),
        sessions=one.sessions + other.sessions,
        missed=one.missed + other.missed,
    )
