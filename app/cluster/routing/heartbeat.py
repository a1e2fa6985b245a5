"""Heartbeat: once a second, renews this node's lease and refreshes some of its routes."""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import anyio

from app.cluster.routing._session_counts import TURN_BEATS, Rotation
from app.errors import OwnershipUnknown, RoutesUnavailable
from app.sessions.routes import BEAT_S, CALLER, LEASE_S, NodeRecord, NodeStore, Route, RouteStore

LOT = 500  # routes per command, and of each kind per beat: 300,000 before the first of them expires
HURRY_S = 0.25  # between beats while another node's lease is about to end: requests may be waiting for that
RENEW_S = 2.0  # how long a node tries to reconnect after a standstill, before it goes on unverified
MAX_DEPARTED = 64  # nodes without a lease that may still be alive; above it the first to leave is forgotten

log = logging.getLogger(__name__)


class Store(RouteStore, NodeStore, Protocol):
    """Holds routes and nodes."""


class Heartbeat:
    """`peers` are the other living nodes, as of the last beat that reached the store, sent at `last_ok`; `departed` are
    the last ones that left that list. `clock` must not stop while the machine is suspended; `on_forgotten` is called
    when the store has lost this node's records."""

    def __init__(
        self,
        store: Store,
        node: Callable[[], NodeRecord],
        routes: Callable[[], Sequence[Route]],
        on_lost: Callable[[Route], None],
        clock: Callable[[], float],
        on_forgotten: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._node, self._routes, self._on_lost, self._clock = store, node, routes, on_lost, clock
        self._rotation, self._often = Rotation(TURN_BEATS), Rotation(1)
        self._must_prove = True
        self._losses = 0  # how often the store had lost our records
        self.peers: dict[str, NodeRecord] = {}
        self.departed: dict[str, NodeRecord] = {}
        self._on_forgotten = on_forgotten
        self._has_left = False
        self.is_ok = False
        self.last_ok = -math.inf

    async def run(self) -> None:
        """Beats until cancelled, whatever the store does."""
        while not self._has_left:
            began_at = self._clock()
            await self.beat()
            every_s = HURRY_S if self._store.expects_an_end() else BEAT_S
            await anyio.sleep(max(0.0, began_at + every_s - self._clock()))

    async def leave(self) -> None:
        """Ends the lease and stops the beats. For a node that no longer owns anything; idempotent."""
        has_left, self._has_left = self._has_left, True
        if not has_left:
            try:
                await self._store.leave(self._node().id)
            except RoutesUnavailable:
                log.info("Could not end this node's lease; it will expire by itself")

    async def beat(self) -> None:
        """Renews the lease, reads the other nodes, and refreshes some routes: all if the store has lost them."""
        try:
            await self._renew()
            if self._must_prove:
                await self.prove()
            else:
                await self._refresh(self._next_lot())
        except RoutesUnavailable:
            self._failed()
        except Exception:
            log.exception("Heartbeat failed; will retry")
            self._failed()

    async def prove(self) -> None:
        """Verifies every route and reports lost ones to `on_lost`. Raises RoutesUnavailable if the store is away."""
        self._must_prove, losses = True, self._losses
        keys = [route.key for route in self._routes()]
        renew_at = self._clock() + BEAT_S
        for start in range(0, len(keys), LOT):
            if self._clock() >= renew_at:  # so many routes that the lease would end meanwhile
                renew_at = self._clock() + BEAT_S
                await self._renew()
            lot = set(keys[start : start + LOT])
            await self._refresh([route for route in self._routes() if route.key in lot])
        self._must_prove = self._losses != losses

    async def prove_anew(self, stood_still_at: float) -> None:
        """After a standstill that began at `stood_still_at` (heartbeat's clock): renews the lease and verifies all
        routes, for up to RENEW_S. It reconnects first, because the old connection may be dead, and renews first,
        because without a lease a route can be taken right after it was verified.

        Raises:
            OwnershipUnknown: the store does not answer, and other nodes may have taken over sessions of this one.
            RoutesUnavailable: the store does not answer, but no session was taken: the lease outlasted the standstill,
                or had ended long before it.
        """
        woke_at = self._clock()
        if stood_still_at < self.last_ok + LEASE_S <= woke_at:
            self._must_prove = True
        must_prove = self._must_prove
        while True:
            try:
                await self._store.reconnect(max(0.0, woke_at + RENEW_S - self._clock()))
                await self._renew()
                return await self.prove()
            except RoutesUnavailable:
                if self._clock() >= woke_at + RENEW_S:
                    if must_prove:
                        raise OwnershipUnknown from None
                    raise

    async def _renew(self) -> None:
        node = self._node()
        if self._has_left:
            return
        self._store.holds(self._routes())
        sent_at = self._clock()
        if not await self._store.beat(node):
            self._must_prove = True
            self._losses += 1
            self._on_forgotten()
        self._heard_of({peer.id: peer for peer in await self._store.nodes() if peer.id != node.id})
        if not self.is_ok and math.isfinite(self.last_ok):
            log.info("The route store (Redis) can be used again")
        self.is_ok, self.last_ok = True, sent_at

    def _heard_of(self, peers: dict[str, NodeRecord]) -> None:
        """Changes both in place, because others hold references to them."""
        for node in self.peers.keys() - peers.keys():
            self.departed[node] = self.peers[node]
        for node in self.departed.keys() & peers.keys():
            del self.departed[node]
        while len(self.departed) > MAX_DEPARTED:
            del self.departed[next(iter(self.departed))]
        self.peers.clear()
        self.peers.update(peers)

    async def _refresh(self, lot: Sequence[Route]) -> None:
        for route in await self._store.refresh(lot) if lot else ():
            log.warning("Another node has taken over a route: token %d", route.token)
            self._on_lost(route)

    def _next_lot(self) -> list[Route]:
        """Routes to refresh because single ones may get lost: those that cannot be found otherwise with each beat, the
        others within a minute."""
        named: dict[str, Route] = {}
        only_there: dict[str, Route] = {}
        for route in self._routes():
            (named if _is_named_by_its_id(route) else only_there)[route.key] = route
        lot = [only_there.get(key) for key in self._often.next(only_there, LOT)]
        lot += [named.get(key) for key in self._rotation.next(named, LOT)]
        return [route for route in lot if route is not None]

    def _failed(self) -> None:
        if self.is_ok:
            log.warning("The route store (Redis) cannot be used; this node goes on serving its own sessions")
        self.is_ok = False


def _is_named_by_its_id(route: Route) -> bool:
    """Whether other nodes find us without the route: a session id names the node that made it, its first owner."""
    return route.token == 1 and route.transport != CALLER
