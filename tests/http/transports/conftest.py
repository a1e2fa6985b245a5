"""The Front over a registry of fakes, spoken to in plain ASGI."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import anyio
import pytest

from app.auth.authenticator import CredentialExpiry
from app.auth.credential_uses import CredentialUses
from app.auth.sealing import Sealer
from app.cluster.peers.passing import Passing
from app.cluster.routing.router import Router
from app.domain import BackendSpec, Principal
from app.errors import Unauthenticated
from app.http.health import ALIVE
from app.http.hosts import HostPolicy
from app.http.remote.caller_routing import CallerRouting
from app.http.remote.forwarding import Forwarding
from app.http.remote.peer_requests import PeerRequests
from app.http.remote.remote_sessions import RemoteSessions
from app.http.transports.access_lines import AccessLines
from app.http.transports.arriving_bodies import ArrivingBodies
from app.http.transports.front import Front
from app.http.transports.http_sse import HttpSse
from app.http.transports.request_log import OFF, RequestLog
from app.http.transports.rest import Door, Rest
from app.http.transports.sessionless_http import SessionlessHttp
from app.http.transports.streamable_http import StreamableHttp
from app.limits.caller_rates import RateLimiter
from app.limits.loop_shares import LoopShares
from app.sessions.directory import BackendDirectory
from app.sessions.loop_pause import StandstillGuard
from app.sessions.registry import SessionRegistry
from app.sessions.sessionless.requests import SessionlessRequests
from app.sessions.sweeping import sweep_for_ever
from app.telemetry.metrics import Metrics
from tests.sessions.fakes import FakePool, FakeRoutes, FakeStore, all_ours, alone

LIMIT = 2048
LONG_AHEAD = 4e9
ALICE = Principal("acme", "key", "alice", frozenset({"mcp:connect"}))
BOB = Principal("acme", "key", "bob", frozenset({"mcp:connect:other"}))
EVE = Principal("evil", "key", "eve", frozenset({"mcp:connect"}))
KNOWN = {b"Bearer alice": ALICE, b"Bearer bob": BOB, b"Bearer eve": EVE}


class FakeAuthenticator:
    """Knows three keys until they are revoked. They expire by a clock that tests move, far ahead of the real one."""

    def __init__(self) -> None:
        self.known = dict(KNOWN)
        self.now = LONG_AHEAD
        self.watch = CredentialExpiry(wall_clock=lambda: self.now)
        self.asked, self.uses = 0, CredentialUses()

    def remembered(self, value: bytes, *_: object) -> Principal | None:
        return self.known.get(value)

    async def authenticate(self, value: bytes | None, *_: object) -> Principal:
        self.asked += 1
        if value not in self.known:
            raise Unauthenticated(token_was_sent=value is not None)
        return self.known[value]

    async def confirm(self, principal: Principal) -> None:
        self.asked += 1
        if principal.identity not in {each.identity for each in self.known.values()}:
            raise Unauthenticated(token_was_sent=True)

    def known_good_since(self, principal: Principal) -> int:
        return self.watch.count_before(30.0)

    def revoke(self, header: bytes = b"Bearer alice") -> None:
        principal = self.known.pop(header)
        self.watch.revoked(lambda each: each.identity == principal.identity)

    def expire_at(self, at: float, header: bytes = b"Bearer alice") -> None:
        self.known[header] = replace(self.known[header], expires_at=LONG_AHEAD + at)

    def pass_to(self, now: float) -> None:
        self.now = LONG_AHEAD + now
        self.watch.sweep()


@dataclass
class Exchanged:
    """One HTTP exchange; `left` is set by the client when it hangs up. The end of the body waits for `rest`;
    who takes nothing reads no answer."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    left: anyio.Event = field(default_factory=anyio.Event)
    rest: anyio.Event | None = None
    takes: bool = True


class Http:
    """A client in process. `ask` sends one request and collects what comes back until the application is done."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def ask(
        self, method: str, path: str, *chunks: bytes, into: Exchanged | None = None, repeat: str = "",
        more: str = "", **headers: str,
    ) -> Exchanged:  # fmt: skip
        got = into or Exchanged()
        waiting = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
        waiting.append({"type": "http.request", "body": b"", "more_body": False})
        given = {"host": "127.0.0.1", "authorization": "Bearer alice", "content-type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        raw = [(name.encode(), value.encode()) for name, value in given.items() if value]
        raw += [pair for pair in raw if pair[0].decode() == repeat]
        raw += [(name, value) for name, _, value in [more.encode().partition(b": ")] if name]

        async def receive() -> dict[str, Any]:
            if len(waiting) == 1 and got.rest is not None:
                await got.rest.wait()
            if waiting:
                return waiting.pop(0)
            await got.left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if not got.takes:
                await anyio.sleep_forever()
            if message["type"] == "http.response.start":
                got.status = message["status"]
                got.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                got.body += message.get("body", b"")

        target, _, query = path.partition("?")
        scope = {"type": "http", "method": method, "path": target, "query_string": query.encode(), "headers": raw}
        with anyio.fail_after(30):
            await self.app(scope, receive, send)
        return got


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


@pytest.fixture
async def registry(pool: FakePool) -> AsyncIterator[SessionRegistry]:
    store = FakeStore(BackendSpec("acme", "echo", "echo-server"))
    directory = BackendDirectory(store.get_backend, store.get_tenant)
    typed_pool: Any = pool
    async with (
        SessionRegistry(directory, typed_pool, Metrics("test"), alone(), max_sessions=5) as registry,
        anyio.create_task_group() as tasks,
    ):
        guard = StandstillGuard(registry.standstill, (), all_ours, registry._sessions.deliver_held)
        tasks.start_soon(sweep_for_ever, registry.sweeping, guard)
        yield registry
        tasks.cancel_scope.cancel()


def door(inside: PeerRequests | None = None, requests: RequestLog | None = None) -> Door:
    """Of a node that logs nothing, unless it has a log."""
    hosts = HostPolicy([], ["https://app.example.org"])
    issuers: Any = SimpleNamespace(has_any=AsyncMock(return_value=True))
    return Door(hosts, requests or RequestLog(Metrics("test"), OFF, AccessLines({})), inside=inside, issuers=issuers)


def unlimited() -> RateLimiter:
    """Lets through more than any of these tests asks for."""
    return RateLimiter("unknown_sessions", Metrics("test").rate_limited)


def nowhere_else(registry: SessionRegistry) -> tuple[RemoteSessions, CallerRouting]:
    """A node without others."""

    async def probe(url: str) -> None:
        raise AssertionError("there is nobody to ask")

    unused: Any = None
    router, ownership = Router(FakeRoutes(), "0123456789abcdef", {}, {}, probe), alone()
    forwarding = Forwarding(unused, Metrics("test"), Passing(), unused)
    remote = RemoteSessions(registry, ownership, router, forwarding, unused, unlimited())
    return remote, CallerRouting(registry, ownership, router, unused, remote)


@pytest.fixture
def authenticator() -> FakeAuthenticator:
    return FakeAuthenticator()


@pytest.fixture
def shares() -> LoopShares:
    return LoopShares()


@pytest.fixture
def http(registry: SessionRegistry, authenticator: FakeAuthenticator, shares: LoopShares) -> Http:
    async def behind(scope: Any, receive: Any, send: Any) -> None:
        """Stands for FastAPI: reads the body and says how long it was."""
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": f"{scope['path']} {size}".encode()})

    metrics = Metrics("test")
    sessionless = SessionlessRequests(registry, Sealer(b"k" * 32))
    typed_authenticator: Any = authenticator
    remote, callers = nowhere_else(registry)
    options: Any = {"max_body_bytes": LIMIT, "arriving": ArrivingBodies(), "keepalive_s": 15.0}
    return Http(
        Front(
            Rest(behind, door(), {"/livez": ALIVE}, max_body_bytes=LIMIT),
            typed_authenticator,
            StreamableHttp(
                registry,
                remote,
                SessionlessHttp(sessionless, callers, metrics, keepalive_s=15.0),
                metrics,
                shares=shares,
                **options,
            ),
            HttpSse(registry, remote, metrics, shares=shares, **options),
            registry,
            StandstillGuard(registry.standstill, (), all_ours, registry._sessions.deliver_held),
            shares,
        )
    )
