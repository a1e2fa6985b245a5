"""This node among the others: its beats, whom it takes for dead, and where it looks for a session."""

from dataclasses import dataclass, replace

import anyio

from app.node.parts.opening import Opening
from app.node.parts.routes import Routes
from app.node.parts.sessions import Sessions
from app.peers.dead_peers import Silence
from app.routing.heartbeat import Heartbeat
from app.routing.router import Router
from app.routing.routes import NodeRecord
from app.sessions.standstill import StandstillGuard
from app.this_node.overview import NodeOverview

LAST_WORDS_S = 2.0  # to tell the others what this node had; what they are not told lapses


@dataclass(frozen=True, slots=True)
class Membership:
    """`guard` proves after a standstill what is still ours; `probe` asks whether a silent node lives."""

    heartbeat: Heartbeat
    guard: StandstillGuard
    probe: Silence
    router: Router


def join(opening: Opening, routes: Routes, sessions: Sessions) -> Membership:
    """Nobody knows this node before its first beat. However it ends, it says so."""
    routing, ownership = routes.routing, routes.ownership
    heartbeat = Heartbeat(
        routing.store,
        lambda: _record(sessions.overview, routing.url),
        lambda: list(ownership),
        ownership.lost,
        sessions.fence.now,
        sessions.journals.rewrite_all,
    )
    guard = StandstillGuard(sessions.fence, sessions.registry, ownership, heartbeat.prove_anew)
    probe = Silence(routing.peers.probe)
    router = Router(routing.store, opening.node_id, heartbeat.peers, heartbeat.departed, probe, ownership.has_ended)
    opening.stack.push_async_callback(_leave, heartbeat)
    return Membership(heartbeat, guard, probe, router)


def node_leaves(node: str, routes: Routes, membership: Membership) -> None:
    """Another node has said that it leaves: nothing is opened there any more, and no connection to it is kept."""
    membership.router.forget_node(node)
    record = membership.heartbeat.peers.get(node)
    if record is not None:
        membership.heartbeat.peers[node] = replace(record, draining=True)
        routes.routing.peers.retire(record.url)


def _record(overview: NodeOverview, url: str) -> NodeRecord:
    """This node as the others see it."""
    status = overview.status()
    return NodeRecord(
        status.id, url, status.version, status.started_at, status.sessions, status.processes, status.draining
    )


async def _leave(heartbeat: Heartbeat) -> None:
    """However the node ends: the others need not wait for its lease to lapse."""
    with anyio.move_on_after(LAST_WORDS_S, shield=True):
        await heartbeat.leave()
