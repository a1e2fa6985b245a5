"""ReadEnd: the node's end of a pipe that a process writes to. What reading takes is charged to its tenant."""

import asyncio
import errno
import os
from collections.abc import Callable

from app.processes.output.loop_share import LoopShare, used_s

PIPE_BYTES = 256 << 10  # of stdout: a large answer arrives in few pieces


class ReadEnd(asyncio.Protocol):
    """While the tenant is over its share of the loop, nothing is read between two turns."""

    def __init__(self, share: LoopShare) -> None:
        self._share = share
        self._transport: asyncio.ReadTransport | None = None
        self._turn: asyncio.Task[None] | None = None  # that is waited for

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def drain(self) -> None:
        """Reads what a dead process had written, at most what a pipe holds. The loop may see it only later."""
        transport, left = self._open_transport(), PIPE_BYTES
        if transport is None:
            return
        descriptor = transport.get_extra_info("pipe").fileno()
        while left > 0:
            try:
                data = os.read(descriptor, min(left, 65536))
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EIO):
                    raise
                return
            if not data:
                return
            left -= len(data)
            self.data_received(data)

    def close(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
        if self._transport is not None:
            self._transport.close()

    def _open_transport(self) -> asyncio.ReadTransport | None:
        transport = self._transport
        return None if transport is None or transport.is_closing() else transport

    # --- the tenant's share

    def _took(self, seconds: float) -> None:
        self._share.took(seconds)
        if self._share.is_due and self._turn is None and self._open_transport() is not None:
            self._hold()
            self._turn = asyncio.get_running_loop().create_task(self._wait(), name="wait for a turn to read a process")

    async def _wait(self) -> None:
        await self._share.turn()
        self._turn = None
        self._go_on()

    def _hold(self) -> None:
        transport = self._open_transport()
        if transport is not None:
            transport.pause_reading()

    def _go_on(self) -> None:
        transport = self._open_transport()
        if transport is not None:
            transport.resume_reading()


class Stderr(ReadEnd):
    """Reads without other pauses, so that the process never blocks on stderr for long."""

    def __init__(self, feed: Callable[[bytes], None], share: LoopShare) -> None:
        super().__init__(share)
        self._feed = feed

    def data_received(self, data: bytes) -> None:
        began = used_s()
        self._feed(data)
        self._took(used_s() - began)
