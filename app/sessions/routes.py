"""Route: which node owns a session. RouteStore: where all nodes look it up. Values and interfaces only.

A route is valid while its owner has a lease: one per node, not one per session, so that keeping ten thousand sessions
costs one command a second. A route grants no permission: its owner checks each request again.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol, Self

LEASE_S = 5.0  # after so long without a heartbeat other nodes may take over a node's sessions
BEAT_S = 1.0  # between two heartbeats
NODE_ID_BYTES = 8  # random ones: after a restart a node is another node, even with the same name
ENDED = "ended"  # the `transport` of what remains of a session that was taken over and then ended
UNPROVEN = "?"  # the answer to a probe of a node with another SECRET_KEY, which does not say which node it is
CALLER = "caller"  # the `transport` of a route for all pooled sessions of a 2026-07-28 caller; it counts as no session

Identity = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Route:
    """Which node owns a session, or all pooled sessions of one 2026-07-28 caller.

    `key` is a digest, so that readers of the store learn no session ids. `token` grows with each owner; a node with a
    smaller one has lost the session. `node` is empty after a hand-over: any node may take the session. `url` is the
    owner's address, for nodes that do not know it yet.
    """

    key: str
    node: str
    url: str
    token: int
    tenant: str
    backend: str
    identity: Identity
    transport: str

    def owned_by(self, node: str, url: str) -> Self:
        """The route under its next owner."""
        return replace(self, node=node, url=url, token=self.token + 1)

    def left_behind(self, *, hand_over: bool) -> Self | None:
        """What remains after a release: a route that any node may take; a mark that keeps earlier owners, which stood
        still when it was taken over, from bringing back an ended session; or None."""
        if hand_over:
            return replace(self, node="", url="")
        if self.token > 1 and self.transport != CALLER:
            return replace(self, node="", url="", transport=ENDED)
        return None


@dataclass(frozen=True, slots=True)
class Found:
    """`owner_lives`: the owner has a lease. `is_settling`: the store was emptied moments ago, and routes may be missing
    that nodes have not written again yet."""

    route: Route | None
    owner_lives: bool
    is_settling: bool


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node as the others see it. `url` is its internal address (NODE_URL)."""

    id: str
    url: str
    version: str
    started_at: datetime
    sessions: int = 0
    processes: int = 0
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Quota:
    """How many sessions may be open on all nodes together; None is no limit."""

    sessions: int | None = None
    sessions_per_principal: int | None = None


class RouteStore(Protocol):
    """Every method raises RoutesUnavailable after a bounded time."""

    async def find(self, key: str) -> Found:
        """The route with this key. A record that was tampered with counts as absent."""

    async def claim(self, route: Route, quota: Quota | None) -> Route:
        """Writes a new route; returns it, or the one that another living owner has for this key. With a quota it counts
        as a session until it is released, and QuotaExceeded is raised if there are too many; a caller's has none."""

    async def take_over(self, route: Route, node: str, url: str) -> Route | None:
        """Makes `node` the owner if the route has not changed and its owner's lease has ended, or it has none; else
        None. Only for a route whose owner failed a probe."""

    async def refresh(self, routes: Sequence[Route]) -> list[Route]:
        """Keeps these routes of this node from expiring, and writes missing ones again; returns those that other nodes
        have taken over, whether they still have them or not."""

    def holds(self, routes: Sequence[Route]) -> None:
        """To be called before each beat with all routes of this node: no others count as its sessions."""

    async def release(self, route: Route, *, hand_over: bool = False) -> None:
        """Ends the route, or frees it for another node; has no effect if another node owns it by now."""


class NodeStore(Protocol):
    """Every method raises RoutesUnavailable after a bounded time."""

    async def beat(self, node: NodeRecord) -> bool:
        """Renews the node's lease; False if the store had lost it: then all routes must be refreshed."""

    async def leave(self, node: str) -> None:
        """Ends the node's lease."""

    async def nodes(self) -> list[NodeRecord]:
        """All nodes with a lease, by id."""

    async def reconnect(self, within_s: float) -> None:
        """Drops the connection and waits until a new one answers; RoutesUnavailable if none does within this time."""

    def expects_an_end(self) -> bool:
        """Whether a lease was not renewed in time and will end soon, so that nodes should be read again soon."""


def is_there(answer: str | None, node: str) -> bool:
    """Whether, after this answer to a probe of the node's URL, it has to be taken for alive."""
    return answer in (node, UNPROVEN)


def caller_key(identity: Identity, tenant: str, backend: str) -> str:
    """The route key for all pooled sessions of one 2026-07-28 caller with a backend."""
    text = "\0".join(["caller", *identity, tenant, backend])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def new_node_id(name: str | None) -> str:
    """A new id for a node with this name, for as long as it runs."""
    run = secrets.token_hex(NODE_ID_BYTES)
    return f"{name}-{run}" if name else run
