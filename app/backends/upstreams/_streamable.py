"""Streamable: the transport Streamable HTTP of all revisions, those with a handshake and 2026-07-28."""

import asyncio
import logging
from contextlib import suppress
from typing import TypeGuard

from app.backends.upstreams._calls import Call
from app.backends.upstreams._channel import MAX_ERROR_BYTES, Channel, Exchanged, NotAnswered, NotReached, StreamCut
from app.backends.upstreams._events import EventReader, Reconnecting
from app.backends.upstreams._statuses import Answer, Body, failure
from app.backends.upstreams._wire import ACCEPT_S, OlderServer, SessionLost, Side, refusal_in
from app.backends.upstreams.requests import (
    GET,
    POST,
    Headers,
    RoutingHeaders,
    checked_session_id,
    is_sessionless,
    is_value,
    session_headers,
)
from app.errors import BackendTimeout, CallCutOff, GatewayError, InvalidResponse, ResponseTooLarge, UpstreamRefused
from app.protocol.eras.sessionless_envelope import CAPABILITIES_KEY, SESSIONLESS, VERSION_KEY, refuses_handshake
from app.protocol.jsonrpc import (
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    Message,
    Request,
    Response,
    dump_response,
    error_response,
    members_of,
    parse_backend,
)

GOODBYE_S = 3.0
LISTEN, ACKNOWLEDGED = "subscriptions/listen", b'"notifications/subscriptions/acknowledged"'
ENDED = "the server has ended the session"

_PROBE = b'{"jsonrpc":"2.0","id":"discover","method":"server/discover","params":{"_meta":{"%b":"%b","%b":{}}}}' % (
    VERSION_KEY.encode(),
    SESSIONLESS.encode(),
    CAPABILITIES_KEY.encode(),
)

_PING_ID = b'"still-there"'
_PING = b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % _PING_ID

log = logging.getLogger(__name__)


class Streamable:
    """Fulfils Wire."""

    cancels_at_once = False

    def __init__(self, channel: Channel, side: Side, routing: RoutingHeaders) -> None:
        self._channel, self._side, self._routing = channel, side, routing
        self._session_id: bytes | None = None
        self._version: str | None = None

    # --- calls

    async def call(self, call: Call, request: Request, line: bytes) -> None:
        """As Wire.call. A stream that is cut is resumed, if its events had ids; a subscription of 2026-07-28 is made
        again; and `initialize` is sent again, as nothing but a session that nobody uses can come of it."""
        if call.is_sessionless and call.method == LISTEN:
            await self._subscribe(call, request, line)
            return
        try:
            await self._ask(call, request, line)
        except NotAnswered:
            if call.method != "initialize" or call.is_sessionless:
                raise
            await self._ask(call, request, line)

    async def _ask(self, call: Call, request: Request, line: bytes) -> None:
        reader = EventReader(self._side.limit_bytes)
        try:
            async with self._channel.request("POST", [*POST, *self._headers(request)], line) as exchanged:
                await self._answer(call, exchanged, reader)
        except StreamCut:
            pass
        if call.is_open:
            await self._resume(call, reader)

    def _headers(self, message: Message) -> Headers:
        if not isinstance(message, Response) and is_sessionless(message):
            return self._routing.of(message)
        return session_headers(self._session_id, self._version)

    async def _answer(self, call: Call, exchanged: Exchanged, reader: EventReader, *, is_again: bool = False) -> None:
        answer = exchanged.answer
        if not answer.is_good:
            await self._refused(call, exchanged)
            return
        if call.method == "initialize" and not call.is_sessionless:
            self._session_id = checked_session_id(answer.session_ids)
        if answer.body is Body.EVENTS:
            await self._read(exchanged, reader, call, is_again=is_again)
        elif answer.body is Body.JSON:
            await self._whole(call, exchanged)
        else:
            raise failure(answer, self._channel.host)

    async def _whole(self, call: Call, exchanged: Exchanged) -> None:
        try:
            body = await exchanged.body()
        except StreamCut:
            raise CallCutOff(f"{self._channel.host} closed the connection within its answer") from None
        self._side.calls.received(body, call)
        if call.is_open:
            raise InvalidResponse(f"{self._channel.host} did not answer the call: what it sent is no answer to it")

    async def _read(self, exchanged: Exchanged, reader: EventReader, call: Call, *, is_again: bool = False) -> None:
        """`is_again`: a subscription that is made again; that it is acknowledged is known already."""
        while (events := await exchanged.events(reader)) is not None:
            for event in events:
                if not (is_again and ACKNOWLEDGED in event.data):
                    self._side.calls.received(event.data, call)
            if not call.is_open:
                await exchanged.finish()
                return

    async def _refused(self, call: Call, exchanged: Exchanged) -> None:
        """Four cases: the session is gone; the body has the error of JSON-RPC; a server of an older revision does not
        know what it was asked; or it is an error."""
        answer, is_first = exchanged.answer, call.method == "initialize" and not call.is_sessionless
        self._require_session(answer, call)
        refusal = await refusal_in(exchanged)
        error = failure(answer, self._channel.host, refusal)
        if refusal is not None and not isinstance(error, UpstreamRefused):
            line = dump_response(call.id, refusal)
            if is_first and answer.may_be_older and await self._speaks_sessionless_only(line):
                words, data = "the server speaks 2026-07-28 only", {"supported": [SESSIONLESS]}
                line = error_response(call.id, UNSUPPORTED_PROTOCOL_VERSION, words, data)
            if answer.status == 400 and refusal.id != call.id and not call.is_sessionless and await self._is_unknown():
                raise SessionLost(f"{ENDED} (HTTP 400)")
            self._side.calls.received(line, call)
            return
        if call.method == "server/discover" and answer.may_be_older:
            words = f"{self._channel.host} answered HTTP {answer.status}"
            self._side.calls.received(error_response(call.id, METHOD_NOT_FOUND, words))
            return
        if is_first and answer.may_be_older:
            raise OlderServer(error)
        raise error

    async def _is_unknown(self) -> bool:
        """Whether the server refuses any request of this session: many answer 400, instead of 404, once it is gone."""
        if self._session_id is None:
            return False
        with suppress(GatewayError, StreamCut, TimeoutError):
            async with (
                asyncio.timeout(ACCEPT_S),
                self._channel.request("POST", [*POST, *self._headers(parse_backend(_PING))], _PING) as exchanged,
            ):
                refusal = await refusal_in(exchanged)
                return exchanged.answer.status in (400, 404) and refusal is not None and refusal.id != _PING_ID
        return False

    async def _speaks_sessionless_only(self, refusal: bytes) -> bool:
        """Whether a server that has refused `initialize`, but not by saying so, answers `server/discover`."""
        if refuses_handshake(refusal):
            return False
        probe = parse_backend(_PROBE)
        with suppress(GatewayError, StreamCut, TimeoutError):
            async with (
                asyncio.timeout(ACCEPT_S),
                self._channel.request("POST", [*POST, *self._headers(probe)], _PROBE) as exchanged,
            ):
                if exchanged.answer.is_good and exchanged.answer.body is Body.JSON:
                    found = parse_backend(await exchanged.body(MAX_ERROR_BYTES))
                    versions = members_of(found.value).get("supportedVersions") if _is_result(found) else None
                    return versions is not None and SESSIONLESS.encode() in bytes(versions)
        return False

    def _require_session(self, answer: Answer, call: Call | None = None) -> None:
        if answer.status == 404 and self._session_id is not None and not (call is not None and call.is_sessionless):
            raise SessionLost(f"{ENDED} (HTTP 404)")

    def negotiated(self, version: str | None) -> None:
        """As Wire.negotiated: later requests repeat it, if it can be."""
        self._version = version if version is not None and is_value(version) else None

    # --- streams that go on

    async def _subscribe(self, call: Call, request: Request, line: bytes) -> None:
        """Until it is answered or cancelled. What happens between two streams is not told."""
        host, attempts, is_acknowledged = self._channel.host, Reconnecting(self._side.chance), False
        while True:
            reader = EventReader(self._side.limit_bytes)
            try:
                async with self._channel.request("POST", [*POST, *self._headers(request)], line) as exchanged:
                    await self._answer(call, exchanged, reader, is_again=is_acknowledged)
            except (StreamCut, NotReached, CallCutOff) as error:
                if not is_acknowledged and not isinstance(error, StreamCut):
                    raise
            if not call.is_open:
                return
            if reader.count:
                is_acknowledged = True
                attempts.heard()
            if not is_acknowledged or attempts.is_hopeless:
                raise CallCutOff(f"{host} has ended the subscription")
            await asyncio.sleep(attempts.delay_s(reader.retry_ms))

    async def _resume(self, call: Call, reader: EventReader) -> None:
        """Asks for the rest of a call's stream until it is answered."""
        host, attempts = self._channel.host, Reconnecting(self._side.chance)
        while call.is_open:
            if not reader.last_id or call.is_sessionless or attempts.is_hopeless:
                raise CallCutOff(f"{host} ended the stream before it had answered")
            await asyncio.sleep(attempts.delay_s(reader.retry_ms))
            before, refused = reader.last_id, None
            reader = EventReader(self._side.limit_bytes, before, reader.retry_ms)
            with suppress(StreamCut, NotReached, CallCutOff):
                async with self._channel.request("GET", self._resuming(reader.last_id)) as exchanged:
                    self._require_session(exchanged.answer)
                    if exchanged.answer.is_good and exchanged.answer.body is Body.EVENTS:
                        await self._read(exchanged, reader, call)
                    elif exchanged.answer.status < 500:
                        refused = failure(exchanged.answer, host)
            if refused is not None:
                raise CallCutOff(f"{host} ended the stream before it had answered, and does not resume it: {refused}")
            if reader.last_id != before:
                attempts.heard()

    def _resuming(self, last_id: bytes) -> Headers:
        named = [(b"Last-Event-ID", last_id)] if last_id else []
        return [*GET, *session_headers(self._session_id, self._version), *named]

    async def listen(self) -> None:
        """The GET stream. A server that offers none says so with 405, or anything else that is not an event stream."""
        attempts, last_id, has_worked = Reconnecting(self._side.chance), b"", False
        while True:
            reader = EventReader(self._side.limit_bytes, last_id)
            try:
                async with self._channel.request("GET", self._resuming(last_id)) as exchanged:
                    answer = exchanged.answer
                    if has_worked:
                        self._require_session(answer)
                    if answer.is_good and answer.body is Body.EVENTS:
                        has_worked = True
                        await self._pass_on(exchanged, reader, attempts)
                    elif answer.status < 500 and answer.status not in (408, 409, 429):
                        return
                last_id = reader.last_id
            except ResponseTooLarge:
                log.warning(
                    "An event of a server has too many bytes: it is skipped", extra={"host": self._channel.host}
                )
                last_id = b""
            except (StreamCut, GatewayError):
                last_id = reader.last_id
            await asyncio.sleep(attempts.delay_s(reader.retry_ms))

    async def _pass_on(self, exchanged: Exchanged, reader: EventReader, attempts: Reconnecting) -> None:
        while (events := await exchanged.events(reader)) is not None:
            for event in events:
                attempts.heard()
                self._side.calls.received(event.data)

    # --- other messages

    async def post(self, message: Message, line: bytes) -> None:
        """As Wire.post."""
        try:
            async with (
                asyncio.timeout(ACCEPT_S),
                self._channel.request("POST", [*POST, *self._headers(message)], line) as exchanged,
            ):
                self._require_session(exchanged.answer)
                if not exchanged.answer.is_good:
                    raise failure(exchanged.answer, self._channel.host)
                await exchanged.finish()
        except TimeoutError:
            raise BackendTimeout(f"{self._channel.host} did not accept a message within {ACCEPT_S:.0f} s") from None

    async def goodbye(self) -> None:
        """DELETE, where the server has named the session."""
        if self._session_id is None:
            return
        with suppress(TimeoutError, GatewayError):
            async with (
                asyncio.timeout(GOODBYE_S),
                self._channel.request("DELETE", session_headers(self._session_id, self._version)) as exchanged,
            ):
                await exchanged.finish()


def _is_result(message: Message) -> TypeGuard[Response]:
    return isinstance(message, Response) and message.member == "result"
