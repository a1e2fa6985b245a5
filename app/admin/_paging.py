"""Lists in pages. A cursor, opaque to clients, is the position where the last page ended."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Generic, Protocol, TypeVar

from fastapi import Depends, Query
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field

from app.admin.schemas.fields import Spelled
from app.cluster.node_status.listing import SORTS, Listing, Ranked, Sort, Window
from app.domain import NAME_PATTERN, NAME_RULE

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
MAX_CURSOR = 256
MAX_BYTES = 4 << 20  # of the items of a page, unless the first alone has more
AT_ONCE = 8  # items that are read, where each may have megabytes

_T = TypeVar("_T")
_S = TypeVar("_S", covariant=True)
_M = TypeVar("_M", bound=BaseModel)
_R = TypeVar("_R", bound=Ranked)
_W = TypeVar("_W", bound=Window)


class Page(BaseModel, Generic[_M]):
    """A part of a list. `next_cursor` is null on the last page."""

    items: list[_M]
    next_cursor: str | None


class RunningPage(Page[_M], Generic[_M]):
    """A page of what runs on all nodes."""

    total: int = Field(description="How many there are, on all pages.")
    silent_nodes: list[str] = Field(
        description="Nodes that did not answer within a second: what they have is missing here, and in `total`."
    )


class Listed(Protocol[_S]):
    """What is stored in the order of names, in parts."""

    async def __call__(self, tenant: str, *, after: str, limit: int) -> Sequence[_S]: ...


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Which part is asked for: up to `limit` items after the one named `after`, of about MAX_BYTES."""

    limit: int
    after: str

    @property
    def fetch(self) -> int:
        """How many to read: one more than is shown, to see whether there is a next page."""
        return self.limit + 1

    def page(self, found: Sequence[_T], name: Callable[[_T], str], show: Callable[[_T], _M]) -> Page[_M]:
        items: list[_M] = []
        size = 0
        for each in found[: self.limit]:
            item = show(each)
            size += _size(item)
            if items and size > MAX_BYTES:
                break
            items.append(item)
        cursor = _cursor(name(found[len(items) - 1])) if len(found) > len(items) else None
        return Page(items=items, next_cursor=cursor)

    async def read(
        self, listed: Listed[_T], tenant: str, name: Callable[[_T], str], show: Callable[[_T], _M]
    ) -> Page[_M]:
        """The page of what may be large: no more of it is read than is shown, and AT_ONCE."""
        found: list[tuple[str, _M]] = []
        size, is_last = 0, False
        while not is_last and len(found) < self.fetch and size <= MAX_BYTES:
            limit = min(AT_ONCE, self.fetch - len(found))
            part = await listed(tenant, after=found[-1][0] if found else self.after, limit=limit)
            shown = [(name(each), show(each)) for each in part]
            size += sum(_size(item) for _, item in shown)
            found += shown
            is_last = len(part) < limit
        return self.page(found, itemgetter(0), itemgetter(1))

    def of_all(self, every: Sequence[_T], name: Callable[[_T], str], show: Callable[[_T], _M]) -> Page[_M]:
        """The page of a whole list that is sorted by name."""
        return self.page([each for each in every if name(each) > self.after], name, show)


@dataclass(frozen=True, slots=True)
class WindowQuery(Generic[_W]):
    """Which page of what runs on all nodes, and what each node is asked for."""

    asked: PageQuery
    window: _W

    def page(self, found: Listing[_R], show: Callable[[_R], _M]) -> RunningPage[_M]:
        page = self.asked.page(found.rows, lambda row: row.position(self.window.sort), show)
        return RunningPage(**dict(page), total=found.total, silent_nodes=list(found.silent))


async def _page_query(
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
    cursor: Annotated[str, Query(max_length=MAX_CURSOR, description="`next_cursor` of the page before.")] = "",
) -> PageQuery:
    return PageQuery(limit, _after(cursor))


AskedPage = Annotated[PageQuery, Depends(_page_query)]


Sorted = Annotated[
    Sort,
    Query(
        description="`memory`, `cpu` (of the last seconds, then in total) and `calls` (in flight, then in total): the "
        "highest first; `age`: the oldest first."
    ),
]
OfBackend = Annotated[
    Annotated[str, Spelled(NAME_PATTERN, NAME_RULE)] | None, Query(description="Only of backends with this name.")
]


async def _window_query(asked: AskedPage, sort: Sorted = "id", backend: OfBackend = None) -> WindowQuery[Window]:
    order = asked.after.partition(":")[0] if ":" in asked.after else "id"
    if asked.after and order != sort and order in SORTS:
        raise wrong_cursor(f"this cursor is for another order; send it with sort={order}")
    return WindowQuery(asked, Window(sort, asked.after, asked.fetch, backend or ""))


async def _newest_query(asked: AskedPage) -> WindowQuery[Window]:
    return WindowQuery(asked, Window("at", asked.after, asked.fetch))


async def _newest_of_backend(asked: AskedPage, backend: OfBackend = None) -> WindowQuery[Window]:
    return WindowQuery(asked, Window("at", asked.after, asked.fetch, backend or ""))


AskedWindow = Annotated[WindowQuery[Window], Depends(_window_query)]
AskedNewest = Annotated[WindowQuery[Window], Depends(_newest_query)]
AskedNewestOfBackend = Annotated[WindowQuery[Window], Depends(_newest_of_backend)]


def wrong_cursor(message: str) -> RequestValidationError:
    return RequestValidationError([{"type": "cursor", "loc": ("query", "cursor"), "msg": message}])


def _size(item: BaseModel) -> int:
    return len(item.__pydantic_serializer__.to_json(item))


def _cursor(name: str) -> str:
    return urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _after(cursor: str) -> str:
    try:
        name = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except ValueError:
        name = "\0"
    if _cursor(name) != cursor or not name.isprintable():
        raise wrong_cursor("this is not a cursor; send the `next_cursor` of the page before, unchanged")
    return name
