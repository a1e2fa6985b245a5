"""Connections to other nodes, if there can be any, and the routes of this node's sessions."""

from dataclasses import dataclass

from app.auth.sealing import Sealer
from app.cluster.opening import Routing, open_routing
from app.cluster.peers.client import Deadlines
from app.concurrency.event import Event
from app.node.parts.opening import Opening
from app.sessions.ownership import Ownership
from app.sessions.routes import Route

SILENT_COMMENTS = 2.5  # a stream from another node counts as dead after so many missing keep-alive comments


@dataclass(frozen=True, slots=True)
class Routes:
    """`ownership` has the routes of this node; `caller_lost` tells that another node has taken a caller."""

    routing: Routing
    ownership: Ownership
    caller_lost: Event[[Route]]


async def open_routes(opening: Opening, sealer: Sealer) -> Routes:
    """Does not wait for a Redis that is away."""
    settings = opening.settings
    routing = await opening.stack.enter_async_context(
        open_routing(
            opening.node_id,
            settings.node_url or "",
            settings.redis_url,
            settings.secret_key,
            sealer,
            opening.metrics,
            claim_wait_s=settings.pool_wait_s,
            deadlines=Deadlines(idle_s=SILENT_COMMENTS * settings.keepalive_s),
        )
    )
    caller_lost = Event[[Route]]()
    ownership = Ownership(
        routing.store,
        opening.node_id,
        routing.url,
        on_session_lost=opening.sessions.lost,
        on_caller_lost=caller_lost.tell,
    )
    return Routes(routing, await opening.stack.enter_async_context(ownership), caller_lost)
