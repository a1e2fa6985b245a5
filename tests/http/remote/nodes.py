"""Two nodes on one event loop, over real sockets: A sends everything on to B, whose endpoints are the test's own."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import AsyncMock

import anyio
import uvicorn

from app.auth.authenticator import CredentialExpiry
from app.auth.credential_uses import CredentialUses
from app.cluster.peers.client import Deadlines, PeerClient
from app.cluster.peers.credentials import NodeCredentials
from app.cluster.peers.passing import Passing
from app.domain import BackendSpec, Principal
from app.errors import GatewayError, Unauthenticated
from app.http.edge.http_protocol import HttpProtocol
from app.http.remote.forwarding import Forwarding
from app.http.remote.late_heads import LateHeads
from app.http.remote.peer_requests import PeerRequests
from app.http.transports.front import Front
from app.http.transports.request import ClientGone, McpRequest
from app.http.transports.request_log import RequestLog
from app.http.transports.rest import Rest
from app.sessions.routes import NodeRecord
from app.telemetry.metrics import Metrics
from tests.cluster.peers.rig import PromptServer
from tests.http.transports.conftest import door

LIMIT = 8 << 20
ALICE = Principal("acme", "key", "alice", frozenset({"mcp:connect"}))
KEY = b"k" * 32
MCP = "/t/acme/echo/mcp"

Endpoint = Callable[[McpRequest], Awaitable[None]]


class OneKey:
    """Knows `Bearer alice`."""

    def __init__(self) -> None:
        self.watch, self.uses = CredentialExpiry(), CredentialUses()

    def remembered(self, value: bytes, *_: object) -> Principal | None:
        return ALICE if value == b"Bearer alice" else None

    async def authenticate(self, *_: object) -> Principal:
        raise Unauthenticated

    def known_good_since(self, principal: Principal) -> int:
        return self.watch.count


def front(
    endpoint: Endpoint,
    node: NodeCredentials | None = None,
    late_heads: LateHeads | None = None,
    requests: RequestLog | None = None,
) -> Front:
    """A front with one endpoint for every method; of a node that is alone, or of this one."""
    authenticator: Any = OneKey()
    streamable: Any = SimpleNamespace(post=endpoint, get=endpoint, delete=endpoint)
    sse: Any = SimpleNamespace(stream=endpoint, message=endpoint)
    heads = late_heads or LateHeads()
    inside = None if node is None else PeerRequests(node, lambda what, query: None, heads, max_body_bytes=LIMIT)
    rest = Rest(_nothing, door(inside, requests), {}, max_body_bytes=LIMIT)
    guard: Any = SimpleNamespace(standstill=SimpleNamespace(is_detected=lambda: False))
    registry: Any = SimpleNamespace(require_on=lambda *names: None, backend=AsyncMock())
    return Front(rest, authenticator, streamable, sse, registry, guard)


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """Stands for FastAPI."""
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The URL of this application."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        http: Any = HttpProtocol
        config = uvicorn.Config(app, http=http, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        server = PromptServer(config)
        running = asyncio.ensure_future(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.stop()  # a failed test must not cancel it: it would leave its connections
            with anyio.CancelScope(shield=True):
                await asyncio.wait([running], timeout=30)


def credentials(node: str, key: bytes = KEY) -> NodeCredentials:
    return NodeCredentials(key, node, time.time)


class SendingNode:
    """Node A. `errors` are what forwarding raised."""

    def __init__(self, deadlines: Deadlines = Deadlines()) -> None:  # noqa: B008 - immutable
        self.metrics, self.peers = Metrics("test"), PeerClient(credentials("node-a"), deadlines)
        self.passing = Passing()
        self.forwarding = Forwarding(self.peers, self.metrics, self.passing, self._backend)
        self.to = ""
        self.errors: list[Exception] = []

        self.recovery: Literal["end", "respawn"] = "end"
        self.watch = CredentialExpiry()  # of the last request

    async def _backend(self, tenant: str, name: str) -> BackendSpec:
        return BackendSpec(tenant, name, "server", recovery=self.recovery)

    async def forward(self, request: McpRequest) -> None:
        """The endpoint."""
        self.watch = request._watch or self.watch
        body = await request.body(LIMIT) if request.method == "POST" else b""
        try:
            await self.forwarding.forward(request, body, NodeRecord("node-b", self.to, "1", datetime.now(UTC)))
        except (GatewayError, ClientGone) as error:
            self.errors.append(error)
            raise

    def results(self) -> dict[str, float]:
        """What became of requests, less what did not occur."""
        (family,) = self.metrics.forwards.collect()
        samples = [each for each in family.samples if each.name.endswith("_total")]
        return {each.labels["result"]: each.value for each in samples if each.value}
