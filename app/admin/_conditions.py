"""Entity tags: they identify the state of an object, so that a change can be made conditional on it.

A tag covers the version, what is shown, and when the object was made, so that one that was deleted and created again
has another one, whatever it hides. It does not cover what changes by itself, like the last use of a key.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Response
from pydantic import BaseModel

from app.errors import ConcurrentChange, PreconditionFailed

MAX_IF_MATCH = 1024

_VOLATILE = {"last_used_at", "key", "use"}
_M = TypeVar("_M", bound=BaseModel)
_tags = re.compile(r'(W/)?"([!#-~\x80-\xff]*)"').findall


def etag(answer: BaseModel) -> str:
    shown = answer.model_dump_json(exclude=_VOLATILE)
    version = getattr(answer, "version", 1)
    covered = f"{shown}{getattr(answer, '_made', 0) or ''}"
    return f'"{version}-{hashlib.sha256(covered.encode()).hexdigest()[:16]}"'


def tagged(response: Response, answer: _M) -> _M:
    """The answer, with its tag in the response's headers."""
    response.headers["ETag"] = etag(answer)
    return answer


@dataclass(frozen=True, slots=True)
class IfMatch:
    """The condition of a request. Without a header everything matches."""

    header: str | None

    def version(self, current: int) -> int | None:
        """The version that a change must find; None if the request has no condition."""
        return None if self.header is None else current

    def require(self, current: BaseModel) -> None:
        """Compares with the current state of the object.

        Raises:
            PreconditionFailed: no tag matches. Weak tags never do (RFC 9110, 13.1.1).
        """
        if self.header is None or self.header.strip() == "*":
            return
        strong = {f'"{tag}"' for weak, tag in _tags(self.header) if not weak}
        if etag(current) not in strong:
            raise PreconditionFailed

    @contextmanager
    def still(self) -> Iterator[None]:
        """Around the change: with a condition, a concurrent change is answered like an earlier one."""
        try:
            yield
        except ConcurrentChange:
            if self.header is None:
                raise
            raise PreconditionFailed from None


async def _if_match(
    header: Annotated[
        str | None,
        Header(alias="If-Match", max_length=MAX_IF_MATCH, description="Change only what has one of these `ETag`s."),
    ] = None,
) -> IfMatch:
    return IfMatch(header)


AskedState = Annotated[IfMatch, Depends(_if_match)]
