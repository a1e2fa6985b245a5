"""serve: runs one node until it is told to stop, and stops it in the right order.

On SIGTERM or SIGINT the node is no longer ready, and tells the other nodes; for DRAIN_DELAY_S it still accepts
everything; then no new sessions, calls in flight finish (at most DRAIN_S), sessions go to other nodes or end, streams
end, the listeners close once no other node waits, forwarded requests finish, processes stop, exit 0. A second signal
cuts this short. SIGHUP: see `hangup`.
"""

import asyncio
import contextlib
import gc
import importlib
import importlib.util
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import anyio
import uvloop

from app.cluster.peers.passing import Kind
from app.http.transports.access_lines import AccessLines
from app.jail.spawner.syscalls import refuse_inspection
from app.node.allocator import give_back_freed_memory
from app.node.certificate_files import CertificateFiles, read_certificate
from app.node.demo import set_up_demo
from app.node.gateway import Gateway, open_gateway
from app.node.hangup import Hangup
from app.node.listeners import from_here, listen, listen_inside, own_url, share_port, url_of
from app.node.stopping import StopProgress, drain_words
from app.sessions.routes import new_node_id
from app.settings.data_directory import say_where_data_is
from app.settings.settings import Settings
from app.storage import migrate
from app.telemetry import logs
from app.text.terminal.progress import Progress
from app.text.terminal.stdout import announce

if TYPE_CHECKING:
    from app.node.web_server import WebServer

log = logging.getLogger(__name__)

LAST_REQUESTS_S = 0.25  # for requests under way on open connections, after the listeners are closed
KEPT_S = 1.0  # then, for clients that use their idle connections: each is closed with its next answer
LAST_ANSWERS_S = 3.0  # for other nodes to get their answers and close their connections
LATE_REQUESTS_S = 3.0  # for forwarded requests that arrived after that
FIRST_BEAT_S = 2.0  # it takes milliseconds
LIFELINE = 0  # stdin of a fleet's child: a socket on which the parent asks whether it runs; EOF: the parent is gone


def serve(settings: Settings, *, demo: bool = False, member: int | None = None) -> int:
    """Runs a node on this thread until it is told to stop; then returns the exit status 0.

    `member` is its number in a fleet: it then shares the port with the others, has an address of its own for them, and
    stops at once when its stdin ends.

    Raises:
        SettingsError: the address is taken; or NODE_URL is needed and not set.
        GatewayError: something else that is needed does not work.
    """
    refuse_inspection()
    give_back_freed_memory()
    node_id = new_node_id(settings.node_name)
    of_every_line = {"node": node_id} if member is None else {"node": node_id, "member": member}
    logs.configure(settings.log_level, of_every_line=of_every_line)
    with contextlib.ExitStack() as stack:
        lines = AccessLines(of_every_line)
        stack.callback(lines.close)
        certificate = read_certificate(settings, node_id)
        if member is None:
            with Progress() as progress:
                migrate.prepare(settings.database_url, progress.begin)
            listeners = [stack.enter_context(listen(settings))]
        else:  # the fleet has brought the database up to date
            migrate.check(settings.database_url)
            listeners = [stack.enter_context(each) for each in (share_port(settings), listen_inside())]
        # Before the gateway opens: it tells other nodes where this one is.
        # Nodes of a fleet speak no TLS with each other: nobody else reaches the second listener.
        is_tls = certificate is not None and member is None
        settings = replace(settings, node_url=settings.node_url or own_url(settings, listeners[-1], is_tls=is_tls))
        settings = replace(settings, port=listeners[0].getsockname()[1])
        if member is None:
            say_where_data_is(settings.data_dir)
        _name_the_event_loop()
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        runner.run(_Node(settings, listeners, node_id, lines, certificate, member is not None, demo).run())
    return 0


def _name_the_event_loop() -> None:
    """anyio asks sniffio, if another package has brought it, and that knows no loop in callbacks that are of no task,
    unless it was told: there no task could be started."""
    if importlib.util.find_spec("sniffio") is not None:
        importlib.import_module("sniffio").current_async_library_cvar.set("asyncio")


@dataclass
class _Node:
    """One run of a node."""

    settings: Settings
    listeners: Sequence[socket.socket]
    node_id: str
    lines: AccessLines
    certificate: CertificateFiles | None  # None: no TLS
    is_member: bool  # of a fleet
    demo: bool
    asked_to_stop: asyncio.Event = field(default_factory=asyncio.Event)
    asked_at: float = math.inf
    hurry: str = ""  # why it does not drain to the end
    server: "WebServer | None" = None
    gateway: Gateway | None = None

    async def run(self) -> None:
        """Opens the gateway, serves, drains, closes."""
        with StopProgress(self._stop_words) as progress:
            await self._run(progress)

    async def _run(self, progress: StopProgress) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, progress)
        read_again = None if self.certificate is None else self.certificate.read_again
        hangup = Hangup(read_again=read_again, stop=partial(self._signalled, progress))
        loop.add_signal_handler(signal.SIGHUP, hangup.take)
        if self.is_member:
            loop.add_reader(LIFELINE, self._answer_parent)
        gc.disable()  # what is made from now on stays: `_settle_memory`
        # Half of what a node imports; meanwhile processes try the sandbox, and this thread waits for them.
        web = loop.run_in_executor(None, importlib.import_module, "app.node.web_server")
        async with open_gateway(self.settings, self.node_id, self.certificate) as gateway:
            self.gateway = gateway
            await web
            from app.node.web_server import make_server  # noqa: PLC0415 - see `web`

            self.server = server = make_server(gateway, self.lines, self.certificate)
            if self.hurry:
                return
            if self.is_member:
                await _known(gateway)
            _settle_memory()
            async with anyio.create_task_group() as tasks:
                if self.certificate is not None:
                    tasks.start_soon(self.certificate.run)
                tasks.start_soon(self._drain_when_asked, gateway, server)
                tasks.start_soon(self._announce, gateway, server)
                await server.serve(sockets=list(self.listeners))
                tasks.cancel_scope.cancel()
            self._say_what_was_cut_off(len(gateway.sessions.registry))

    def _signalled(self, progress: StopProgress) -> None:
        if self.asked_to_stop.is_set():
            self._hurry("told again to stop")
            return
        self.asked_to_stop.set()
        self.asked_at = time.monotonic()
        if not self.is_member:  # the fleet shows it for all
            progress.begin()

    def _stop_words(self) -> str:
        is_drained = bool(self.hurry) or (self.server is not None and self.server.should_exit)
        ends_at = self.asked_at + self.settings.drain_delay_s + self.settings.drain_s
        return drain_words("stopping", self._calls_in_flight(), 0.0 if is_drained else ends_at)

    def _calls_in_flight(self) -> int:
        """Those that are forwarded to other nodes too."""
        if self.gateway is None:
            return 0
        of_others = sum(each.kind is Kind.CALL for each in self.gateway.passing)
        return self.gateway.sessions.registry.calls_in_flight() + of_others

    def _hurry(self, why: str) -> None:
        self.hurry = why
        if self.server is not None:
            self.server.force_exit = self.server.should_exit = True

    def _answer_parent(self) -> None:
        """Shows that the event loop runs: the parent replaces a node that does not answer. Once the node stops, the
        answer is how many calls are in flight.

        Without its parent the node stops: nobody would restart it, or tell it to stop.
        """
        with contextlib.suppress(OSError):  # the parent ended before it had read our answer
            if question := os.read(LIFELINE, 64):
                answer = b"%d " % self._calls_in_flight() if self.asked_to_stop.is_set() else question
                os.write(LIFELINE, answer)  # never blocks: the parent asks again only after an answer
                return
        asyncio.get_running_loop().remove_reader(LIFELINE)
        log.warning("The parent process is gone; stopping at once")
        self._hurry("the parent process is gone")

    async def _drain_when_asked(self, gateway: Gateway, server: "WebServer") -> None:
        await self.asked_to_stop.wait()
        registry, drain_s = gateway.sessions.registry, self.settings.drain_s
        log.info("draining: told to stop", extra={"sessions": len(registry), "drain_s": drain_s})
        server.connections.leave_with_answers()
        await gateway.say_it_leaves()
        await anyio.sleep(self.settings.drain_delay_s)
        ends_at = time.monotonic() + drain_s
        cut_off = await gateway.drain(drain_s)
        # While other nodes wait for an answer they probe this one, so it must still answer them.
        await server.nodes_have_left(LAST_ANSWERS_S)
        await server.stop_listening()
        await anyio.sleep(LAST_REQUESTS_S)
        await server.clients_have_left(KEPT_S)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gateway.passing.end_streams, 0.0)
            cut_off += await gateway.passing.finish(max(0.0, ends_at - time.monotonic()))
            tasks.cancel_scope.cancel()
        log.info("drained", extra={"sessions": len(registry), "calls_cut_off": cut_off})
        if cut_off:
            log.error("Cut off %d calls that did not finish within TRUNKLINE_DRAIN_S", cut_off)
        server.should_exit = True
        await gateway.passing.close(LATE_REQUESTS_S)  # uvicorn cancels later ones seconds after

    def _say_what_was_cut_off(self, sessions: int) -> None:
        if not self.hurry:  # `drained` has said it
            return
        fields = {"sessions": sessions, "calls_cut_off": self._calls_in_flight()}
        log.warning("stopped without draining to the end: %s", self.hurry, extra=fields)

    async def _announce(self, gateway: Gateway, server: "WebServer") -> None:
        """Prints the ready line once the port answers, then the texts of the demo."""
        await server.listening.wait()
        if server.should_exit:  # told to stop at once, meanwhile: the listeners are closed
            return
        if self.settings.redis_url is not None:
            log.info("node %s is ready; others reach it at %s", self.node_id, self.settings.node_url)
        url = url_of(self.listeners[0], is_tls=self.certificate is not None)
        announce(f"listening on {url}")
        if self.demo:
            async for text in set_up_demo(gateway, self.settings.public_url or from_here(url)):
                announce(text)


async def _known(gateway: Gateway) -> None:
    """Waits for the first heartbeat: on a shared port requests arrive at once. Does not wait for an absent Redis."""
    with anyio.move_on_after(FIRST_BEAT_S):
        while not gateway.membership.is_known:  # noqa: ASYNC110 - nothing tells of it, and it is once
            await anyio.sleep(0.01)


def _settle_memory() -> None:
    """Keeps long-lived objects out of garbage collection, and lets young ones be collected less often."""
    gc.freeze()  # with a thousand that are garbage already: to find these takes 50 ms
    gc.enable()
    gc.set_threshold(20_000, 20, 50)
