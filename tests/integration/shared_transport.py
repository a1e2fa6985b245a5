"""What Trunkline is not: an HTTP+SSE server with one shared transport and one process, whoever comes.

The newest stream replaces the one before, and every answer goes to it. tests/integration/test_isolation.py runs its
check against this server to show that the check would see the flaw.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.integration.gateway import ECHO

EVENT = "event: {}\r\ndata: {}\r\n\r\n"


class SharedTransport:
    """One process, and the one stream that its answers go to."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.stream: asyncio.StreamWriter | None = None
        self.connections: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: a GET becomes the stream, each POST goes to the process."""
        self.connections.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET "):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
                    writer.write(EVENT.format("endpoint", "/messages?sessionId=everyone").encode())
                    self.stream = writer  # the flaw
                    continue
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                body = await reader.readexactly(int(length.split(b":")[1]))
                assert self.process.stdin is not None
                self.process.stdin.write(body + b"\n")
                writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connections.discard(writer)
            writer.close()

    async def pass_answers_on(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if self.stream is not None and not self.stream.is_closing():
                self.stream.write(EVENT.format("message", json.dumps(json.loads(line))).encode())


@asynccontextmanager
async def shared_transport() -> AsyncIterator[str]:
    """A running one; its address."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *ECHO[1:], stdin=pipe, stdout=pipe)
    transport = SharedTransport(process)
    server = await asyncio.start_server(transport.serve, "127.0.0.1", 0)
    answers = asyncio.create_task(transport.pass_answers_on())
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/sse"
    finally:
        answers.cancel()
        server.close()
        for connection in list(transport.connections):
            connection.close()
        process.kill()
        await process.wait()
