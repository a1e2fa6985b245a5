"""open_routing: a node's connections to Redis and to other nodes, or substitutes for a single node."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.cluster.peers.client import Deadlines, PeerClient
from app.cluster.peers.credentials import NodeCredentials
from app.cluster.routing.heartbeat import Store
from app.cluster.routing.memory_store import MemoryStore, NoJournalStore
from app.cluster.routing.records import Seal
from app.errors import SettingsError
from app.sessions.streams.journal_store import JournalStore
from app.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from app.cluster.redis.connection import RedisConnection
    from app.cluster.routing.notices import Notices

FIRST_ATTEMPT_S = 2.5  # to connect and ask
OTHER_KEY = (
    "TRUNKLINE_SECRET_KEY: the nodes that use this Redis have another one; all must have the same. To change it, stop "
    "every node, and start them with the new key ten minutes later, or at once after `redis-cli DEL trunkline:key`"
)


@dataclass(frozen=True, slots=True)
class Routing:
    """`redis` and `notices` are None on a single node."""

    node: str
    url: str
    store: Store
    journals: JournalStore
    credentials: NodeCredentials
    peers: PeerClient
    redis: "RedisConnection | None"
    notices: "Notices | None"

    @property
    def is_alone(self) -> bool:
        """Whether there cannot be other nodes."""
        return self.redis is None


@asynccontextmanager
async def open_routing(  # noqa: PLR0913 - once, of plain values
    node: str,
    url: str,
    redis_url: str | None,
    secret_key: bytes,
    seal: Seal,
    metrics: Metrics,
    *,
    claim_wait_s: float | None = None,
    deadlines: Deadlines = Deadlines(),  # noqa: B008 - immutable
) -> AsyncIterator[Routing]:
    """Opens the connections, whether Redis answers or not, and closes them. `claim_wait_s` is how long a new session
    may wait for a slow Redis. Raises SettingsError if the nodes that use this Redis have another secret key."""
    credentials = NodeCredentials(secret_key, node, time.time)
    peers = PeerClient(credentials, deadlines)
    try:
        if redis_url is None:
            yield Routing(node, url, MemoryStore(), NoJournalStore(), credentials, peers, None, None)
            return
        # Here, because redis-py takes 0.1 s and 8 MB, and a single node needs nothing of it.
        from app.cluster.redis.connection import RedisConnection  # noqa: PLC0415
        from app.cluster.redis.key_check import check_value  # noqa: PLC0415
        from app.cluster.routing.journal_stores import RedisJournalStore  # noqa: PLC0415
        from app.cluster.routing.notices import Notices  # noqa: PLC0415
        from app.cluster.routing.redis_store import RedisStore  # noqa: PLC0415

        errors, check = metrics.route_store_errors, check_value(secret_key)
        async with (
            RedisConnection(redis_url, errors, check=check) as redis,
            RedisConnection(redis_url, errors, check=check, use="journals") as for_journals,
        ):
            await redis.first_attempt(FIRST_ATTEMPT_S)
            if redis.has_other_key:
                raise SettingsError(OTHER_KEY)
            store = RedisStore(redis, seal, errors, patience_s=claim_wait_s)
            journals = RedisJournalStore(for_journals)
            yield Routing(node, url, store, journals, credentials, peers, redis, Notices(redis, seal, node))
    finally:
        await peers.aclose()
