"""ProblemWatch: what is wrong on this node, and since when."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from heapq import nsmallest

import anyio

from app.cluster.node_status.problems.problem import MAX_PROBLEMS, Problem, for_tenant

LOOK_EVERY_S = 5.0  # so exact is `since` of what has no time of its own

log = logging.getLogger(__name__)

Source = Callable[[], Iterable[Problem]]


class ProblemWatch:
    """Asks its sources for what is wrong at the moment. `run` is a task of the node."""

    def __init__(self, node: str, sources: Sequence[Source], clock: Callable[[], float] = time.time) -> None:
        self._node, self._sources, self._clock = node, sources, clock
        self._since: dict[tuple[str, str | None, tuple[str, str]], float] = {}

    async def run(self) -> None:
        """Looks regularly until it is cancelled, so that it is known since when something is wrong."""
        while True:
            self.look()
            await anyio.sleep(LOOK_EVERY_S)

    def look(self) -> Sequence[Problem]:
        """What is wrong now: the worst, if it is very much. A source that fails is left out, and logged."""
        now = self._clock()
        found = nsmallest(MAX_PROBLEMS, self._all(), key=lambda each: each.rank)
        self._since = {each.key: self._since.get(each.key, now) for each in found}
        return [replace(each, since=each.since or self._since[each.key], nodes=(self._node,)) for each in found]

    def of(self, tenant: str | None) -> Sequence[Problem]:
        """What this tenant may know, or everything."""
        return for_tenant(self.look(), tenant)

    def _all(self) -> Iterable[Problem]:
        for source in self._sources:
            try:
                yield from source()
            except Exception:
                log.exception("Could not look for problems: a bug in the gateway")
