"""Router: finds out where a session is that this node does not have. It neither forwards nor takes over."""

import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

from app.errors import RoutesSettling, SessionNotFound
from app.sessions.routes import Found, NodeRecord, Route, RouteStore, is_there
from app.sessions.session_ids import maker_of, tag_of

REMEMBER_S = 2.0  # how long a route is cached; if it is outdated, the node it names refuses the request
MAX_REMEMBERED = 50_000
FORGET_AT_ONCE = 2  # expired routes dropped for each new one: more than come

Probe = Callable[[str], Awaitable[str | None]]  # the id of the node that answers at this URL, if one does


class There(NamedTuple):
    """Another node has the session."""

    node: NodeRecord


class Free(NamedTuple):
    """No node has the session: its owner has handed it over, or is dead."""

    route: Route


class Router:
    """Looks sessions up. `peers` are the other living nodes by id, `departed` those that recently left that list; the
    heartbeat keeps both up to date. `has_ended` knows the keys of sessions that have ended on this node."""

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
            SessionNotFound: it does not exist.
            RoutesUnavailable: the store does not answer, or was emptied a moment ago.
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
        """The other node that had the session moments ago, if that node is alive."""
        entry = self._remembered.get(key)
        if entry is None or entry[1] < time.monotonic() or entry[0].node not in self._peers:
            return None
        return There(self._peers[entry[0].node])

    def remember(self, route: Route) -> There:
        """Caches a route of another node."""
        now = time.monotonic()
        self._remembered.pop(route.key, None)  # keeps the oldest first
        for key in [key for key, (_, until) in islice(self._remembered.items(), FORGET_AT_ONCE) if until < now]:
            del self._remembered[key]
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[route.key] = route, now + REMEMBER_S
        return self._there(route)

    def _there(self, route: Route) -> There:
        return There(self._peers.get(route.node) or _unheard(route.node, route.url))

    def forget(self, key: str) -> None:
        """Drops a cached route that turned out to be wrong."""
        self._remembered.pop(key, None)

    def forget_node(self, node: str) -> None:
        """Drops the cached routes of a node that is leaving."""
        self._remembered = {key: entry for key, entry in self._remembered.items() if entry[0].node != node}

    def any_peer(self) -> NodeRecord | None:
        """The other node with the fewest sessions; None if no other node takes new ones."""
        able = [node for node in self._peers.values() if not node.draining]
        return min(able, key=lambda node: node.sessions, default=None)

    async def meet(self, node: str, url: str) -> NodeRecord | None:
        """The node at this URL, if it is alive: also one that is not, or no longer, in the list of nodes."""
        known = self._peers.get(node)
        if known is None and is_there(await self._probe(url), node):
            return _unheard(node, url)
        return known

    async def _guess(self, found: Found, key: str, session_id: str | None) -> There:
        """Without a route: 1. not found, if the session ended here; 2. the node that made the id, if it is alive;
        3. RoutesSettling, if the store was emptied moments ago; 4. not found."""
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
        """The node, if it is alive without a lease: the store may have lost it together with the route."""
        return node if node is not None and is_there(await self._probe(node.url), node.id) else None

    async def _owner(self, route: Route, *, lives: bool) -> There | Free:
        """A node with a lease is the owner. One without has lost the session only if it does not answer either."""
        if lives:
            return self.remember(route)
        if is_there(await self._probe(route.url), route.node):
            return self._there(route)
        return Free(route)


def _tagged(nodes: Mapping[str, NodeRecord], tag: str) -> NodeRecord | None:
    return next((node for node in nodes.values() if tag_of(node.id) == tag), None)


def _unheard(node: str, url: str) -> NodeRecord:
    """A node that is not in the list of nodes."""
    return NodeRecord(node, url, "", datetime.fromtimestamp(0, UTC))
