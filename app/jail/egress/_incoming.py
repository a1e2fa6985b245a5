"""Reads a request from a connection, under limits of bytes and time."""

import asyncio
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Protocol

from app.jail.egress import _http_requests as http_requests
from app.jail.egress.allowed import Allowed
from app.jail.egress.refusals import Reason, Refused, socks_reply
from app.text.public_addresses import Address, parse_host

MAX_HEAD_BYTES, MAX_PIECES = 16384, 1024  # of a request
_PIECE_BYTES = 16384

_SOCKS5, _NO_METHOD, _NO_AUTHENTICATION = 5, 0xFF, 0
_CONNECT, _IPV4, _NAME, _IPV6 = 1, 1, 3, 4
_TYPE_NOT_SUPPORTED = 8
_ESTABLISHED = b"HTTP/1.1 200 Connection Established\r\n\r\n"


class ClientGone(Exception):
    """The client closed its end before its request was complete."""


@dataclass(frozen=True, slots=True)
class Request:
    """`answer` goes to the client when the connection is made, `first` to the destination. After that the client sends
    `body_bytes` more; None is no limit."""

    host: Address | str
    port: int
    answer: bytes
    first: bytes
    body_bytes: int | None = None


class Beginning(Protocol):
    """The beginning of one connection: where it is to go."""

    async def request(self) -> Request:
        """What the client asks for. Raises Refused, ClientGone."""

    def refusal(self, refused: Refused) -> bytes:
        """The answer, in the client's protocol; empty: it has none, and the connection is reset."""


class Meant:
    """That of a connection which the client believes to be to its destination."""

    def __init__(self, client: socket.socket, allowed: Allowed) -> None:
        self._client, self._allowed = client, allowed

    async def request(self) -> Request:
        try:
            text, port = self._client.getsockname()[:2]
        except OSError:
            raise ClientGone from None
        return Request(self._allowed.host_at(ip_address(text), port), port, b"", b"")

    def refusal(self, refused: Refused) -> bytes:
        return b""


class Incoming:
    """That of a connection to the proxy."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._read = bytearray()
        self._is_socks, self._pieces = False, 0

    async def request(self) -> Request:
        """What the client asks for.

        Raises:
            Refused: it cannot be understood.
            ClientGone: it has gone away.
        """
        await self._fill(1)
        self._is_socks = self._read[0] == _SOCKS5
        return await self._socks() if self._is_socks else await self._http()

    def refusal(self, refused: Refused) -> bytes:
        """The answer, in the client's protocol."""
        return refused.socks() if self._is_socks else refused.http()

    # --- HTTP

    async def _http(self) -> Request:
        asked = http_requests.parse(await self._head())
        if asked.head is None:
            return Request(asked.host, asked.port, _ESTABLISHED, self._rest())
        rest = self._rest()
        if len(rest) > asked.body_bytes:
            raise Refused(Reason.MALFORMED, "one request must be answered before the next")
        return Request(asked.host, asked.port, b"", asked.head + rest, asked.body_bytes - len(rest))

    async def _head(self) -> bytes:
        if not 65 <= self._read[0] <= 90:
            raise Refused(Reason.MALFORMED, "it is neither HTTP nor SOCKS5")
        searched = 0
        while (end := self._read.find(b"\r\n\r\n", searched)) < 0:
            searched = max(0, len(self._read) - 3)
            if len(self._read) >= MAX_HEAD_BYTES:
                raise Refused(Reason.TOO_LARGE, f"a head may have {MAX_HEAD_BYTES} bytes")
            await self._fill(len(self._read) + 1)
        return self._take(end + 4)

    # --- SOCKS5 (RFC 1928)

    async def _socks(self) -> Request:
        _, count = await self._exactly(2)
        if _NO_AUTHENTICATION not in await self._exactly(count):
            await self._say(bytes((_SOCKS5, _NO_METHOD)))
            raise ClientGone
        await self._say(bytes((_SOCKS5, _NO_AUTHENTICATION)))
        version, command, _, kind = await self._exactly(4)
        if version != _SOCKS5:
            raise Refused(Reason.MALFORMED)
        if command != _CONNECT:
            raise Refused(Reason.COMMAND, "of SOCKS5 only CONNECT is offered")
        host = await self._socks_host(kind)
        port = int.from_bytes(await self._exactly(2), "big")
        return Request(host, port, socks_reply(0), self._rest())

    async def _socks_host(self, kind: int) -> Address | str:
        if kind == _IPV4:
            return IPv4Address(await self._exactly(4))
        if kind == _IPV6:
            return IPv6Address(await self._exactly(16))
        if kind != _NAME:
            await self._say(socks_reply(_TYPE_NOT_SUPPORTED))
            raise ClientGone
        size = (await self._exactly(1))[0]
        try:
            return parse_host((await self._exactly(size)).decode("ascii"))
        except ValueError as error:
            raise Refused(Reason.MALFORMED, str(error)) from None

    # --- bytes

    async def _fill(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        while len(self._read) < size:
            try:
                piece = await loop.sock_recv(self._client, _PIECE_BYTES)
            except OSError:
                raise ClientGone from None
            if not piece:
                raise ClientGone
            self._read += piece
            self._pieces += 1
            if self._pieces > MAX_PIECES:
                raise Refused(Reason.TOO_LARGE, f"a request may come in {MAX_PIECES} pieces")
            await asyncio.sleep(0)  # the next piece may be there already

    async def _exactly(self, size: int) -> bytes:
        await self._fill(size)
        return self._take(size)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._read[:size])
        del self._read[:size]
        return taken

    def _rest(self) -> bytes:
        return self._take(len(self._read))

    async def _say(self, content: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._client, content)
        except OSError:
            raise ClientGone from None
