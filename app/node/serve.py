"""serve: runs one node until it is told to stop, and stops it in the right order.

On SIGTERM or SIGINT: not ready, and the other nodes hear it; for DRAIN_DELAY_S everything is still accepted; then no
new sessions, calls in flight finish (at most DRAIN_S), sessions go to other nodes or end, streams end, the listeners
close once no other node waits, what other nodes answer through this one finishes too, processes stop, exit 0. A second
signal cuts this short.
"""

import asyncio
import contextlib
import gc
import logging
import math
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import anyio
import uvicorn
import uvloop

from app import logs
from app.config.data_directory import say_where_data_is
from app.config.hosts import is_wildcard
from app.config.settings import Settings
from app.edge.connections import (
    ConnectionLimits,
    Connections,
    descriptors_for_connections,
    free_descriptor,
)
from app.edge.uvicorn_protocol import HttpProtocol
from app.errors import SettingsError
from app.http.client_address import TrustedProxies
from app.http.scope import BY_NODE, LET_IN
from app.metrics import Metrics
from app.node.application import create_app
from app.node.demo import set_up_demo
from app.node.gateway import Gateway, open_gateway
from app.routing.routes import new_node_id
from app.spawner.syscalls import refuse_inspection
from app.storage import migrate
from app.transports.access_lines import AccessLines

log = logging.getLogger(__name__)

LAST_REQUESTS_S = 0.25  # for what is on its way on connections that are kept, after nobody can make new ones
CLOSED_S = 0.01  # until the event loop has closed its own side of the listeners, which takes it a turn
LAST_ANSWERS_S = 3.0  # for other nodes to get theirs, and to close the connections that they keep
LATE_REQUESTS_S = 3.0  # for those that came after that, and that other nodes answer
LAST_RESPONSES_S = 5  # how long responses that were cut off may take to be written
FIRST_BEAT_S = 2.0  # it takes milliseconds
BACKLOG = 2048
TICKS_PER_SWEEP = 10  # of a tenth of a second each
LIFELINE = 0  # a fleet's child has a socket as its stdin, over which the parent asks; its end says that it is gone


def serve(settings: Settings, *, demo: bool = False, member: int | None = None) -> int:
    """Runs a node on this thread, until it is told to stop; then returns the exit status 0.

    `member` is its number in a fleet: then it shares the port with the others, is reached by them at an address of its
    own, and stops at once when its stdin ends.

    Raises:
        SettingsError: the address is taken; or NODE_URL is not set, and cannot be made of the address.
        GatewayError: something else that is needed does not work.
    """
    refuse_inspection()
    node_id = new_node_id(settings.node_name)
    of_every_line = {"node": node_id} if member is None else {"node": node_id, "member": member}
    logs.configure(settings.log_level, of_every_line=of_every_line)
    with contextlib.ExitStack() as stack:
        lines = AccessLines(of_every_line)
        stack.callback(lines.close)
        if member is None:
            migrate.prepare(settings.database_url)
            listeners = [stack.enter_context(_listen(settings))]
        else:  # the fleet has brought the database up to date
            migrate.check(settings.database_url)
            listeners = [stack.enter_context(each) for each in (_share_port(settings), _listen_inside())]
        # Made before the gateway opens: other nodes are told where this one is.
        settings = replace(settings, node_url=settings.node_url or _own_url(settings, listeners[-1]))
        if member is None:
            say_where_data_is(settings.data_dir)
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        identity = _Identity(node_id, lines, is_member=member is not None)
        runner.run(_Node(settings, listeners, identity, demo=demo).run())
    return 0


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another with --port"
        ) from None


def _share_port(settings: Settings) -> socket.socket:
    """Bound, but not listening yet: the kernel gives a listener its part of the connections, ready or not."""
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise SettingsError(f"cannot share {settings.host}:{settings.port}: {error.strerror}") from None
    return listener


def _listen_inside() -> socket.socket:
    """Where the fleet's other nodes reach this one, and this one alone."""
    return socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)


def _own_url(settings: Settings, listener: socket.socket) -> str | None:
    """How other nodes reach the listener; None where nobody needs to know."""
    if not is_wildcard(listener.getsockname()[0]):
        return _url_of(listener)
    if settings.redis_url is None:
        return None
    raise SettingsError(
        f"TRUNKLINE_NODE_URL: must be set where TRUNKLINE_REDIS_URL is set and TRUNKLINE_HOST is {settings.host}: "
        "how other nodes reach this one, like http://10.0.0.5:8080"
    )


def _take_all(listener: socket.socket) -> list[socket.socket]:
    """Accepts what waits, and closes the listener in the same moment."""
    taken = list[socket.socket]()
    with listener, contextlib.suppress(OSError):  # BlockingIOError: nothing waits; or no file descriptor is left
        listener.setblocking(False)
        while True:
            taken.append(listener.accept()[0])
    return taken


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _from_here(url: str) -> str:
    """The address as a client on this machine asks for it; of a listener on every address that is loopback."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _is_of_a_node(connection: Any) -> bool:
    """Whether what came over it last came from another node."""
    return connection.scope is not None and connection.scope.get(LET_IN) is BY_NODE  # uvicorn's: of the last request


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: it would close the listeners before the drain."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._connections = connections

    def leave_with_answers(self) -> None:
        """See Connections."""
        self._connections.leave_with_answers()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, and says so."""
        await super().startup(sockets)
        self.listening.set()

    async def stop_listening(self) -> None:
        """No new connections; those there are go on, and have been told to close after their next answer.

        Who has connected already and was not accepted yet is accepted first: closing a listener resets those.
        """
        listeners = [listener.dup() for server in self.servers for listener in server.sockets]
        for server in self.servers:
            server.close()
        await asyncio.sleep(CLOSED_S)
        for connection in [each for listener in listeners for each in _take_all(listener)]:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)

    async def nodes_have_left(self, seconds: float) -> None:
        """Waits until no other node has a connection to this one, or the time is over. They close those that they keep
        when they hear that this node leaves, and the others with their answers."""
        with anyio.move_on_after(seconds):
            while any(map(_is_of_a_node, self.server_state.connections)):  # noqa: ASYNC110 - once, at the end
                await anyio.sleep(CLOSED_S)

    def _protocol(self) -> asyncio.Protocol:
        """What uvicorn makes for each connection."""
        make = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if counter % TICKS_PER_SWEEP == 0:
            self._connections.sweep()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Identity(NamedTuple):
    """Which node runs, and where it writes what it is asked."""

    node_id: str
    lines: AccessLines
    is_member: bool  # of a fleet


class _Node:
    """One run of a node."""

    def __init__(
        self, settings: Settings, listeners: Sequence[socket.socket], identity: _Identity, *, demo: bool
    ) -> None:
        self._settings, self._listeners, self._demo = settings, listeners, demo
        self._node_id, self._lines, self._is_member = identity
        self._asked_to_stop = asyncio.Event()
        self._is_in_a_hurry = False
        self._server: _Server | None = None

    async def run(self) -> None:
        """Opens the gateway, serves, drains, closes."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        if self._is_member:
            loop.add_reader(LIFELINE, self._answer_parent)
        async with open_gateway(self._settings, self._node_id) as gateway:
            front = create_app(gateway, self._lines)
            connections = _connections(self._settings, gateway.metrics)
            config = uvicorn.Config(
                front,
                http=cast("type[asyncio.Protocol]", partial(HttpProtocol, connections=connections)),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=LAST_RESPONSES_S,
            )
            self._server = _Server(config, connections)
            if self._is_in_a_hurry:
                return
            if self._is_member:
                await _known(gateway)
            _settle_memory()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._drain_when_asked, gateway)
                tasks.start_soon(self._announce, gateway)
                await self._server.serve(sockets=list(self._listeners))
                tasks.cancel_scope.cancel()

    def _signalled(self) -> None:
        if self._asked_to_stop.is_set():
            self._hurry()
        self._asked_to_stop.set()

    def _hurry(self) -> None:
        self._is_in_a_hurry = True
        if self._server is not None:
            self._server.force_exit = self._server.should_exit = True

    def _answer_parent(self) -> None:
        """Shows that the event loop runs: the parent replaces a node that does not answer.

        At the end the parent is gone, and with it whoever would start us again or tell us to stop.
        """
        with contextlib.suppress(OSError):  # it was gone before it had read our answer
            if question := os.read(LIFELINE, 64):
                os.write(LIFELINE, question)  # at once: it asks again only after it was answered
                return
        asyncio.get_running_loop().remove_reader(LIFELINE)
        log.warning("The parent process is gone; stopping at once")
        self._hurry()

    async def _drain_when_asked(self, gateway: Gateway) -> None:
        await self._asked_to_stop.wait()
        assert self._server is not None
        log.info("draining: told to stop", extra={"sessions": len(gateway.registry), "drain_s": self._settings.drain_s})
        self._server.leave_with_answers()
        await gateway.say_it_leaves()
        await anyio.sleep(self._settings.drain_delay_s)
        ends_at = time.monotonic() + self._settings.drain_s
        cut_off = await gateway.drain(self._settings.drain_s)
        # While they wait for an answer they ask whether this node lives: it says so for as long.
        await self._server.nodes_have_left(LAST_ANSWERS_S)
        await self._server.stop_listening()
        await anyio.sleep(LAST_REQUESTS_S)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gateway.passing.end_streams, 0.0)
            cut_off += await gateway.passing.finish(max(0.0, ends_at - time.monotonic()))
            tasks.cancel_scope.cancel()
        log.info("drained", extra={"sessions": len(gateway.registry), "calls_cut_off": cut_off})
        if cut_off:
            log.error("Cut off calls that did not finish in time: %d", cut_off)
        self._server.should_exit = True
        await gateway.passing.close(LATE_REQUESTS_S)  # in LAST_RESPONSES_S uvicorn cancels what has come in since

    async def _announce(self, gateway: Gateway) -> None:
        """Prints the ready line once the port answers, then what the demonstration has to say."""
        assert self._server is not None
        await self._server.listening.wait()
        if self._settings.redis_url is not None:
            log.info("node %s is ready; others reach it at %s", gateway.node.status().id, self._settings.node_url)
        url = _url_of(self._listeners[0])
        print(f"listening on {url}", flush=True)
        if self._demo:
            async for text in set_up_demo(gateway, self._settings.public_url or _from_here(url)):
                print(text, flush=True)


def _connections(settings: Settings, metrics: Metrics) -> Connections:
    """Where the process may not open as many files as there may be connections, the latter are fewer."""
    limits = ConnectionLimits(
        connections=settings.max_connections,
        per_address=settings.max_connections_per_address,
        descriptors=descriptors_for_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    )
    thinned = logs.Thinned(log)

    def refused(reason: str, client: str, request: str) -> None:
        metrics.connections_refused.labels(reason).inc()
        fields = {"reason": reason, "client": client, **({"request": request} if request else {})}
        thinned.info(reason, "connection refused or ended", fields)

    connections = Connections(
        limits, TrustedProxies(settings.trusted_proxies), free_descriptor=free_descriptor, on_refused=refused
    )
    metrics.connections.set_function(connections.__len__)
    return connections


async def _known(gateway: Gateway) -> None:
    """Waits for the first beat, but not for a Redis that is away: on a shared port whoever listens is asked at once."""
    with anyio.move_on_after(FIRST_BEAT_S):
        while not math.isfinite(gateway.heartbeat.last_ok):  # noqa: ASYNC110 - nothing tells of it, and it is once
            await anyio.sleep(0.01)


def _settle_memory() -> None:
    """What lives as long as the process is not looked at again; young garbage is collected in larger lots."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
