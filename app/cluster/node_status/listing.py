"""Sorted, paged lists of what runs on all nodes.

Every node sends the first rows after the end of the last page, no more than a page has. So a node with ten thousand
sessions sends two hundred, and the merged page is exact.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from operator import itemgetter
from typing import Annotated, Generic, Literal, Protocol, TypeVar, get_args

from app.telemetry.call_history.query import CallFilter

Sort = Literal["id", "memory", "cpu", "calls", "age"]
SORTS: tuple[str, ...] = get_args(Sort)
MAX_ROWS = 500  # that a node sends at once

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gathered(Generic[T]):
    """The answers of the nodes that were `asked`, but for the `silent` ones. Nodes are named by id."""

    rows: Sequence[T]
    silent: Sequence[str] = ()
    asked: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Use:
    """The use of a process, a session or a tenant."""

    resident_bytes: Annotated[int, "Of the processes and all their children."] = 0
    cpu_s: Annotated[float, "Of those processes, since their start."] = 0.0
    cpu_percent: Annotated[float | None, "Over the last seconds; 100 is one core. null: not known yet."] = None
    calls: Annotated[int, "In flight."] = 0
    calls_total: Annotated[int, "Of the open sessions, since they were opened."] = 0

    def amounts(self, sort: str) -> tuple[float, ...]:
        """What this order compares, in turn."""
        if sort == "memory":
            return (self.resident_bytes,)
        if sort == "cpu":
            return (self.cpu_percent or 0.0) * 1000, self.cpu_s * 1000
        return (self.calls, self.calls_total) if sort == "calls" else ()

    def __add__(self, other: "Use") -> "Use":
        shares = [each for each in (self.cpu_percent, other.cpu_percent) if each is not None]
        return Use(
            self.resident_bytes + other.resident_bytes,
            round(self.cpu_s + other.cpu_s, 3),
            round(sum(shares), 1) if shares else None,
            self.calls + other.calls,
            self.calls_total + other.calls_total,
        )


NO_USE = Use()


def position(sort: str, name: str, since: float, amounts: Sequence[float]) -> str:
    """The sort key of a row, which is also the place in a cursor. Largest and oldest first; equal ones by name.

    `since` is Unix time; `amounts` is `Use.amounts(sort)`.
    """
    if sort == "id":
        return name
    if sort == "age":
        return (
            f"age:{round(since * 1_000_000):018d}{name}"  # no finer than a datetime, from which other nodes compute it
        )
    return f"{sort}:{''.join(map(_down, amounts))}{name}"


def newest_first(at: float, name: str) -> str:
    """The sort key of an event."""
    return f"at:{_down(at * 1_000_000, 17)}{name}"


def place_of_event(position: str) -> tuple[int, int] | None:
    """The microseconds and the number behind `newest_first` of an event whose name is its number in hexadecimal; None
    if it is no such position."""
    time, name = position[3:20], position[20:]
    if not position.startswith("at:") or not time.isdecimal() or len(time) != 17 or len(name) != 16:
        return None
    try:
        number = int(name, 16)
    except ValueError:
        return None
    return (10**17 - 1 - int(time), number) if number < 1 << 63 else None


def _down(number: float, digits: int = 15) -> str:
    most = 10**digits - 1
    return f"{most - min(max(0, round(number)), most):0{digits}d}"


class Ranked(Protocol):
    """A row of a list."""

    def position(self, sort: str) -> str: ...


R = TypeVar("R", bound=Ranked)


@dataclass(frozen=True)
class Window:
    """The first `limit` rows behind the position `after`, of one backend or of all; or `only` the one with this id."""

    sort: str = "id"
    after: str = ""
    limit: int = MAX_ROWS
    backend: str = ""
    only: str = ""

    def first(self, rows: Iterable[T], position: Callable[[T], str]) -> list[T]:
        """The rows that belong into the window, in order."""
        most = min(self.limit, MAX_ROWS)
        if not self.after:  # most often, and of thousands
            return nsmallest(most, rows, key=position)
        placed = ((position(row), row) for row in rows)
        behind = (each for each in placed if each[0] > self.after)
        return [row for _, row in nsmallest(most, behind, key=itemgetter(0))]


@dataclass(frozen=True)
class CallWindow(CallFilter, Window):
    """The newest `limit` calls behind the position `after` that match the other members."""


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """The rows of a window, and how many there are in total. `silent`: the nodes, by id, that did not answer."""

    rows: Sequence[R]
    total: int
    silent: Sequence[str] = ()


def merged(told: Gathered[Listing[R]], _tenant: str | None, window: Window) -> Listing[R]:
    """One listing from those of all nodes."""
    rows = [row for listing in told.rows for row in listing.rows]
    chosen = window.first(rows, lambda row: row.position(window.sort))
    return Listing(chosen, sum(listing.total for listing in told.rows), told.silent)
