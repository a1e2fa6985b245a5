"""Lists of what runs on all nodes, in an order that is asked for, a page at a time. Values only.

A page comes from every node: each sends no more rows than a page has, those that come first behind the last page's end.
So a node with ten thousand sessions sends two hundred, and what is put together is exact.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Generic, Literal, Protocol, TypeVar, get_args

Sort = Literal["id", "memory", "cpu", "calls", "age"]
SORTS: tuple[str, ...] = get_args(Sort)
MAX_ROWS = 500  # that a node sends at once, whatever it is asked for

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gathered(Generic[T]):
    """What all nodes have told; the `silent` ones, by id, have not."""

    rows: Sequence[T]
    silent: Sequence[str]


@dataclass(frozen=True, slots=True)
class Use:
    """How much something takes: a process, those of a session, of a tenant."""

    resident_bytes: int = 0
    cpu_s: float = 0.0
    cpu_percent: float | None = None  # of one core, over the last seconds; None where that is not known yet
    calls: int = 0  # in flight
    calls_total: int = 0  # of the sessions that there are

    def amounts(self, sort: str) -> tuple[float, ...]:
        """What this order looks at, first things first."""
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
    """Where something stands in the order: a text that is greater further down. The largest and the oldest come first,
    and what is equal by name. `amounts` are what this order looks at, see `Use.amounts`."""
    if sort == "id":
        return name
    if sort == "age":
        return f"age:{round(since * 1_000_000):018d}{name}"  # as exact as a datetime, which others compute it from
    return f"{sort}:{''.join(map(_down, amounts))}{name}"


def newest_first(at: float, name: str) -> str:
    """The same for what has happened at a moment."""
    return f"at:{_down(at * 1_000_000, 17)}{name}"


def _down(number: float, digits: int = 15) -> str:
    most = 10**digits - 1
    return f"{most - min(max(0, round(number)), most):0{digits}d}"


class Ranked(Protocol):
    """A row of a list."""

    def position(self, sort: str) -> str:
        """See `position`."""


R = TypeVar("R", bound=Ranked)


@dataclass(frozen=True, slots=True)
class Window:
    """Which rows: the first `limit` behind the position `after`; of one backend or of all; or the one with this id."""

    sort: str = "id"
    after: str = ""
    limit: int = MAX_ROWS
    backend: str = ""
    only: str = ""

    def first(self, rows: Iterable[T], position: Callable[[T], str]) -> list[T]:
        """Those of the rows that are in it, in order."""
        placed = ((position(row), number, row) for number, row in enumerate(rows))
        behind = (each for each in placed if each[0] > self.after)
        return [row for _, _, row in nsmallest(min(self.limit, MAX_ROWS), behind)]


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """Rows of a window, and how many there are without it. The `silent` nodes, by id, have told nothing."""

    rows: Sequence[R]
    total: int
    silent: Sequence[str] = ()


def merged(listings: Sequence[Listing[R]], window: Window, silent: Sequence[str] = ()) -> Listing[R]:
    """One listing out of those of all nodes."""
    rows = [row for listing in listings for row in listing.rows]
    chosen = window.first(rows, lambda row: row.position(window.sort))
    return Listing(chosen, sum(listing.total for listing in listings), silent)
