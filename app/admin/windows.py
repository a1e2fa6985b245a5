"""Pages of what runs on all nodes: how it is sorted, and which nodes are missing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Query
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field

from app.admin.paging import AskedPage, Page, PageQuery
from app.domain import NAME_PATTERN
from app.this_node.listing import SORTS, Listing, Ranked, Sort, Window

_M = TypeVar("_M", bound=BaseModel)
_R = TypeVar("_R", bound=Ranked)


class RunningPage(Page[_M], Generic[_M]):
    """A page of what runs on all nodes."""

    total: int = Field(description="How many there are, on all pages.")
    silent_nodes: list[str] = Field(
        description="Nodes that did not answer within a second: what they have is missing here, and in `total`."
    )


@dataclass(frozen=True, slots=True)
class WindowQuery:
    """Which page of what order."""

    asked: PageQuery
    sort: str
    backend: str

    @property
    def window(self) -> Window:
        """What each node is asked for."""
        return Window(self.sort, self.asked.after, self.asked.fetch, self.backend)

    def page(self, found: Listing[_R], show: Callable[[_R], _M]) -> RunningPage[_M]:
        """The answer."""
        page = self.asked.page(found.rows, lambda row: row.position(self.sort), show)
        return RunningPage(
            items=page.items, next_cursor=page.next_cursor, total=found.total, silent_nodes=list(found.silent)
        )


Sorted = Annotated[
    Sort,
    Query(
        description="`memory`, `cpu` (of the last seconds, then in all) and `calls` (in flight, then in all): the most "
        "first; `age`: the oldest first."
    ),
]
OfBackend = Annotated[
    str, Query(pattern=f"^$|{NAME_PATTERN}", max_length=63, description="Only those of backends with this name.")
]


def _window_query(asked: AskedPage, sort: Sorted = "id", backend: OfBackend = "") -> WindowQuery:
    order = asked.after.partition(":")[0] if ":" in asked.after else "id"
    if asked.after and order != sort and order in SORTS:
        message = f"this cursor is of another order; send it with sort={order}"
        raise RequestValidationError([{"type": "cursor", "loc": ("query", "cursor"), "msg": message}])
    return WindowQuery(asked, sort, backend)


AskedWindow = Annotated[WindowQuery, Depends(_window_query)]
