"""A program of its own: strangers who send junk of some kinds, in turn, on so many connections, each of them anew as
soon as it is closed, for some seconds or until it is killed. It says `ready` once all have connected.

    junk.py KIND,KIND… HOST:PORT PATH KEY CONNECTIONS SECONDS AGAIN

A stranger whose connection was closed comes again after AGAIN seconds. PATH is that of an MCP endpoint. KEY is a good
one: only those who send long methods and ask for sessions that there are not use it.
"""

import asyncio
import itertools
import json
import os
import random
import secrets
import string
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

ASK_EVERY_S = 0.2  # who gets answers asks so often on average: with 200 of them a thousand a second
REGISTER_EVERY_S = 1.2  # who registers does so often on average: 200 of them 10,000 times a minute
SEND_EVERY_S = 2.0  # who has a key sends a long body so often: ten megabytes a second
LONG = "7" * 20_000
INITIALIZE = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
    b'"clientInfo":{"name":"junk","version":"1"}}}'
)

Send = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Junk:
    """Each kind is a method: it sends until the connection is closed."""

    def __init__(self, host: str, path: str, key: str) -> None:
        self.host, self.path, self.key = host, path, key
        self.counter = itertools.count()

    async def pipelines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests without end, whose answers are not read."""
        lot = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n" * 2_000
        while True:
            writer.write(lot)
            await writer.drain()

    async def patient_pipelines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As many requests as may wait, again and again, whose answers are not read."""
        while True:
            writer.write(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n" * 16)
            await writer.drain()
            await self.pause(16 * ASK_EVERY_S)

    async def long_heads(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A header without end, in many pieces."""
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
        while True:
            writer.write(b"x" * 1_000)
            await writer.drain()
            await asyncio.sleep(0.005)

    async def half_heads(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Half a head, and a byte more now and then."""
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
        while True:
            writer.write(b"x")
            await self.look(reader)

    async def silence(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Nothing at all."""
        await self.until_closed(reader)

    async def slow_bodies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A byte of a body now and then."""
        writer.write(self.head("Authorization: Bearer nonsense", f"Content-Length: {1 << 20}"))
        while True:
            writer.write(b"x")
            await self.look(reader)

    async def small_chunks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Bodies without end in chunks of one byte, half of them with extensions."""
        chunk = random.choice((b"1\r\nx\r\n", b"1;a=b;c=d\r\nx\r\n"))
        writer.write(self.head("Transfer-Encoding: chunked"))
        await self.flood(reader, writer, chunk * 5_000)

    async def endless_bodies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A body of terabytes, which goes on whatever the answer was."""
        writer.write(self.head(f"Content-Length: {1 << 43}"))
        await self.flood(reader, writer, bytes(60_000))

    async def empty_lines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Where a request could begin."""
        await self.flood(reader, writer, b"\r\n" * 30_000)

    async def long_values(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Headers that are long, and never the same."""
        while True:
            for name, value in (("Host", "127.0.0.1:"), ("Origin", "http://127.0.0.1:"), ("Accept", "text/x")):
                line = f"{name}: {value}{next(self.counter)}{LONG}"
                await self.ask(reader, writer, self.head(line, f"Content-Length: {len(INITIALIZE)}") + INITIALIZE)

    async def long_methods(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Names of methods that are long, and never the same, from somebody with a key."""
        while True:
            method = b'{"jsonrpc":"2.0","id":1,"method":"%d%s"}' % (next(self.counter), b"m" * 100_000)
            head = self.head(f"Authorization: Bearer {self.key}", f"Content-Length: {len(method)}")
            await self.ask(reader, writer, head + method)
            await self.pause(SEND_EVERY_S)

    async def bad_keys(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keys that look right."""
        while True:
            key = "tlk_" + "".join(secrets.choice(string.ascii_letters) for _ in range(57))
            head = self.head(f"Authorization: Bearer {key}", f"Content-Length: {len(INITIALIZE)}")
            await self.ask(reader, writer, head + INITIALIZE)

    async def unknown_sessions(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Sessions that there are not, from somebody with a key."""
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
        while True:
            session = f"Mcp-Session-Id: {secrets.token_urlsafe(24)}"
            head = self.head(f"Authorization: Bearer {self.key}", session, f"Content-Length: {len(body)}")
            await self.ask(reader, writer, head + body)

    async def registrations(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Programs that are never the same, and what programs ask next, from addresses that are never the same."""
        server = f"/oauth/{self.path.split('/')[2]}"
        while True:
            name = secrets.token_hex(8)
            program = {"client_name": name, "redirect_uris": [f"https://{name}.example/callback"]}
            token = f"grant_type=refresh_token&refresh_token={name}&client_id={name}".encode()
            asked = f"client_id={name}&response_type=code&redirect_uri=https://{name}.example/callback"
            lines = "Content-Type: application/json", f"{server}/register", json.dumps(program).encode()
            forms = "Content-Type: application/x-www-form-urlencoded", f"{server}/token", token
            for kind, path, body in (lines, forms):
                words = f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n"
                await self.ask(reader, writer, words.encode() + body, REGISTER_EVERY_S)
            words = f"GET {server}/authorize?{asked} HTTP/1.1\r\nHost: {self.host}\r\n\r\n"
            await self.ask(reader, writer, words.encode(), REGISTER_EVERY_S)

    # --- what they have in common

    def head(self, *lines: str) -> bytes:
        own_host = any(line.startswith("Host:") for line in lines)
        every = (f"POST {self.path} HTTP/1.1", *([] if own_host else [f"Host: {self.host}"]))
        return "\r\n".join([*every, "Content-Type: application/json", *lines, "", ""]).encode()

    async def ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, every_s: float = ASK_EVERY_S
    ) -> None:
        """One request and its answer."""
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        await self.pause(every_s)

    async def flood(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lot: bytes) -> None:
        """The same again and again, as fast as it is taken; what is answered is read."""
        until_closed = asyncio.ensure_future(self.until_closed(reader))
        try:
            while not until_closed.done():
                writer.write(lot)
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            until_closed.cancel()
            await asyncio.gather(until_closed, return_exceptions=True)

    async def pause(self, seconds: float) -> None:
        """So long on average: strangers do not know each other."""
        await asyncio.sleep(random.uniform(0, 2 * seconds))

    async def look(self, reader: asyncio.StreamReader) -> None:
        """Waits a second, unless the connection is closed."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.until_closed(reader), 1)  # calm: a look, and no wait

    async def until_closed(self, reader: asyncio.StreamReader) -> None:
        while await reader.read(1 << 16):
            pass
        raise ConnectionError


async def come_again(junk: Junk, send: Send, again_s: float, connected: asyncio.Semaphore) -> None:
    host, port = junk.host.split(":")
    while True:
        with suppress(OSError, asyncio.IncompleteReadError, ValueError):
            there = (f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}", 0)
            local = there if send.__name__ == "registrations" else None
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=local)
            connected.release()
            try:
                await send(reader, writer)
            finally:
                writer.transport.abort()
        await asyncio.sleep(again_s)


async def main() -> None:
    kinds, host, path, key, number, seconds, again_s = sys.argv[1:]
    os.nice(10)  # strangers have machines of their own
    junk, connected = Junk(host, path, key), asyncio.Semaphore(0)
    ends_at = time.monotonic() + float(seconds)
    sends = itertools.islice(itertools.cycle([getattr(junk, kind) for kind in kinds.split(",")]), int(number))
    tasks = [asyncio.ensure_future(come_again(junk, send, float(again_s), connected)) for send in sends]
    for _ in tasks:
        await connected.acquire()
    print("ready", flush=True)
    await asyncio.sleep(ends_at - time.monotonic())
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
