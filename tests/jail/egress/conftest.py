"""An egress proxy that may reach loopback, with names of its own, and servers to reach."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import Any

import pytest

from app.jail.egress.egress import Egress, EgressLine, EgressOptions
from app.jail.egress.outgoing import PortRule
from app.telemetry.metrics import Metrics

LOOPBACK = ip_network("127.0.0.0/8")
WAIT_S = 60.0
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class AnyPort(PortRule):
    async def permit(self, outgoing: Any) -> Sequence[Any]:
        return ()


class Lookup:
    """A resolver; each look-up of a name gets its next answer, the last for ever."""

    def __init__(self, **names: list[Sequence[str] | Exception]) -> None:
        self.names = {name.replace("_", "."): answers for name, answers in names.items()}
        self.asked: list[str] = []

    def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        answers = self.names.get(name) or [socket.gaierror(-2, "Name or service not known")]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@asynccontextmanager
async def proxy(line_of: tuple[str, str] = ("acme", "files"), **options: Any) -> AsyncIterator["Proxied"]:
    """An Egress with one line, whose listener is on this machine's loopback."""
    chosen = {"allow": (LOOPBACK,), "rule": AnyPort(), "lookup": Lookup(), **options}
    metrics = Metrics("0")
    async with Egress(metrics, EgressOptions(**chosen)) as egress:
        yield Proxied(egress, metrics, listen(egress, *line_of))


def listen(egress: Egress, tenant: str, backend: str) -> EgressLine:
    line = egress.open(tenant, backend)
    line.listen(socket.create_server(("127.0.0.1", 0)))
    return line


class Proxied:
    """What a test sees of it."""

    def __init__(self, egress: Egress, metrics: Metrics, line: EgressLine) -> None:
        self.egress, self.metrics, self.line = egress, metrics, line

    @property
    def port(self) -> int:
        return self.line._listeners[0][0].getsockname()[1]

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)

    async def connect(self, target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
        """A connection after CONNECT, and the head of the answer."""
        reader, writer = await self.open()
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        return reader, writer, await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)

    async def says(self, sent: bytes) -> bytes:
        """All that is answered to these bytes."""
        reader, writer = await self.open()
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), WAIT_S)
        writer.close()
        return answer

    def refusals(self, reason: str) -> float:
        return self.metrics.registry.get_sample_value("trunkline_egress_refusals_total", {"reason": reason}) or 0.0

    @property
    def connections(self) -> float | None:
        return self.metrics.registry.get_sample_value("trunkline_egress_connections")


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)
        await writer.drain()


@asynccontextmanager
async def server(answer: Answer = echo) -> AsyncIterator[int]:
    """A server on loopback; yields its port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 24, backlog=2048)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """As a node runs."""
    return "asyncio", {"use_uvloop": True}
