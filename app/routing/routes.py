"""Route: which node owns a session. RouteStore: where all nodes look it up. Values and interfaces only.

A route is alive while its owner's lease is: one lease per node, not one per session, so that keeping ten thousand
sessions costs one command a second. Permission is never read from here: the owner checks again.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol, Self

LEASE_S = 5.0  # a node that has not been heard of for so long owns nothing any more
BEAT_S = 1.0  # how often it is heard of
NODE_ID_BYTES = 8  # random ones: a node that is started again is another node, whatever its name
NODE_TAG_CHARACTERS = 8  # of these, in hex, in front of the session ids that the node gives out
ENDED = "ended"  # the `transport` of what is left of a session that was taken over and has ended since
UNPROVEN = "?"  # what a probe finds where a node answers that does not say which: one with another SECRET_KEY
CALLER = "caller"  # the `transport` of a route that stands for all lines of a 2026-07-28 caller; it is no session

Identity = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Route:
    """Who owns a session (or all lines of one 2026-07-28 caller).

    `key` is a digest: who reads the store learns no session id. `token` grows with each owner; whoever has a smaller
    one owns nothing any more. `node` is empty where the last owner has handed the session over: free for the taking.
    `url` is the owner's address, for a node that has never met it.
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
        """The same with its next owner."""
        return replace(self, node=node, url=url, token=self.token + 1)

    def left_behind(self, *, hand_over: bool) -> Self | None:
        """What stays of it once it is released: free for another node; a mark for earlier owners, which stood still
        when it was taken over and must not bring back what has ended since; or nothing."""
        if hand_over:
            return replace(self, node="", url="")
        if self.token > 1 and self.transport != CALLER:
            return replace(self, node="", url="", transport=ENDED)
        return None


@dataclass(frozen=True, slots=True)
class Found:
    """What the store knows of a key: `owner_lives` says whether the owner's lease runs.

    `is_settling`: the store was emptied moments ago, so that no route means nothing yet.
    """

    route: Route | None
    owner_lives: bool
    is_settling: bool


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node as the others see it. `url` is its internal address (NODE_URL)."""

    id: str
    url: str
    version: str
    started_at: datetime
    sessions: int = 0
    processes: int = 0
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Quota:
    """A claim is refused where this many sessions are open already, over all nodes; None is no limit."""

    sessions: int | None = None
    sessions_per_principal: int | None = None


class RouteStore(Protocol):
    """Where routes are. Every method raises RoutesUnavailable, after a bounded time."""

    async def find(self, key: str) -> Found:
        """The route of a key. A record that was tampered with is none."""

    async def claim(self, route: Route, quota: Quota | None) -> Route:
        """Writes a new route; returns it, or the one that another living owner has for this key.

        With a quota it counts as a session until it is released; without one (a caller's lines) it does not.

        Raises:
            QuotaExceeded: the tenant, or the principal, has as many sessions as it may have.
        """

    async def take_over(self, route: Route, node: str, url: str) -> Route | None:
        """Makes `node` the owner if the route is still exactly this one and free, or its owner's lease has lapsed.

        None where somebody else was quicker, or the owner is back. Call it after the owner failed a probe.
        """

    async def refresh(self, routes: Sequence[Route]) -> list[Route]:
        """Says again that these are ours, and writes what has been lost; returns those that others have taken, also
        where they have ended there."""

    def holds(self, routes: Sequence[Route]) -> None:
        """What the node holds, all of it: nothing else counts as its sessions. To be said before each beat."""

    async def release(self, route: Route, *, hand_over: bool = False) -> None:
        """Ends the route, or frees it for another node; nothing happens where it is not ours any more."""


class NodeStore(Protocol):
    """Where nodes are. Every method raises RoutesUnavailable, after a bounded time."""

    async def beat(self, node: NodeRecord) -> bool:
        """Renews the node's lease; False where the store had forgotten it: then all routes must be refreshed."""

    async def leave(self, node: str) -> None:
        """The node has stopped: its lease ends at once."""

    async def nodes(self) -> list[NodeRecord]:
        """Every node whose lease runs, by id."""

    async def reconnect(self, within_s: float) -> None:
        """Gives up the connection there is; returns once another one has answered. Raises RoutesUnavailable also where
        none has within this time."""

    def expects_an_end(self) -> bool:
        """Whether a lease of those was not renewed in time, so that it is worth looking again soon."""


def is_there(answer: str | None, node: str) -> bool:
    """Whether this answer to a probe of the node's address keeps it from being given up: it is there, or may be."""
    return answer in (node, UNPROVEN)


def session_key(session_id: str) -> str:
    """The key of a session's route."""
    return hashlib.sha256(b"session\0" + session_id.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def caller_key(identity: Identity, tenant: str, backend: str) -> str:
    """The key of all lines that one 2026-07-28 caller has to a backend."""
    text = "\0".join(["caller", *identity, tenant, backend])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def new_node_id(name: str | None) -> str:
    """The id of a node for as long as it runs."""
    run = secrets.token_hex(NODE_ID_BYTES)
    return f"{name}-{run}" if name else run


def tag_of(node: str) -> str:
    """What stands in front of the session ids of the node with this id: `name.run`, or `run` where it has no name.

    The name, up to the first dot, is what a balancer can route by; together with the run it says which node it was.
    """
    name, dash, run = node.rpartition("-")
    return f"{name}.{run[:NODE_TAG_CHARACTERS]}" if dash else run[:NODE_TAG_CHARACTERS]


def maker_of(session_id: str) -> str | None:
    """The tag of the node that gave this session id out; None where it says none."""
    tag, dot, _ = session_id.rpartition(".")
    return tag if dot and len(tag.rpartition(".")[2]) == NODE_TAG_CHARACTERS else None
