"""TCP lines between any two parts that can be cut, refused, stalled in one direction or both, and slowed."""

import asyncio
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

Address = tuple[str, int]
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing is a reset


class Line:
    """Passes bytes from its own port to wherever `target` says at the moment (None: nobody listens)."""

    def __init__(self, target: Callable[[], Address | None]) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, ...]] = {}
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._delay_s, self._refuses = 0.0, False
        self.heal()
        self.port = 0

    async def open(self, address: str = "127.0.0.1") -> None:
        """Takes a port, for good."""
        self._server = await asyncio.start_server(self._serve, address, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        """Ends every connection; each ends its own task."""
        if self._server is not None:
            self._server.close()
        self.heal()
        self.refuse()
        while self._open:
            await asyncio.wait(self._open)

    # --- what can happen to it

    def cut(self, share: float = 1.0, chance: random.Random | None = None) -> None:
        """Resets this share of the connections, at both ends."""
        for writers in list(self._open.values()):
            if chance is None or chance.random() < share:
                for writer in writers:
                    _reset(writer)

    def refuse(self) -> None:
        """Cuts all, and every new one as soon as it is made."""
        self._refuses = True
        self.cut()

    def stall(self, *, up: bool, down: bool) -> None:
        """Passes nothing on any more, as a network does that loses everything: nobody is told."""
        if up:
            self._up.clear()
        if down:
            self._down.clear()

    def slow(self, delay_s: float) -> None:
        """Passes each piece so much later."""
        self._delay_s = delay_s

    def heal(self) -> None:
        """As if nothing had been; what was held is passed on now."""
        self._refuses, self._delay_s = False, 0.0
        self._up.set()
        self._down.set()

    # --- passing on

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = (writer,)
        end: Callable[[asyncio.StreamWriter], None] = _reset
        try:
            with suppress(OSError, RuntimeError):  # RuntimeError: uvloop, writing to what was reset meanwhile
                if await self._connect(task, reader, writer):
                    end = asyncio.StreamWriter.close
        finally:
            for each in self._open.pop(task):
                end(each)

    async def _connect(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether it came to an end that both sides wanted."""
        if self._refuses:
            return False
        await self._up.wait()
        address = self._target()
        if address is None:
            return False
        there, back = await asyncio.open_connection(*address)
        self._open[task] = (writer, back)
        if self._refuses:  # since
            return False
        passing = [
            asyncio.ensure_future(self._pass(reader, back, self._up)),
            asyncio.ensure_future(self._pass(there, writer, self._down)),
        ]
        try:
            await asyncio.gather(*passing)
            return True
        finally:
            for each in passing:
                each.cancel()
            await asyncio.gather(*passing, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        """Until one side ends its half, which the other is told."""
        while piece := await reader.read(65536):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            await gate.wait()
            writer.write(piece)
            await writer.drain()
        await gate.wait()
        writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, ValueError, AttributeError):  # it is closed already
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
