"""Router: where a session is that this node does not have. Decides; forwarding and taking over are done by others."""

import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

from app.errors import RoutesSettling, SessionNotFound
from app.routing.routes import Found, NodeRecord, Route, RouteStore, is_there, maker_of, tag_of

REMEMBER_S = 2.0  # how long a route is believed without asking again; a wrong one is refused by the node it names
MAX_REMEMBERED = 50_000
FORGET_AT_ONCE = 2  # old routes for each new one: more go than come

Probe = Callable[[str], Awaitable[str | None]]  # the id of the node that answers at this address, if one does


class There(NamedTuple):
    """Another node has it."""

    node: NodeRecord


class Free(NamedTuple):
    """Nobody has it any more: its owner has handed it over, or is gone."""

    route: Route


class Router:
    """Looks sessions up. `peers` are the living nodes by id, this one left out, and `departed` those that were there
    and are not heard of any more; both are kept up to date by the heartbeat. `has_ended` knows keys of sessions that
    have ended on this node."""

    def __init__(
        self,
        store: RouteStore,
        me: str,
        peers: Mapping[str, NodeRecord],
        departed: Mapping[str, NodeRecord],
        probe: Probe,
        has_ended: Callable[[str], bool] = lambda key: False,
    ) -> None:
        self._store, self._me, self._probe, self._has_ended = store, me, probe, has_ended
        self._peers, self._departed = peers, departed
        self._remembered: dict[str, tuple[Route, float]] = {}

    async def locate(self, key: str, session_id: str | None = None) -> There | Route | Free:
        """Where the session with this route key is; a Route is our own, of a session that has just ended here.

        Raises:
            SessionNotFound: nowhere.
            RoutesUnavailable: that cannot be found out now.
        """
        remembered = self.remembered(key)
        if remembered is not None:
            return remembered
        found = await self._store.find(key)
        route = found.route
        if route is None:
            return await self._guess(found, key, session_id)
        if route.node == self._me:
            return route
        if not route.node:
            return Free(route)
        return await self._owner(route, lives=found.owner_lives)

    def remembered(self, key: str) -> There | None:
        """The other node that had it moments ago, if it lives."""
        entry = self._remembered.get(key)
        if entry is None or entry[1] < time.monotonic() or entry[0].node not in self._peers:
            return None
        return There(self._peers[entry[0].node])

    def remember(self, route: Route) -> There:
        """A route of another node, believed for a moment."""
        now = time.monotonic()
        self._remembered.pop(route.key, None)  # so that the oldest stand first
        for key in [key for key, (_, until) in islice(self._remembered.items(), FORGET_AT_ONCE) if until < now]:
            del self._remembered[key]
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[route.key] = route, now + REMEMBER_S
        return There(self._peers.get(route.node) or _unheard(route.node, route.url))

    def forget(self, key: str) -> None:
        """What was remembered is wrong: its node has refused."""
        self._remembered.pop(key, None)

    def forget_node(self, node: str) -> None:
        """The node is leaving, and has handed over what it had."""
        self._remembered = {key: entry for key, entry in self._remembered.items() if entry[0].node != node}

    def any_peer(self) -> NodeRecord | None:
        """The living node with the fewest sessions; None where there is no other that takes new ones."""
        able = [node for node in self._peers.values() if not node.draining]
        return min(able, key=lambda node: node.sessions, default=None)

    async def meet(self, node: str, url: str) -> NodeRecord | None:
        """The node at this address, if it lives: also one that has not been heard of yet, or not for a while."""
        known = self._peers.get(node)
        if known is None and is_there(await self._probe(url), node):
            return _unheard(node, url)
        return known

    async def _guess(self, found: Found, key: str, session_id: str | None) -> There:
        """No route. 1. It has ended here. 2. The node that gave the id out lives: it knows. 3. The store is new: later.
        4. There is none."""
        if self._has_ended(key):
            raise SessionNotFound
        tag = None if session_id is None else maker_of(session_id)
        if tag is not None and tag != tag_of(self._me):
            maker = _tagged(self._peers, tag) or await self._answering(_tagged(self._departed, tag))
            if maker is not None:
                return There(maker)
        if found.is_settling:
            raise RoutesSettling
        raise SessionNotFound

    async def _answering(self, node: NodeRecord | None) -> NodeRecord | None:
        """The node, if it lives all the same: the store may have lost its lease together with the route."""
        return node if node is not None and is_there(await self._probe(node.url), node.id) else None

    async def _owner(self, route: Route, *, lives: bool) -> There | Free:
        """Its lease runs: it is there. It has lapsed: only a node that does not answer has lost what it owns."""
        if lives:
            return self.remember(route)
        if is_there(await self._probe(route.url), route.node):
            return There(self._peers.get(route.node) or _unheard(route.node, route.url))
        return Free(route)

    def __repr__(self) -> str:
        return f"<Router of {self._me} [{len(self._peers)} peers, {len(self._remembered)} remembered]>"


def _tagged(nodes: Mapping[str, NodeRecord], tag: str) -> NodeRecord | None:
    return next((node for node in nodes.values() if tag_of(node.id) == tag), None)


def _unheard(node: str, url: str) -> NodeRecord:
    """A node that this one has not heard of."""
    return NodeRecord(node, url, "", datetime.fromtimestamp(0, UTC))
