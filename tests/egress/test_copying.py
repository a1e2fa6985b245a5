"""Copier: what one connection may do to the others."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import anyio
import anyio.lowlevel
import pytest

from app.egress.copying import Copier, Tunnel

Ends = tuple[socket.socket, socket.socket, socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[list[Ends]]:
    """Of two connections: the backend's end, the two that are copied between, the destination's end."""
    with ExitStack() as stack:
        pairs = [[stack.enter_context(each) for each in (*socket.socketpair(), *socket.socketpair())] for _ in "ab"]
        for pair in pairs:
            for each in pair:
                each.setblocking(False)
        yield [tuple(pair) for pair in pairs]  # type: ignore[misc]


async def read(end: socket.socket) -> bytes:
    with anyio.fail_after(10):
        while True:
            try:
                return end.recv(100)
            except BlockingIOError:
                await anyio.sleep(0.001)


async def test_an_unexpected_error_cuts_off_its_connection_and_no_other(
    ends: list[Ends], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (sent, client, destination, _), (other, *copied, received) = ends
    copier, ended = Copier(), []
    broken = Tunnel(copier, client, destination, None, lambda out, back: None)
    good = Tunnel(copier, copied[0], copied[1], None, lambda out, back: None)

    def fails() -> bool:
        raise ValueError("a bug")

    monkeypatch.setattr(broken._out, "_copy", fails)

    async def run_broken() -> None:
        ended.append(await broken.run())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_broken)
        tasks.start_soon(good.run)
        await anyio.lowlevel.checkpoint()
        sent.send(b"x")
        with anyio.fail_after(30):
            while not ended:
                await anyio.sleep(0.001)
        other.send(b"y")
        assert await read(received) == b"y"
        tasks.cancel_scope.cancel()
    copier.close()
    assert ended == [False]
    assert "a bug" in caplog.text
