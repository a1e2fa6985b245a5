"""Entity tags: which state of an object an answer shows, and changes that are made to that state only.

A tag covers the version and what is shown, so that an object made anew under an old name has another one. Of what
changes by itself (when a key was used last, how much is used) it knows nothing.
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
    """The strong entity tag of what is shown."""
    shown = answer.model_dump_json(exclude=_VOLATILE)
    version = getattr(answer, "version", 1)
    return f'"{version}-{hashlib.sha256(shown.encode()).hexdigest()[:16]}"'


def tagged(response: Response, answer: _M) -> _M:
    """The answer, with its tag in the response's head."""
    response.headers["ETag"] = etag(answer)
    return answer


@dataclass(frozen=True, slots=True)
class IfMatch:
    """The condition of a request. Without one everything matches."""

    header: str | None

    @property
    def is_given(self) -> bool:
        """Whether there is a condition at all."""
        return self.header is not None

    def require(self, current: BaseModel) -> None:
        """Compares with the object as it is now.

        Raises:
            PreconditionFailed: it is another one than was read. Weak tags never match (RFC 9110, 13.1.1).
        """
        if self.header is None or self.header.strip() == "*":
            return
        strong = {f'"{tag}"' for weak, tag in _tags(self.header) if not weak}
        if etag(current) not in strong:
            raise PreconditionFailed

    @contextmanager
    def still(self) -> Iterator[None]:
        """Around the change: who named a state and comes second is told the same as who comes late."""
        try:
            yield
        except ConcurrentChange:
            if self.is_given:
                raise PreconditionFailed from None
            raise


def _if_match(
    header: Annotated[
        str | None,
        Header(alias="If-Match", max_length=MAX_IF_MATCH, description="Change only what has one of these `ETag`s."),
    ] = None,
) -> IfMatch:
    return IfMatch(header)


AskedState = Annotated[IfMatch, Depends(_if_match)]
