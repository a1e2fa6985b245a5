"""serve: runs one node until it is told to stop, and stops it in the right order.

On SIGTERM or SIGINT: not ready, no new sessions, calls in flight finish (at most DRAIN_S), streams end, the
listeners close, processes stop, exit 0. A second signal cuts this short.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Iterator

import anyio
import uvicorn
import uvloop

from app import logs
from app.demo import prepare_demo
from app.errors import SettingsError
from app.gateway import Gateway, open_gateway
from app.main import create_app
from app.settings import Settings
from app.storage import migrate

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 30  # an idle connection is closed after this
LAST_RESPONSES_S = 5  # how long responses that were cut off may take to be written
BACKLOG = 2048


def serve(settings: Settings, *, demo: bool = False) -> int:
    """Runs a node on this thread, until it is told to stop; then returns the exit status 0.

    Raises:
        SettingsError: the address is taken.
        GatewayError: something else that is needed does not work.
    """
    logs.configure(settings.log_level)
    migrate.prepare(settings.database_url)
    with _listen(settings) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Node(settings, listener, demo=demo).run())
    return 0


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another with --port"
        ) from None


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: it would close the listeners before the drain."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, and says so."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Node:
    """One run of a node."""

    def __init__(self, settings: Settings, listener: socket.socket, *, demo: bool) -> None:
        self._settings, self._listener, self._demo = settings, listener, demo
        self._asked_to_stop = asyncio.Event()
        self._server: _Server | None = None

    async def run(self) -> None:
        """Opens the gateway, serves, drains, closes."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        async with open_gateway(self._settings) as gateway:
            config = uvicorn.Config(
                create_app(gateway),
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=LAST_RESPONSES_S,
            )
            self._server = _Server(config)
            _settle_memory()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._drain_when_asked, gateway)
                tasks.start_soon(self._announce, gateway)
                await self._server.serve(sockets=[self._listener])
                tasks.cancel_scope.cancel()

    def _signalled(self) -> None:
        if self._asked_to_stop.is_set() and self._server is not None:
            self._server.force_exit = self._server.should_exit = True
        self._asked_to_stop.set()

    async def _drain_when_asked(self, gateway: Gateway) -> None:
        await self._asked_to_stop.wait()
        cut_off = await gateway.registry.drain(self._settings.drain_s)
        if cut_off:
            log.error("calls that did not finish in time were cut off: %d", cut_off)
        assert self._server is not None
        self._server.should_exit = True

    async def _announce(self, gateway: Gateway) -> None:
        """Prints the ready line once the port answers, then what the demonstration has to say."""
        assert self._server is not None
        await self._server.listening.wait()
        url = self._url()
        print(f"listening on {url}", flush=True)
        if self._demo:
            print(await prepare_demo(gateway, url), flush=True)

    def _url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _settle_memory() -> None:
    """What lives as long as the process is not looked at again; young garbage is collected in larger lots."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
