"""This node among the others: its heartbeat, which nodes are dead, and where to look for a session."""

import math
from dataclasses import dataclass, replace

import anyio

from app.cluster.all_nodes import AllNodes
from app.cluster.node_status.overview import NodeOverview
from app.cluster.peers.dead_nodes import Silence
from app.cluster.routing.heartbeat import Heartbeat
from app.cluster.routing.router import Router
from app.node.parts.credentials import Credentials
from app.node.parts.opening import Opening
from app.node.parts.routes import Routes
from app.node.parts.sessions import Sessions
from app.sessions.loop_pause import StandstillGuard
from app.sessions.routes import NodeRecord

LAST_WORDS_S = 2.0  # for telling the others which sessions this node had; leases of the rest lapse


@dataclass(frozen=True, slots=True)
class Membership:
    """`guard` verifies ownership after a standstill; `probe` asks whether a silent node lives."""

    heartbeat: Heartbeat
    all_nodes: AllNodes
    guard: StandstillGuard
    probe: Silence
    router: Router

    @property
    def is_known(self) -> bool:
        """Whether the other nodes have heard of this one."""
        return math.isfinite(self.heartbeat.last_ok)


def join(opening: Opening, credentials: Credentials, routes: Routes, sessions: Sessions) -> Membership:
    """The others know this node from its first heartbeat on, and are told when it ends."""
    routing, ownership = routes.routing, routes.ownership
    heartbeat = Heartbeat(
        routing.store,
        lambda: _record(sessions.overview, routing.url),
        lambda: list(ownership),
        ownership.lost,
        opening.standstill.now,
        sessions.journals.rewrite_all,
    )
    doubt = credentials.authenticator.doubt_after_standstill
    deliver_held = opening.sessions.deliver_held
    guard = StandstillGuard(opening.standstill, ownership, heartbeat.prove_anew, deliver_held, doubt)
    probe = Silence(routing.peers.probe)
    router = Router(routing.store, opening.node_id, heartbeat.peers, heartbeat.departed, probe, ownership.has_ended)
    opening.stack.push_async_callback(_leave, heartbeat)
    all_nodes = AllNodes(
        sessions.overview,
        heartbeat.peers.values,
        routing.peers,
        routing.url,
        heartbeat.departed.values,
    )
    return Membership(heartbeat, all_nodes, guard, probe, router)


def node_leaves(node: str, routes: Routes, membership: Membership) -> None:
    """Another node leaves: from now on nothing is opened there, and no connection to it is kept."""
    membership.router.forget_node(node)
    record = membership.heartbeat.peers.get(node)
    if record is not None:
        membership.heartbeat.peers[node] = replace(record, draining=True)
        routes.routing.peers.retire(record.url)


def _record(overview: NodeOverview, url: str) -> NodeRecord:
    status = overview.status()
    return NodeRecord(
        status.id, url, status.version, status.started_at, status.sessions, status.processes, status.draining
    )


async def _leave(heartbeat: Heartbeat) -> None:
    """So that the others need not wait for its lease to lapse, however the node ends."""
    with anyio.move_on_after(LAST_WORDS_S, shield=True):
        await heartbeat.leave()
