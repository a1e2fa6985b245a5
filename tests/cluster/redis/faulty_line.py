"""A line to Redis that is slow, breaks off in the middle of an answer, or alters bytes."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

Fault = Callable[[bytes], bytes | None]  # what becomes of a piece of an answer; None breaks the line off after half


class FaultyLine:
    """Set `delay_s` and `fault`, or clear `may_answer`, at any time. After `die` the connections there are stay open
    and carry nothing more, as after a pause in which a firewall has forgotten them; new ones work."""

    def __init__(self, url: str) -> None:
        self._to = urlsplit(url)
        self._open: set[asyncio.Task[None]] = set()
        self._dead: set[asyncio.Task[None]] = set()
        self.delay_s = 0.0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.fault: Fault = lambda piece: piece
        self.url = ""

    def die(self) -> None:
        self._dead |= self._open

    @property
    def connections(self) -> int:
        """How many there are, dead ones included."""
        return len(self._open)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        there, back = await asyncio.open_connection(self._to.hostname, self._to.port)
        try:
            with suppress(OSError):
                await asyncio.gather(self._requests(reader, back, task), self._answers(there, writer, task))
        finally:
            self._open.discard(task)
            self._dead.discard(task)
            for each in (writer, back):
                each.transport.abort()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: asyncio.Task[None]
    ) -> None:
        while piece := await reader.read(65536):
            if line not in self._dead:
                writer.write(piece)
        raise ConnectionResetError

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: asyncio.Task[None]
    ) -> None:
        while piece := await reader.read(65536):
            if line in self._dead:
                continue
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await self.may_answer.wait()
            altered = self.fault(piece)
            writer.write(piece[: len(piece) // 2] if altered is None else altered)
            await writer.drain()
            if altered is None:
                raise ConnectionResetError
        raise ConnectionResetError

    async def aclose(self) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


@asynccontextmanager
async def faulty_line(url: str) -> AsyncIterator[FaultyLine]:
    line = FaultyLine(url)
    server = await asyncio.start_server(line.serve, "127.0.0.1", 0)
    line.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    try:
        yield line
    finally:
        server.close()
        await line.aclose()
        await server.wait_closed()


def altering(share: float, seed: int = 1) -> Fault:
    """Turns a bit in this share of the pieces."""
    chance = random.Random(seed)

    def alter(piece: bytes) -> bytes:
        if chance.random() >= share:
            return piece
        at = chance.randrange(len(piece))
        return piece[:at] + bytes([piece[at] ^ (1 << chance.randrange(7))]) + piece[at + 1 :]

    return alter
