"""Other nodes, if there can be any: who has which session, and what all of them must know."""

from dataclasses import dataclass

from app.auth.sealing import Sealer
from app.cluster.opening import Routing, open_routing
from app.node.parts.opening import Opening
from app.peers.client import Deadlines
from app.sessions.ownership import Ownership

SILENT_COMMENTS = 2.5  # a stream of another node's that misses so many of its keep-alive comments is dead


@dataclass(frozen=True, slots=True)
class Routes:
    """`ownership` has those of this node."""

    routing: Routing
    ownership: Ownership


async def open_routes(opening: Opening, sealer: Sealer) -> Routes:
    """Whether Redis is there or not."""
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
    ownership = Ownership(routing.store, opening.node_id, routing.url)
    return Routes(routing, await opening.stack.enter_async_context(ownership))
