"""Renewals: the parts of pages that browsers ask for again, shared by all who may see the same.

Browsers ask at the same moments (`page.js`), so of ten people who look at a page one causes its making. Each of them is
authenticated anew, and asked for its rights, before: shared is only between principals of one tenant with the same
scopes, for whom REST has the same answers.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from starlette.responses import Response

from app.concurrency.single_flight import SingleFlight

HEADER = "x-renew"  # the ids of the parts
GOOD_S = 2.0
MAX_KEPT = 500  # beyond it, and beyond MAX_BYTES, what was made first is forgotten
MAX_BYTES = 16 << 20
MAX_PARTS = 8  # of a page

Key = tuple[object, ...]


class _Made(NamedTuple):
    body: bytes
    headers: Mapping[str, str]
    until: float

    def answer(self, tag: str) -> Response:
        """For a browser that has what has this ETag."""
        if self.headers["etag"] == tag:
            return Response(status_code=304, headers={"etag": tag, "cache-control": "no-store"})
        return Response(self.body, headers=self.headers)


class Renewals:
    """What was made within the last two seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._kept, self._bytes = clock, dict[Key, _Made](), 0
        self._turns = SingleFlight[Key]()

    async def get(self, key: Key, make: Callable[[], Awaitable[Response]], tag: str) -> Response:
        """What has this key, or what `make` makes; only answers with status 200 are kept. `tag`: the ETag of what the
        browser has; if it is the same, the answer says so."""
        found = self._find(key)
        if found is None:
            async with self._turns.turn(key):
                found = self._find(key)
                if found is None:
                    answer = await make()
                    if answer.status_code != 200:
                        return answer
                    found = self._keep(key, answer)
        return found.answer(tag)

    def _find(self, key: Key) -> _Made | None:
        made = self._kept.get(key)
        return made if made is not None and self._clock() < made.until else None

    def _keep(self, key: Key, answer: Response) -> _Made:
        self._forget(key)
        body = bytes(answer.body)
        tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
        now = self._clock()
        while self._kept:  # the oldest is first
            oldest = next(iter(self._kept))
            is_full = len(self._kept) >= MAX_KEPT or self._bytes + len(body) > MAX_BYTES
            if not is_full and now < self._kept[oldest].until:
                break
            self._forget(oldest)
        self._kept[key] = made = _Made(body, {**answer.headers, "etag": tag}, now + GOOD_S)
        self._bytes += len(body)
        return made

    def _forget(self, key: Key) -> None:
        made = self._kept.pop(key, None)
        if made is not None:
            self._bytes -= len(made.body)

    def __len__(self) -> int:
        return len(self._kept)
