"""An HTTP proxy as companies have one: CONNECT and requests with a whole URL, names of its own, perhaps credentials."""

import asyncio
import base64
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Proxy:
    """`asked`: the first line of each request and its headers. `names`: what it knows, and where that is; `ports`:
    which of them are others there."""

    port: int = 0
    names: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[int, int] = field(default_factory=dict)
    credentials: str = ""
    answer: bytes = b""  # instead of doing it
    scheme: str = "http"
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def where(self, authority: str) -> tuple[str, int] | None:
        host, _, port = authority.rpartition(":")
        known = host if host.startswith("127.") else self.names.get(host)
        return None if known is None else (known, self.ports.get(int(port), int(port)))

    def refusal(self, headers: Mapping[str, str]) -> bytes:
        if self.answer:
            return self.answer
        wanted = base64.b64encode(self.credentials.encode()).decode()
        if self.credentials and headers.get("proxy-authorization") != f"Basic {wanted}":
            return b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n"
        return b""


@asynccontextmanager
async def proxying(tls: ssl.SSLContext | None = None, **members: object) -> AsyncIterator[Proxy]:
    """A proxy on loopback, closed with the block."""
    proxy, open_now = Proxy(**members), set[asyncio.StreamWriter]()  # type: ignore[arg-type]
    proxy.scheme = "http" if tls is None else "https"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
                await _one(proxy, reader, writer, open_now)
        finally:
            open_now.discard(writer)
            writer.transport.abort()

    listener = await asyncio.start_server(serve, "127.0.0.1", proxy.port, ssl=tls)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()
        for writer in list(open_now):
            writer.transport.abort()


async def _one(
    proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, open_now: set[asyncio.StreamWriter]
) -> None:
    raw = await reader.readuntil(b"\r\n\r\n")
    first, *lines = raw.decode().split("\r\n")[:-2]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    proxy.asked.append((first, headers))
    method, target, _ = first.split(" ")
    if refusal := proxy.refusal(headers):
        writer.write(refusal)
        return await writer.drain()
    is_tunnel = method == "CONNECT"
    place = proxy.where(target if is_tunnel else target.split("/")[2])
    if place is None:
        writer.write(b"HTTP/1.1 502 Unknown Host\r\nContent-Length: 0\r\n\r\n")
        return await writer.drain()
    there, to = await asyncio.open_connection(*place)
    open_now.add(to)
    try:
        if is_tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\nVia: 1.1 proxy\r\n\r\n")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy(reader, to))
                tasks.create_task(_copy(there, writer))
            return None
        # The whole URL becomes a path, and what is for the proxy stays here. One request for each connection.
        kept = [line for line in lines if not line.lower().startswith("proxy-")]
        head = "\r\n".join([f"{method} /{target.split('/', 3)[3]} HTTP/1.1", *kept, "", ""])
        to.write(head.encode() + await reader.readexactly(int(headers.get("content-length", 0))))
        answer = await there.readuntil(b"\r\n\r\n")
        writer.write(answer[:-2] + b"Connection: close\r\n\r\n")
        length = re.search(rb"(?i)content-length: *([0-9]+)", answer)
        if length is None:
            await _copy(there, writer)
        else:
            writer.write(await there.readexactly(int(length[1])))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    finally:
        open_now.discard(to)
        to.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, ssl.SSLError):  # one side is gone, which the other is told
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
