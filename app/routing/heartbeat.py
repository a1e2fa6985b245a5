"""Heartbeat: says each second that this node lives and what it holds."""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import anyio

from app.errors import OwnershipUnknown, RoutesUnavailable
from app.routing.routes import BEAT_S, CALLER, LEASE_S, NodeRecord, NodeStore, Route, RouteStore
from app.routing.session_counts import TURN_BEATS, Rotation

LOT = 500  # routes per command, and of each kind per beat: 300,000 within the time that routes are kept
HURRY_S = 0.25  # between beats while another node's lease is about to end: whoever waits for it waits for that
RENEW_S = 2.0  # how long a node that stood still tries to make a new connection, before it goes on without proof
MAX_DEPARTED = 64  # nodes that have left the list and may live all the same; above it the first to leave is forgotten

log = logging.getLogger(__name__)


class Store(RouteStore, NodeStore, Protocol):
    """Where routes and nodes are."""


class Heartbeat:
    """`peers` are the other living nodes, as of the last beat that reached the store, sent at `last_ok`; `departed` are
    the last that were among them and are not any more. `clock` goes on while the machine is suspended; `on_forgotten`
    hears that the store has lost what it had of this node."""

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
        self._losses = 0  # how often the store had forgotten us
        self.peers: dict[str, NodeRecord] = {}
        self.departed: dict[str, NodeRecord] = {}
        self._on_forgotten = on_forgotten
        self._has_left = False
        self.is_ok = False
        self.last_ok = -math.inf

    async def run(self) -> None:
        """Beats until it is cancelled, whatever the store does."""
        while not self._has_left:
            began_at = self._clock()
            await self.beat()
            every_s = HURRY_S if self._store.expects_an_end() else BEAT_S
            await anyio.sleep(max(0.0, began_at + every_s - self._clock()))

    async def leave(self) -> None:
        """Ends the lease at once, and the beats. For a node that owns nothing any more; idempotent."""
        has_left, self._has_left = self._has_left, True
        if not has_left:
            try:
                await self._store.leave(self._node().id)
            except RoutesUnavailable:
                log.info("Could not end this node's lease; it expires by itself")

    async def beat(self) -> None:
        """One beat: the lease, the others, and some of our routes, or all where the store has forgotten us."""
        try:
            await self._renew()
            if self._must_prove:
                await self.prove()
            else:
                await self._refresh(self._next_lot())
        except RoutesUnavailable:
            self._failed()
        except Exception:
            log.exception("A heartbeat has failed")
            self._failed()

    async def prove(self) -> None:
        """Refreshes every route; afterwards what we still hold is ours, and `on_lost` has been told of the rest.

        Raises:
            RoutesUnavailable: the store does not answer; nothing is known.
        """
        self._must_prove, losses = True, self._losses
        keys = [route.key for route in self._routes()]
        renew_at = self._clock() + BEAT_S
        for start in range(0, len(keys), LOT):
            if self._clock() >= renew_at:  # so many that the lease would end meanwhile
                renew_at = self._clock() + BEAT_S
                await self._renew()
            await self._refresh(self._still_ours(keys[start : start + LOT]))
        self._must_prove = self._losses != losses

    async def prove_anew(self, stood_still_at: float) -> None:
        """After a gap of this node's: renews the lease and proves all, over a connection that is made now. On the one
        from before nobody may be listening, and as long as the lease is over a route can be taken right after it was
        proved. Tries for RENEW_S.

        Args:
            stood_still_at: when the gap began, by the heartbeat's clock.

        Raises:
            OwnershipUnknown: the store does not answer, and others may own by now what this node does.
            RoutesUnavailable: the store does not answer. Nothing was taken in the gap: the lease went on through it,
                or this node had gone on without the store for longer than a lease before.
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
            log.info("This node reaches the store of routes again")
        self.is_ok, self.last_ok = True, sent_at

    def _heard_of(self, peers: dict[str, NodeRecord]) -> None:
        """Changes both in place: whoever looks at them sees it."""
        for node, record in self.peers.items():
            if node not in peers:
                self.departed[node] = record
        for node in [node for node in self.departed if node in peers]:
            del self.departed[node]
        while len(self.departed) > MAX_DEPARTED:
            del self.departed[next(iter(self.departed))]
        self.peers.clear()
        self.peers.update(peers)

    async def _refresh(self, lot: Sequence[Route]) -> None:
        for route in await self._store.refresh(lot) if lot else ():
            log.warning("Another node has taken a route over: token %d", route.token)
            self._on_lost(route)

    def _next_lot(self) -> list[Route]:
        """What may be lost one by one: the whole store would have been noticed. With each beat those that nothing else
        tells of, the others within a minute."""
        named: dict[str, Route] = {}
        only_there: dict[str, Route] = {}
        for route in self._routes():
            (named if _is_named_by_its_id(route) else only_there)[route.key] = route
        lot = [only_there.get(key) for key in self._often.next(only_there, LOT)]
        lot += [named.get(key) for key in self._rotation.next(named, LOT)]
        return [route for route in lot if route is not None]

    def _still_ours(self, keys: list[str]) -> list[Route]:
        wanted = set(keys)
        return [route for route in self._routes() if route.key in wanted]

    def _failed(self) -> None:
        if self.is_ok:
            log.warning("This node cannot reach the store of routes; its own sessions go on")
        self.is_ok = False

    def __repr__(self) -> str:
        return f"<Heartbeat {'ok' if self.is_ok else 'failing'} [{len(self.peers)} peers]>"


def _is_named_by_its_id(route: Route) -> bool:
    """Whether a node that finds no route asks us all the same: the id of a session says who gave it out, and that is
    its first owner."""
    return route.token == 1 and route.transport != CALLER
