"""OldStream: the transport HTTP+SSE (2024-11-05). One stream has everything that the server says; its first event names
where to post."""

import asyncio

from app.auth.outbound_urls import MAX_URL
from app.backends.upstreams._calls import Call
from app.backends.upstreams._channel import Channel, Exchanged, StreamCut
from app.backends.upstreams._events import EventReader, ServerEvent
from app.backends.upstreams._statuses import Body, failure, target_on
from app.backends.upstreams._wire import ACCEPT_S, SessionLost, Side, refusal_in
from app.backends.upstreams.requests import GET, POST
from app.errors import BackendTimeout, CallCutOff, GatewayError, InvalidResponse, ResponseTooLarge
from app.protocol.jsonrpc import Message, Request, Response, dump_response

ENDPOINT_S = 30.0
CUT = "the server has ended its event stream"


class OldStream:
    """Fulfils Wire."""

    cancels_at_once = False

    def __init__(self, channel: Channel, side: Side) -> None:
        self._channel, self._side = channel, side
        self._target: asyncio.Future[str] | None = None  # where to post
        self.is_offered = True  # False once the server has answered like one that knows no such stream

    async def call(self, call: Call, request: Request, line: bytes) -> None:
        """As Wire.call: the answer comes on the stream, unless the request is refused with it."""
        refusal = await self._post(line, is_call=True)
        if refusal is not None:
            self._side.calls.received(dump_response(call.id, refusal), call)
        await call.answered.wait()

    async def post(self, message: Message, line: bytes) -> None:
        """As Wire.post."""
        await self._post(line)

    async def _post(self, line: bytes, *, is_call: bool = False) -> Response | None:
        """Returns the error of JSON-RPC with which the server has refused a call."""
        target = await self._endpoint()
        try:
            async with (
                asyncio.timeout(ACCEPT_S),
                self._channel.request("POST", POST, line, target=target) as exchanged,
            ):
                if exchanged.answer.status in (404, 410):
                    raise SessionLost(f"the server does not know the session any more (HTTP {exchanged.answer.status})")
                refusal = await refusal_in(exchanged)
                is_told = is_call and refusal is not None and exchanged.answer.status not in (401, 403)
                if not exchanged.answer.is_good and not is_told:
                    raise failure(exchanged.answer, self._channel.host, refusal)
                await exchanged.finish()
                return refusal
        except TimeoutError:
            raise BackendTimeout(f"{self._channel.host} did not accept a message within {ACCEPT_S:.0f} s") from None

    def negotiated(self, version: str | None) -> None:
        """There is only one."""

    async def listen(self) -> None:
        """The stream is read already."""

    async def goodbye(self) -> None:
        """The end of the stream says it."""

    # --- the stream

    async def _endpoint(self) -> str:
        """Opens the stream, with the first message. Raises GatewayError: it names no place to post to."""
        if self._target is None:
            self._target = asyncio.get_running_loop().create_future()
            self._side.run(self._follow(self._target), "read an upstream's events")
        try:
            async with asyncio.timeout(ENDPOINT_S):
                return await asyncio.shield(self._target)
        except TimeoutError:
            raise BackendTimeout(f"{self._channel.host} named no endpoint within {ENDPOINT_S:.0f} s") from None

    async def _follow(self, target: asyncio.Future[str]) -> None:
        """Reads the stream to its end, which is the end of the session.

        Raises:
            SessionLost: always, once the server has named where to post.
        """
        try:
            await self._read(target)
            error: GatewayError = CallCutOff(CUT)
        except StreamCut:
            error = CallCutOff(CUT)
        except ResponseTooLarge as problem:
            error = problem
        except GatewayError as problem:
            error = problem
        if not target.done():
            target.set_exception(error)
            target.exception()  # perhaps nobody waits any more
            return
        raise SessionLost(str(error))

    async def _read(self, target: asyncio.Future[str]) -> None:
        async with self._channel.request("GET", GET) as exchanged:
            answer = exchanged.answer
            if not answer.is_good or answer.body is not Body.EVENTS:
                self.is_offered = not answer.is_good and not answer.may_be_older
                raise failure(answer, self._channel.host)
            await self._pass_on(exchanged, target)

    async def _pass_on(self, exchanged: Exchanged, target: asyncio.Future[str]) -> None:
        reader = EventReader(self._side.limit_bytes)
        while (events := await exchanged.events(reader)) is not None:
            for event in events:
                if event.kind == b"endpoint" and not target.done():
                    target.set_result(self._checked(event))
                elif event.kind == b"message":
                    self._side.calls.received(event.data)

    def _checked(self, event: ServerEvent) -> str:
        """The path, on the same host: another one was not allowed by anybody. Raises InvalidResponse."""
        if len(event.data) > MAX_URL:
            raise InvalidResponse(f"{self._channel.host} names an endpoint that is too long")
        target = target_on(self._channel.url, event.data)
        if target is not None:
            return target
        raise InvalidResponse(f"{self._channel.host} names an endpoint that is not on the same host")
