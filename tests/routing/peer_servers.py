"""Other nodes, as far as their sockets go: a real uvicorn in a thread or a process, or a script of raw bytes."""

import asyncio
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import anyio
import uvicorn
import uvloop

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 10.0
STILL_S = 0.15  # what goes through two sockets does not pause for so long
SLOW = [sys.executable, str(ROOT / "tests/servers/slow_http.py")]

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]


async def until(is_true: Callable[[], object]) -> None:
    """Waits for a condition that nothing tells of."""
    with anyio.fail_after(WITHIN_S):
        while not is_true():
            await anyio.sleep(0.005)


async def stands_still(count: Callable[[], int]) -> int:
    """Waits until a number grows no more; the number. Nothing tells of what does not happen."""
    last, since = -1, time.monotonic()
    with anyio.fail_after(WITHIN_S):
        while time.monotonic() - since < STILL_S:
            if count() != last:
                last, since = count(), time.monotonic()
            await anyio.sleep(0.005)
    return last


class PromptServer(uvicorn.Server):
    """uvicorn that stops when it is told to, instead of looking ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._is_told = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """From any thread."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._is_told.set)

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._is_told.wait()

    async def shutdown(self, sockets: Any = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with anyio.move_on_after(1):
            while self.server_state.connections or self.server_state.tasks:
                await anyio.sleep(0.002)
        for task in self.server_state.tasks:
            task.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: Any, **config: Any) -> AsyncIterator[str]:
    """The URL of a uvicorn that serves this, as a node does, on a loop of its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        server = PromptServer(
            uvicorn.Config(
                app, http="httptools", lifespan="off", log_config=None, timeout_graceful_shutdown=1, **config
            )
        )

        def run() -> None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(server.serve(sockets=[listener]))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            scheme = "https" if "ssl_certfile" in config else "http"
            yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.stop()
            await anyio.to_thread.run_sync(thread.join, WITHIN_S)
            assert not thread.is_alive()


@contextmanager
def process() -> Iterator[tuple[str, Popen[bytes]]]:
    """A node in a process of its own: it takes requests and never answers."""
    with Popen(SLOW, stdin=DEVNULL, stdout=PIPE) as running:
        try:
            assert running.stdout is not None
            yield f"http://127.0.0.1:{int(running.stdout.readline())}", running
        finally:
            running.kill()


class Scripted:
    """What a scripted node has seen."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[bytes] = []
        self.connections = 0
        self.open = 0


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Scripted]:
    """A node that does with its n-th connection what the script says."""
    seen = Scripted()
    tasks: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        seen.open += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await script(reader, writer, seen.connections)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side has gone, or the test is over
        finally:
            seen.open -= 1
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 20)
    seen.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield seen
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """One request, body included."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length: "):
            return head + await reader.readexactly(int(line.split(b": ")[1]))
    return head


def answer(body: bytes = b"{}", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n%b" % (len(body), headers, body)
