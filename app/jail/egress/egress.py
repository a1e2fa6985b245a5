"""Egress: all listeners and connections of a node's egress proxy, under its limits."""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self

import anyio
import anyio.abc

from app.domain.resources.backends import PROXY_PORT
from app.domain.resources.destinations import MAX_DESTINATIONS
from app.jail.egress._connection import Connection, Services
from app.jail.egress._incoming import Beginning, Incoming, Meant
from app.jail.egress.allowed import Allowed, AllowedRule, NothingElse
from app.jail.egress.dialling import Dialler
from app.jail.egress.names import Lookup, Names, system_lookup
from app.jail.egress.outgoing import Detour, Outgoing, PortRule, Rule
from app.jail.egress.refusals import DENIALS, Reason
from app.jail.sandbox.environment import proxy_environment
from app.telemetry.logs import Thinned
from app.telemetry.metrics import Metrics
from app.text.public_addresses import Address, Network

logger = logging.getLogger(__name__)

MAX_OF_PROCESS, MAX_OF_TENANT, MAX_OF_NODE = 64, 256, 1024
_ROOM_FOR_REFUSALS = 16  # connections over a limit that are accepted to be told so; more wait in the kernel
_ACCEPT_AT_ONCE = 16
_ACCEPT_AGAIN_S = 0.5  # after the node had no descriptor left
_OWN_HOSTS_S = 60.0
_REFUSED_KEPT = 20


@dataclass(frozen=True, slots=True)
class EgressOptions:
    """`allow`: networks that are reached although they are not public. `own_hosts`: names and addresses by which the
    gateway itself is reached, besides the addresses of this machine. `parts`: hosts and ports of what belongs to the
    gateway: nothing leads there. `detour`: the way to some of what is allowed. `is_counted`: whether refusals and bytes
    are in the metrics, and refusals in the log."""

    allow: tuple[Network, ...] = ()
    own_hosts: tuple[Address | str, ...] = ()
    parts: tuple[tuple[Address | str, int], ...] = ()
    lookup: Lookup = system_lookup
    rule: Rule = field(default_factory=PortRule)
    detour: Detour | None = None
    max_of_process: int = MAX_OF_PROCESS
    max_of_tenant: int = MAX_OF_TENANT
    max_of_node: int = MAX_OF_NODE
    idle_s: float = 600.0
    sweep_s: float = 5.0
    is_counted: bool = True


class Egress:
    """Used as `async with Egress(...)`: leaving the block closes every line."""

    def __init__(self, metrics: Metrics, options: EgressOptions | None = None) -> None:
        self._options = options or EgressOptions()
        options = self._options
        dialler = Dialler(Names(options.lookup), options.allow, options.own_hosts, parts=options.parts)
        self._services = Services(
            dialler, metrics, Thinned(logger), is_counted=options.is_counted, detour=options.detour
        )
        self._tasks: anyio.abc.TaskGroup | None = None
        self._resources = AsyncExitStack()
        self._serving: set[asyncio.Task[None]] = set()
        self._lines: set[EgressLine] = set()
        self._count = 0
        self._of_tenant = Counter[str]()
        if self._options.is_counted:
            metrics.egress_connections.set_function(lambda: self._count)

    def __repr__(self) -> str:
        return f"<Egress [{len(self._lines)} lines, {self._count} connections]>"

    async def __aenter__(self) -> Self:
        self._tasks = await self._resources.enter_async_context(anyio.create_task_group())
        self._tasks.start_soon(self._sweep, name="sweep egress")
        self._tasks.start_soon(self._look_up_own_hosts, name="look up own hosts")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        tasks, self._tasks = self._tasks, None
        for line in list(self._lines):
            line.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        if tasks is not None:
            tasks.cancel_scope.cancel()
        await self._resources.aclose()

    def open(
        self,
        tenant: str,
        backend: str,
        rule: Rule | None = None,
        allowed: Allowed | None = None,
        *,
        has_proxy: bool = True,
    ) -> "EgressLine":
        """For a process that is about to start. `rule` decides in the place of the node's. `allowed`: what it reaches
        besides, without the proxy.

        Raises:
            OSError: there is no descriptor for it.
        """
        if self._tasks is None:
            raise RuntimeError("the egress proxy is closed")
        rule = (rule or self._options.rule) if has_proxy else NothingElse()
        line = EgressLine(self, tenant, backend, rule, allowed, has_proxy=has_proxy)
        self._lines.add(line)
        return line

    # --- for its lines

    def forget(self, line: "EgressLine") -> None:
        self._lines.discard(line)

    def has_room(self, of_process: int, tenant: str) -> bool:
        """Whether one more connection is accepted, if only to be refused in words."""
        return (
            of_process < self._options.max_of_process + _ROOM_FOR_REFUSALS
            and self._of_tenant[tenant] < self._options.max_of_tenant + _ROOM_FOR_REFUSALS
            and self._count < self._options.max_of_node + _ROOM_FOR_REFUSALS
        )

    def full(self, of_process: int, tenant: str) -> Reason | None:
        """Whether so many connections, with all others, are over a limit."""
        if of_process > self._options.max_of_process:
            return Reason.PROCESS_FULL
        if self._of_tenant[tenant] > self._options.max_of_tenant:
            return Reason.TENANT_FULL
        return Reason.NODE_FULL if self._count > self._options.max_of_node else None

    def serve(self, line: "EgressLine", client: socket.socket, beginning: Beginning) -> None:
        """Serves a connection of that line until its end."""
        assert self._tasks is not None  # lines are closed first
        self._count += 1
        self._of_tenant[line.tenant] += 1
        # Not in the task group: outside of a task, as in a callback of the loop, anyio may not know which loop runs.
        task = asyncio.get_running_loop().create_task(self._serve(line, client, beginning), name="egress connection")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, line: "EgressLine", client: socket.socket, beginning: Beginning) -> None:
        connection = Connection(self._services, client, beginning, line.rule)
        try:
            await line.serve(connection)
        except Exception:
            logger.exception("Could not serve a connection of a backend")
        finally:
            client.close()
            was_full = not self.has_room(0, line.tenant)
            self._count -= 1
            self._of_tenant[line.tenant] -= 1
            if not self._of_tenant[line.tenant]:
                del self._of_tenant[line.tenant]
            line.ended()
            for each in list(self._lines) if was_full else ():
                each.accept_again()

    async def _sweep(self) -> None:
        while True:
            await anyio.sleep(self._options.sweep_s)
            now = time.monotonic()
            for line in list(self._lines):
                line.sweep(now - self._options.idle_s)

    async def _look_up_own_hosts(self) -> None:
        while True:
            await self._services.dialler.look_up_own_hosts()
            await anyio.sleep(_OWN_HOSTS_S)


class EgressLine:
    """The proxy of one process, and what it reaches besides: `take_channel` and `environment` go into its start,
    `close` comes with its end.

    The listeners come from the process's network through the channel, before its program runs: first that of the proxy,
    if it has one.
    """

    def __init__(
        self,
        egress: Egress,
        tenant: str,
        backend: str,
        rule: Rule,
        allowed: Allowed | None = None,
        *,
        has_proxy: bool = True,
    ) -> None:
        self._egress = egress
        self.tenant, self._backend, self._process = tenant, backend, ""
        self.rule = rule if allowed is None else AllowedRule(allowed, rule)
        self._allowed, self._has_proxy = allowed, has_proxy
        self._loop = asyncio.get_running_loop()
        self._node_end, self._their_end = socket.socketpair()
        self._node_end.setblocking(False)
        self._listeners: list[tuple[socket.socket, Allowed | None]] = []
        self._is_accepting = False
        self._is_closed = False
        self._count = 0
        self._refused = deque[tuple[str, str]](maxlen=_REFUSED_KEPT)
        self._on_denied: Callable[[str], None] = lambda destination: None
        self._connections: dict[Connection, anyio.CancelScope] = {}
        self._loop.add_reader(self._node_end, self._on_listeners)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self._listeners else "waiting"
        return f"<EgressLine {self.tenant}/{self._backend} [{state}, {self._count} connections]>"

    @property
    def environment(self) -> Mapping[str, str]:
        """What the process needs to know."""
        return proxy_environment() if self._has_proxy else {}

    @property
    def port(self) -> int:
        """For `Confinement.proxy_port`."""
        return PROXY_PORT

    def take_channel(self) -> int:
        """The descriptor through which the listeners are to be sent; it is the caller's from now on."""
        return self._their_end.detach()

    def started(self, process_id: str, on_denied: Callable[[str], None] = lambda destination: None) -> None:
        """The process's name, for the log and for rules. `on_denied` is told of destinations that are kept from it."""
        self._process, self._on_denied = process_id, on_denied

    def close(self) -> None:
        """Ends the listeners and all connections. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._egress.forget(self)
        self._end_channel()
        self._their_end.close()
        self._stop_accepting()
        for listener, _ in self._listeners:
            listener.close()
        for scope in list(self._connections.values()):
            scope.cancel()

    # --- the listeners

    def _on_listeners(self) -> None:
        descriptors: list[int] = []
        with contextlib.suppress(OSError):
            _, descriptors, _, _ = socket.recv_fds(self._node_end, 1, MAX_DESTINATIONS + 1)
        self._end_channel()
        for at, each in enumerate(descriptors):  # none: the process was not started
            os.set_inheritable(each, False)
            self.listen(socket.socket(fileno=each), None if self._has_proxy and at == 0 else self._allowed)

    def _end_channel(self) -> None:
        if self._node_end.fileno() >= 0:
            self._loop.remove_reader(self._node_end)
            self._node_end.close()

    def listen(self, listener: socket.socket, allowed: Allowed | None = None) -> None:
        """Serves what connects there; closes it with the line. With `allowed` it is no proxy: connections are passed on
        to what they are meant for."""
        if self._is_closed:
            listener.close()
            return
        listener.setblocking(False)
        self._stop_accepting()
        self._listeners.append((listener, allowed))
        self.accept_again()

    def accept_again(self) -> None:
        """Accepts connections, unless it does or there is no room."""
        if not self._listeners or self._is_closed or self._is_accepting or not self._has_room():
            return
        self._is_accepting = True
        for listener, allowed in self._listeners:
            self._loop.add_reader(listener, self._accept, listener, allowed)

    def _has_room(self) -> bool:
        return self._egress.has_room(self._count, self.tenant)

    def _stop_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            for listener, _ in self._listeners:
                self._loop.remove_reader(listener)

    def _accept(self, listener: socket.socket, allowed: Allowed | None) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            if not self._has_room():
                self._stop_accepting()
                return
            try:
                client, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning("Could not accept a connection of a backend: %s", error.strerror)
                self._stop_accepting()
                self._loop.call_later(_ACCEPT_AGAIN_S, self.accept_again)
                return
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._count += 1
            self._egress.serve(self, client, Incoming(client) if allowed is None else Meant(client, allowed))

    def ended(self) -> None:
        """One of its connections is closed."""
        self._count -= 1
        self.accept_again()

    # --- connections

    async def serve(self, connection: Connection) -> None:
        """Serves one of its connections, until its end or that of the line."""
        with anyio.CancelScope() as scope:
            if self._is_closed:
                return
            self._connections[connection] = scope
            try:
                await connection.serve(self)
            finally:
                del self._connections[connection]

    def asks(self, host: Address | str, port: int) -> Outgoing:
        return Outgoing(self.tenant, self._backend, self._process, host, port)

    def full(self) -> Reason | None:
        return self._egress.full(self._count, self.tenant)

    def note(self, outgoing: Outgoing, reason: Reason) -> None:
        self._refused.append((outgoing.destination, reason.label))
        if reason in DENIALS:
            self._on_denied(outgoing.destination)

    @property
    def refused(self) -> Sequence[tuple[str, str]]:
        """The last connections that were refused or could not be made: destination and reason."""
        return tuple(self._refused)

    def sweep(self, idle_since: float) -> None:
        """Ends connections without a byte since then."""
        for connection, scope in list(self._connections.items()):
            connection.count()
            if connection.active_at is not None and connection.active_at < idle_since:
                scope.cancel()
