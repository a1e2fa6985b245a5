"""Upstreams: leases upstream sessions of a node, and ends them. One circuit breaker for each backend."""

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

import anyio
import anyio.abc

from app.auth.outbound_urls import UrlRefused, parse_url
from app.auth.sealing import SealBroken
from app.backends._breaker import Breaker
from app.backends.checks.steps import Steps
from app.backends.failures import FailureLog
from app.backends.inventory import BackendSnapshot
from app.backends.upstreams._api import ApiAccess
from app.backends.upstreams._channel import Channel, StreamCut, not_reached
from app.backends.upstreams._events import Reconnecting
from app.backends.upstreams._flow import Flow
from app.backends.upstreams._proxies import proxy_headers
from app.backends.upstreams._session import UpstreamSession
from app.backends.upstreams._statuses import failure
from app.backends.upstreams.connecting import CannotConnect, Connector, Network, Place
from app.backends.upstreams.requests import Headers, RoutingHeaders, base_headers
from app.concurrency.loop_share import UNLIMITED, LoopShare, Shares
from app.domain import BackendSpec
from app.errors import (
    BackendBusy,
    BackendTimeout,
    BackendUnavailable,
    CallCutOff,
    GatewayError,
    ShuttingDown,
    UpstreamRefused,
)
from app.jail.egress.dialling import Dialler
from app.protocol.openapi.serving import ApiServer
from app.telemetry.metrics import Metrics
from app.text.credentials import secrets_in

CLOSE_S = 5.0  # for telling the servers, when the node ends
FETCH_S = 30.0  # for a document
OWN_HOSTS_S = 60.0

Key = tuple[str, str]
Open = Callable[[BackendSpec], BackendSpec]
ApiOf = Callable[[BackendSpec], Awaitable[ApiServer]]

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Known:
    """One version of a backend."""

    spec: BackendSpec
    breaker: Breaker
    why: str = ""  # it failed the last time
    routing: RoutingHeaders = field(default_factory=RoutingHeaders)
    sessions: set[UpstreamSession] = field(default_factory=set)

    def begin_anew(self) -> None:
        self.breaker = Breaker(random.random)

    def failed(self, why: str, now: float) -> bool:
        """Returns whether that opens the breaker."""
        self.why = why
        return self.breaker.died_early(now)


@dataclass(frozen=True, slots=True)
class Parts:
    """What upstream sessions are made of. `open_secrets`: those of a backend; `api_of` finds what was made of its
    document."""

    connector: Connector
    dialler: Dialler
    open_secrets: Open
    api_of: ApiOf
    failures: FailureLog
    limit_bytes: int
    shares: Shares = UNLIMITED


class Upstreams:
    """Used as `async with`: leaving it ends every session, and tells the servers.

    Fulfils `_session.Owner`.
    """

    def __init__(self, parts: Parts, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._parts, self._metrics, self._clock = parts, metrics, clock
        self._known: dict[Key, _Known] = {}
        self._sessions: dict[UpstreamSession, _Known] = {}
        self._closing = set[asyncio.Task[None]]()
        self._tasks: anyio.abc.TaskGroup | None = None
        metrics.upstream_sessions.set_function(lambda: len(self._sessions))
        metrics.upstream_connections.set_function(lambda: parts.connector.open)

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._look_up_own_hosts, name="look up own hosts of upstreams")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        tasks, self._tasks = self._tasks, None
        for session in list(self._sessions):
            session.release("shutting_down")
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_S)
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        if tasks is not None:
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(None, None, None)

    async def _look_up_own_hosts(self) -> None:
        while True:
            await self._parts.dialler.look_up_own_hosts()
            await anyio.sleep(OWN_HOSTS_S)

    # --- leases

    async def lease(self, spec: BackendSpec, steps: Steps | None = None) -> UpstreamSession:
        """A new session with this server, which is connected to, and has not been asked anything.

        Raises:
            BackendUnavailable: the breaker is open, or there is no connection.
            BackendBusy: too many connections are open.
        """
        if self._tasks is None:
            raise ShuttingDown
        known = self._of(spec)
        self._refuse_while_open(known)
        try:
            channel, access = await self._connected(spec, steps)
        except CannotConnect as error:
            if error.is_full:
                raise BackendBusy(f"the server cannot be reached: {error}") from None
            failure = not_reached(error)
            self._parts.failures.not_started(spec, str(failure))
            self._count(known, str(failure))
            raise failure from None
        session = UpstreamSession(spec, channel, known.routing, self, self._parts.limit_bytes, access)
        self._sessions[session] = known
        known.sessions.add(session)
        return session

    async def lease_again(self, spec: BackendSpec) -> UpstreamSession:
        """As `lease`, for a session that goes on: a server that restarts is waited for, until this is cancelled.

        Raises:
            BackendBusy, ShuttingDown: as `lease`.
        """
        attempts = Reconnecting(random.random)
        while True:
            try:
                return await self.lease(spec)
            except BackendUnavailable:
                await anyio.sleep(attempts.delay_s(-1))

    async def _connected(self, spec: BackendSpec, steps: Steps | None) -> tuple[Channel, ApiAccess | None]:
        """An API has no sessions: its connection is made by the first call, but in a check."""
        if spec.lacks_secrets:
            raise CannotConnect("the secret in its url cannot be opened: give it again", is_refused=True)
        server = None if spec.openapi is None else await self._parts.api_of(spec)
        try:
            url, known = parse_url(spec.url or ""), self._parts.open_secrets(spec)
        except (UrlRefused, SealBroken) as error:
            what = "its secrets cannot be opened: give them again" if isinstance(error, SealBroken) else str(error)
            raise CannotConnect(what, is_refused=True) from None
        own = [(name.encode(), value.encode()) for name, value in known.headers.items()]
        access = None if server is None else ApiAccess(server, url.target, own, secrets_in([spec.url or ""]))
        place = Place(url, spec.tenant, spec.name, known.connect)
        network = Network(self._parts.connector, place)
        if access is None or steps is not None:
            await network.prepare(steps)
        headers = base_headers(url.authority, own if access is None else access.headers)
        return self._channel(network, place, headers), access

    def _channel(self, network: Network, place: Place, headers: Headers) -> Channel:
        flow = Flow(LoopShare(self._parts.shares, place.tenant))
        to_proxy = proxy_headers(place.connect) if place.is_forwarded else None
        return Channel(network, place.url, headers, flow, self._parts.limit_bytes, to_proxy)

    async def fetch(self, key: Key, address: str, limit_bytes: int) -> bytes:
        """A document that this backend is made of.

        Raises:
            UrlRefused: that is no address of a document.
            GatewayError: it cannot be had from there.
        """
        url = parse_url(address)
        place = Place(url, *key)
        channel = self._channel(Network(self._parts.connector, place), place, base_headers(url.authority, []))
        try:
            async with asyncio.timeout(FETCH_S), channel.request("GET", [(b"Accept", b"*/*")]) as exchanged:
                answer = exchanged.answer
                if answer.status in (401, 403):
                    words = "it is asked for without credentials; give its text instead of its address"
                    raise UpstreamRefused(f"{channel.host} answered HTTP {answer.status}: {words}")
                if not answer.is_good or not answer.is_plain:
                    raise failure(answer, channel.host)
                return await exchanged.body(limit_bytes)
        except TimeoutError:
            raise BackendTimeout(f"{channel.host} did not send it within {FETCH_S:.0f} s") from None
        except StreamCut:
            raise CallCutOff(f"{channel.host} closed the connection within the document") from None
        finally:
            await channel.aclose()

    def _of(self, spec: BackendSpec) -> _Known:
        known = self._known.get(spec.key)
        if known is None or known.spec.edition < spec.edition:
            if known is not None:
                self._forget(known)
            known = self._known[spec.key] = _Known(spec, Breaker(random.random))
        return known

    def _refuse_while_open(self, known: _Known) -> None:
        """Raises BackendUnavailable."""
        now, breaker = self._clock(), known.breaker
        if breaker.is_open and breaker.allowance(now, unproven=self._unproven(known), warm=0) == 0:
            retry_after_s = breaker.retry_after_s(now)
            then = f"it is asked again in {math.ceil(retry_after_s)} s" if retry_after_s else "it is being asked again"
            words = f"the server could not be used several times in a row, the last time: {known.why}; {then}"
            raise BackendUnavailable(words).again_after(retry_after_s or 1.0)

    def _unproven(self, known: _Known) -> int:
        return sum(not session.has_worked for session in known.sessions)

    def _count(self, known: _Known, why: str) -> None:
        if known.failed(why, self._clock()):
            self._metrics.breaker_open.inc()
            log.error("A server cannot be used: it is not asked for a while: %s", why, extra=_fields(known.spec))

    # --- _session.Owner

    def asked(self, session: UpstreamSession, result: str, seconds: float) -> None:
        self._metrics.upstream_requests.labels(result).inc()
        self._metrics.upstream_seconds.observe(seconds)

    def dropped(self, reason: str) -> None:
        self._metrics.messages_dropped.labels(reason).inc()

    def works(self, session: UpstreamSession) -> None:
        known = self._sessions.get(session)
        if known is not None and known.breaker.succeeded():
            self._metrics.breaker_open.dec()
            log.info("A server works again; the breaker is closed", extra=_fields(known.spec))

    def failed(self, session: UpstreamSession, error: GatewayError) -> None:
        known = self._sessions.get(session)
        if known is not None:
            self._parts.failures.not_started(session.spec, str(error))
            self._count(known, str(error))

    def released(self, session: UpstreamSession, reason: str) -> None:
        log.debug("Upstream session released: %s", reason, extra={"upstream": session.id})
        known = self._sessions.pop(session, None)
        if known is not None:
            known.sessions.discard(session)
        task = asyncio.get_running_loop().create_task(_closed(session), name="close an upstream session")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # --- backends

    def configure(self, spec: BackendSpec) -> None:
        """For a changed backend: sessions go on, and the breaker of its new version is closed."""
        if spec.key in self._known:
            self._of(spec)

    def restart(self, key: Key) -> None:
        """Resets the breaker."""
        known = self._known.get(key)
        if known is not None:
            self._forget(known)
            known.begin_anew()

    def forget(self, key: Key) -> None:
        """For a backend that is removed, or switched off. Leases go on."""
        known = self._known.pop(key, None)
        if known is not None:
            self._forget(known)

    def _forget(self, known: _Known) -> None:
        if known.breaker.is_open:
            self._metrics.breaker_open.dec()

    # --- looking

    def spec_of(self, key: Key) -> BackendSpec | None:
        """The version that new sessions get; None if it has not been used, or is removed."""
        known = self._known.get(key)
        return None if known is None else known.spec

    def specs(self) -> list[BackendSpec]:
        """Of each backend that has been used: the version that new sessions get."""
        return [known.spec for known in self._known.values()]

    def backends(self) -> set[Key]:
        return set(self._known)

    def snapshot(self) -> Mapping[Key, BackendSnapshot]:
        """Of each backend that has been used: its upstream sessions are `leased`."""
        leased = Counter(session.spec.key for session in self._sessions)
        now = self._clock()
        return {
            key: BackendSnapshot(
                leased=leased[key],
                breaker_open=known.breaker.is_open,
                retry_after_s=known.breaker.retry_after_s(now) if known.breaker.is_open else 0.0,
            )
            for key, known in self._known.items()
        }


async def _closed(session: UpstreamSession) -> None:
    try:
        await session.close()
    except Exception:
        log.exception("Could not close an upstream session", extra={"upstream": session.id})


def _fields(spec: BackendSpec) -> dict[str, str]:
    return {"tenant": spec.tenant, "backend": spec.name}
