"""Channel: the HTTP requests of one upstream session, and what is read of their answers."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import anyio
import httpcore2

from app.auth.outbound_urls import OutboundUrl
from app.backends.upstreams._events import EventReader, EventTooLarge, ServerEvent
from app.backends.upstreams._flow import Flow
from app.backends.upstreams._statuses import Answer, Body
from app.backends.upstreams.connecting import CannotConnect, Connection, Network
from app.backends.upstreams.requests import Headers
from app.backends.upstreams.tls import MAYBE_GIVE_ONE
from app.errors import BackendUnavailable, CallCutOff, GatewayError, InvalidResponse, ResponseTooLarge

KEPT_CONNECTIONS = 4
# Servers close idle connections after five seconds or more: a request must not meet that.
KEPT_S = 4.0
REST_S = 0.5  # for the rest of an answer that has been read, so that its connection can be used again
MAX_ERROR_BYTES = 64 << 10  # of the body of an error
MAX_CHUNKS = 65_536  # of a body: a parser takes its time for each, however short


# The network makes connections with TLS: without a context of ours the pool would read the authorities each time.
_UNUSED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class StreamCut(Exception):
    """A stream ended in the middle, or without what it was read for."""


class NotReached(BackendUnavailable):
    """There is no connection to the server: nothing was sent."""


class NotAnswered(CallCutOff):
    """The connection broke before the head of an answer came."""


class Exchanged:
    """One answer, while it is read."""

    def __init__(self, response: httpcore2.Response, answer: Answer, flow: Flow, limit_bytes: int) -> None:
        self.answer, self._flow, self._limit = answer, flow, limit_bytes
        self._stream = response.aiter_stream()

    async def body(self, limit_bytes: int | None = None) -> bytes:
        """All of it.

        Raises:
            ResponseTooLarge: it has more bytes than the limit, or comes in too many pieces.
            StreamCut: it ended too early.
        """
        most = limit_bytes or self._limit
        found = b"" if self.answer.length > most else await self.beginning(most + 1)
        if self.answer.length > most or len(found) > most:
            raise ResponseTooLarge("the server's answer has too many bytes")
        return found

    async def beginning(self, most: int) -> bytes:
        """All of it, or at least this many bytes. Raises as `body`, but for the bytes."""
        chunks, size = list[bytes](), 0
        try:
            while size < most and (chunk := await self._read()):
                size += len(chunk)
                chunks.append(chunk)
                self._flow.read(len(chunk))
                if len(chunks) > MAX_CHUNKS:
                    raise ResponseTooLarge(f"the server's answer comes in more than {MAX_CHUNKS} pieces")
            return b"".join(chunks)
        finally:
            chunks.clear()  # an error leads back here, and may go only with a garbage collection

    async def events(self, reader: EventReader) -> list[ServerEvent] | None:
        """The next events, perhaps none yet; None at the end of the stream.

        Raises:
            ResponseTooLarge: one has more bytes than the limit.
            StreamCut: the connection broke.
        """
        chunk = await self._read()
        if not chunk:
            return None
        self._flow.read(len(chunk), chunk.count(b"\n"))
        try:
            return reader.feed(chunk)
        except EventTooLarge:
            raise ResponseTooLarge("an event of the server has too many bytes") from None

    async def _read(self) -> bytes:
        await self._flow.turn()
        try:
            return await anext(self._stream, b"")
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as error:
            raise StreamCut(_words(error)) from None

    async def finish(self) -> None:
        """Reads what is left for a moment, so that the connection can be used again."""
        with suppress(StreamCut), anyio.move_on_after(REST_S):
            while await self._read():
                pass


class Channel:
    """Requests to one URL, over connections of its own. `aclose` closes them."""

    def __init__(
        self,
        network: Network,
        url: OutboundUrl,
        headers: Headers,
        flow: Flow,
        limit_bytes: int,
        to_proxy: Headers | None = None,
    ) -> None:
        """`to_proxy`: for the proxy that forwards the requests, if one does."""
        self._network, self.url, self._headers, self.flow, self._limit = network, url, headers, flow, limit_bytes
        self._prefix = "" if to_proxy is None else f"{url.scheme}://{url.authority}"
        self._to_proxy = to_proxy or []
        self._has_answered = False
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=_UNUSED,
            max_connections=None,
            max_keepalive_connections=KEPT_CONNECTIONS,
            keepalive_expiry=KEPT_S,
            network_backend=network,
        )

    @property
    def host(self) -> str:
        """For people."""
        return self.url.authority

    @asynccontextmanager
    async def request(
        self, method: str, headers: Headers, body: bytes = b"", *, target: str | None = None
    ) -> AsyncIterator[Exchanged]:
        """One request, whose answer is closed with the block. One redirect on the same server is followed.

        Raises:
            NotReached: there is no connection; nothing was sent.
            NotAnswered: the connection broke before the head of the answer came.
            InvalidResponse: what came is no HTTP.
        """
        here = replace(self.url, target=target or self.url.target)
        response = await self._sent(self._request(method, headers, body, here.target))
        try:
            answer = Answer(response.status, response.headers)
            elsewhere = answer.redirects_to(here)
            if elsewhere is not None:
                await response.aclose()
                response = await self._sent(self._request(method, headers, body, elsewhere))
                answer = Answer(response.status, response.headers)
            connection = response.extensions["network_stream"]
            if isinstance(connection, Connection):  # not with HTTP 101
                connection.head_was_read(is_cut=answer.length < 0 or answer.body is Body.EVENTS)
            yield Exchanged(response, answer, self.flow, self._limit)
        finally:
            await response.aclose()

    def _request(self, method: str, headers: Headers, body: bytes, target: str) -> httpcore2.Request:
        url = self.url
        return httpcore2.Request(
            method,
            httpcore2.URL(
                scheme=url.scheme.encode(), host=url.host.encode(), port=url.port,
                target=(self._prefix + target).encode(),
            ),
            headers=[
                *self._headers, *self._to_proxy, *headers,
                *([(b"Content-Length", b"%d" % len(body))] if body else []),
            ],
            content=body,
        )  # fmt: skip

    async def _sent(self, request: httpcore2.Request) -> httpcore2.Response:
        try:
            response = await self._pool.handle_async_request(request)
            self._has_answered = True
            return response
        except httpcore2.ConnectError as error:
            cause = error.args[0] if error.args else ""  # the pool leaves no other
            raise not_reached(cause if isinstance(cause, CannotConnect) else CannotConnect(str(cause))) from None
        except (httpcore2.LocalProtocolError, httpcore2.RemoteProtocolError) as error:
            if isinstance(error, httpcore2.RemoteProtocolError) and "disconnected" not in str(error):
                raise InvalidResponse(f"{self.host} does not answer in HTTP/1.1: {_words(error)}") from None
            hint = MAYBE_GIVE_ONE if self.url.scheme == "https" and not self._has_answered else None
            raise NotAnswered(f"{self.host} closed the connection before it answered", hint=hint) from None
        except (httpcore2.NetworkError, httpcore2.TimeoutException) as error:
            words = f"the connection to {self.host} broke before the answer came: {_words(error)}"
            raise NotAnswered(words) from None

    async def aclose(self) -> None:
        self._network.forget()
        await self._pool.aclose()


def not_reached(error: CannotConnect) -> GatewayError:
    """The error for who wanted a connection."""
    return NotReached(f"the server cannot be reached: {error}", hint=error.hint)


def _words(error: BaseException) -> str:
    return str(error)[:200] or type(error).__name__
