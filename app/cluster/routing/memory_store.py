"""MemoryStore: routes and nodes in this process, for a single node without Redis and for tests with several."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from app.errors import RoutesUnavailable, SessionLimit, session_quota
from app.sessions.routes import CALLER, ENDED, LEASE_S, Found, NodeRecord, Quota, Route
from app.sessions.streams.journal_store import Journaled, JournalWrite, Outcome


class MemoryStore:
    """Fulfils RouteStore and NodeStore. Nodes that share one object find each other; nothing expires but leases."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._routes: dict[str, Route] = {}
        self._counted: set[str] = set()
        self._sessions = Counter[tuple[object, str]]()  # by tenant or principal, and node
        self._leases: dict[str, tuple[NodeRecord, float]] = {}

    async def find(self, key: str) -> Found:
        route = self._routes.get(key)
        if route is not None and route.transport == ENDED:
            route = None
        return Found(route, owner_lives=route is not None and self._lives(route.node), is_settling=False)

    async def claim(self, route: Route, quota: Quota | None) -> Route:
        found = self._routes.get(route.key)
        if found is not None:
            if found.node == route.node or self._lives(found.node):
                return found
            route = replace(route, token=found.token + 1)
        if quota is not None:
            self._check(route, "sessions", quota.sessions)
            self._check(route, "sessions_per_principal", quota.sessions_per_principal)
        self._write(route, counts=quota is not None)
        return route

    async def take_over(self, route: Route, node: str, url: str) -> Route | None:
        found, taken = self._routes.get(route.key), route.owned_by(node, url)
        if found == taken:
            return taken
        if found is None or (found.node, found.token) != (route.node, route.token) or self._lives(found.node):
            return None
        self._write(taken, counts=taken.transport != CALLER)
        return taken

    async def refresh(self, routes: Sequence[Route]) -> list[Route]:
        lost = []
        for route in routes:
            found = self._routes.get(route.key)
            if found is None or found.token < route.token:
                self._write(route, counts=route.transport != CALLER)
            elif (found.token, found.node) != (route.token, route.node):
                lost.append(route)
        return lost

    def holds(self, routes: Sequence[Route]) -> None:
        """Nothing to do: here the routes themselves are counted."""

    async def release(self, route: Route, *, hand_over: bool = False) -> None:
        found = self._routes.get(route.key)
        if found is None or (found.node, found.token) != (route.node, route.token):
            return
        self._forget(route.key)
        if (left := found.left_behind(hand_over=hand_over)) is not None:
            self._routes[route.key] = left

    async def beat(self, node: NodeRecord) -> bool:
        known = self._lives(node.id)
        self._leases[node.id] = node, self._clock() + LEASE_S
        return known

    async def leave(self, node: str) -> None:
        self._leases.pop(node, None)

    async def nodes(self) -> list[NodeRecord]:
        self._leases = {node: lease for node, lease in self._leases.items() if self._lives(node)}
        return [record for _, (record, _) in sorted(self._leases.items())]

    async def reconnect(self, within_s: float) -> None:
        """Nothing to do: there is no connection."""

    def expects_an_end(self) -> bool:
        return False  # all nodes are in one process and die together

    def _lives(self, node: str) -> bool:
        lease = self._leases.get(node)
        return lease is not None and lease[1] > self._clock()

    def _check(self, route: Route, limit: SessionLimit, most: int | None) -> None:
        if most is None:
            return
        whose = _whose(route)[limit]
        nodes = {route.node, *filter(self._lives, self._leases)}
        used = sum(self._sessions[whose, node] for node in nodes)
        if used >= most:
            raise session_quota(limit, route.tenant, most, used)

    def _write(self, route: Route, *, counts: bool) -> None:
        self._forget(route.key)
        self._routes[route.key] = route
        if counts:
            self._counted.add(route.key)
            self._sessions.update((whose, route.node) for whose in _whose(route).values())

    def _forget(self, key: str) -> None:
        route = self._routes.pop(key, None)
        if route is None or key not in self._counted:
            return
        self._counted.discard(key)
        for whose in _whose(route).values():
            self._sessions[whose, route.node] -= 1
            if not self._sessions[whose, route.node]:
                del self._sessions[whose, route.node]


def _whose(route: Route) -> dict[str, object]:
    return {"sessions": route.tenant, "sessions_per_principal": (route.tenant, route.identity)}


class NoJournalStore:
    """Of a single node: there is no other node that could continue its sessions."""

    async def write(self, writes: Sequence[JournalWrite]) -> list[Outcome]:
        raise RoutesUnavailable

    async def take(self, key: str, token: int) -> Journaled | None:
        return None

    async def touch(self, journals: Sequence[tuple[str, int]]) -> list[str]:
        return []

    async def delete(self, journals: Sequence[tuple[str, int]]) -> None:
        pass
