"""Lists in pages. A cursor is where the last page ended; clients must not read anything into it."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Query
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
MAX_CURSOR = 256

_T = TypeVar("_T")
_M = TypeVar("_M", bound=BaseModel)


class Page(BaseModel, Generic[_M]):
    """A part of a list. `next_cursor` is null on the last page."""

    items: list[_M]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Which part is asked for: up to `limit` items behind the one named `after`."""

    limit: int
    after: str

    @property
    def fetch(self) -> int:
        """How many to read: one more than is shown tells whether there is a next page."""
        return self.limit + 1

    def page(self, found: Sequence[_T], name: Callable[[_T], str], show: Callable[[_T], _M]) -> Page[_M]:
        """The page made of what was read."""
        shown = found[: self.limit]
        cursor = _cursor(name(shown[-1])) if len(found) > self.limit else None
        return Page(items=[show(each) for each in shown], next_cursor=cursor)

    def of_all(self, every: Sequence[_T], name: Callable[[_T], str], show: Callable[[_T], _M]) -> Page[_M]:
        """The page out of a whole list that is in order of its names."""
        behind = [each for each in every if name(each) > self.after]
        return self.page(behind[: self.fetch], name, show)


def _page_query(
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
    cursor: Annotated[str, Query(max_length=MAX_CURSOR, description="`next_cursor` of the page before.")] = "",
) -> PageQuery:
    return PageQuery(limit, _after(cursor))


AskedPage = Annotated[PageQuery, Depends(_page_query)]


def _cursor(name: str) -> str:
    return urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _after(cursor: str) -> str:
    try:
        name = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except ValueError:
        name = "\0"
    if _cursor(name) != cursor or not name.isprintable():
        message = "this is no cursor; send `next_cursor` of the page before as it is"
        raise RequestValidationError([{"type": "cursor", "loc": ("query", "cursor"), "msg": message}])
    return name
