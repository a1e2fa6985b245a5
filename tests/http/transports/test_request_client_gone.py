"""Work for a request ends with its client: told by the edge, and watched for where another server calls us."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from app.errors import BackendBusy, GatewayError
from app.http.scope import BY_KEY, LET_IN, WHEN_GONE
from app.http.transports.request import ClientGone, unless_gone
from tests.http.edge.rig import WITHIN_S, read_body
from tests.http.edge.serving import serving

pytestmark = pytest.mark.real

BODY_BYTES = 90_000  # arrives at once, and reading pauses before its end
Work = Callable[[], Awaitable[None]]


class Asked:
    """A request whose body has been read."""

    def __init__(self, scope: Any, receive: Any) -> None:
        self.scope, self.receive = scope, receive


class App:
    """Does the test's work for a request, and keeps what came of it."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.reads, self.began, self.over = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.outcome: BaseException | None = None
        self.scope: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        scope[LET_IN] = BY_KEY
        try:
            if scope["method"] == "POST":
                self.reads.set()
                await read_body(receive)
                self.began.set()
                await unless_gone(Asked(scope, receive), self.work)
        except (ClientGone, GatewayError, asyncio.CancelledError) as error:
            self.outcome = error
            self.over.set()
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def asking(app: App, size: int = 2) -> AsyncIterator[socket.socket]:
    """The connection of a client that has sent its request, once the work for it has begun."""
    async with serving(app) as host:
        with socket.create_connection(("127.0.0.1", int(host.partition(":")[2]))) as client, anyio.fail_after(WITHIN_S):
            client.setblocking(False)
            client.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")  # from now on all that has arrived is read at once
            assert await asyncio.get_running_loop().sock_recv(client, 1 << 10)
            client.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size)
            await app.reads.wait()
            assert client.send(bytes(size)) == size
            await app.began.wait()
            yield client
            await app.over.wait()


@pytest.mark.parametrize("size", [2, BODY_BYTES])
async def test_work_is_cancelled_when_the_client_disconnects(size: int) -> None:
    app = App(anyio.sleep_forever)
    async with asking(app, size) as client:
        assert WHEN_GONE in app.scope
        client.close()
    assert isinstance(app.outcome, ClientGone)
    assert app.scope[WHEN_GONE] is None


async def test_what_is_shielded_is_done_to_its_end() -> None:
    ended, gone = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            gone.set()
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                ended.set()

    app = App(work)
    async with asking(app) as client:
        client.close()
        await gone.wait()
    assert isinstance(app.outcome, ClientGone)
    assert ended.is_set()


async def test_a_client_that_has_gone_before_the_work_is_noticed_at_once() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive)
        read.set()
        await receive()  # until it has gone
        with pytest.raises(ClientGone):
            await unless_gone(Asked(scope, receive), anyio.sleep_forever)
        noticed.set()

    read, noticed = asyncio.Event(), asyncio.Event()
    async with serving(app) as host:
        _, writer = await asyncio.open_connection("127.0.0.1", int(host.partition(":")[2]))
        writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nok")
        with anyio.fail_after(WITHIN_S):
            await read.wait()
            writer.close()
            await noticed.wait()


async def test_an_error_of_the_work_is_raised_and_a_cancellation_from_outside_stays_one() -> None:
    async def fails() -> None:
        raise BackendBusy

    app = App(fails)
    async with asking(app):
        pass
    assert isinstance(app.outcome, BackendBusy)

    scope: dict[str, Any] = {WHEN_GONE: None}
    with anyio.move_on_after(0) as outer:
        await unless_gone(Asked(scope, None), anyio.sleep_forever)
    assert outer.cancelled_caught
    assert scope[WHEN_GONE] is None


async def test_another_server_is_asked_whether_the_client_has_gone() -> None:
    gone = asyncio.Event()

    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def work() -> None:
        gone.set()
        await anyio.sleep_forever()

    with pytest.raises(ClientGone):
        await unless_gone(Asked({}, receive), work)
    gone.clear()
    await unless_gone(Asked({}, receive), anyio.lowlevel.checkpoint)
