"""ApiWire: an HTTP API as an upstream. What the tools are is answered here; each call is one request."""

from collections.abc import Iterable

from app.backends.upstreams._calls import Call
from app.backends.upstreams._channel import Channel, Exchanged, StreamCut
from app.backends.upstreams._statuses import failure
from app.backends.upstreams._wire import Side
from app.backends.upstreams.requests import Headers
from app.errors import CallCutOff, ResponseTooLarge
from app.protocol.jsonrpc import Message, Request
from app.protocol.openapi.requests import ApiRequest, UnfitArguments, base_of, request_of
from app.protocol.openapi.results import Secrets, error_result, result_of
from app.protocol.openapi.serving import ApiServer
from app.text.credentials import hidden_in


class ApiAccess:
    """An API as a backend reaches it. `headers`: what each request has; `secrets` of its address."""

    def __init__(self, server: ApiServer, target: str, headers: Headers, secrets: Iterable[str] = ()) -> None:
        given = {name.decode(): value.decode() for name, value in headers}
        self.server, self.secrets = server, Secrets([*given.values(), *secrets])
        self.base, sent = base_of(server.api, target, given)
        self.headers = [(name.encode(), value.encode()) for name, value in sent.items()]


class ApiWire:
    """Fulfils Wire."""

    cancels_at_once = True

    def __init__(self, channel: Channel, side: Side, access: ApiAccess) -> None:
        self._channel, self._side, self._access = channel, side, access

    async def call(self, call: Call, request: Request, line: bytes) -> None:
        """As Wire.call."""
        self._side.calls.received(await self._answer(request), call)

    async def _answer(self, request: Request) -> bytes:
        if request.method != "tools/call":
            return self._access.server.answer(request)
        called = self._access.server.called(request)
        if isinstance(called, bytes):
            return called
        try:
            result = await self._asked(request_of(*called, self._access.base))
        except UnfitArguments as problem:
            result = error_result(f"The call was not made: {problem}.")
        if len(result) > self._side.limit_bytes:
            raise ResponseTooLarge("the server's answer has too many bytes")
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request.id, result)

    async def _asked(self, asked: ApiRequest) -> bytes:
        url = self._channel.url
        async with self._channel.request(asked.method, asked.headers, asked.body, target=asked.target) as exchanged:
            answer = exchanged.answer
            if 300 <= answer.status < 400 or not answer.is_plain:
                raise failure(answer, self._channel.host)
            body = await self._body(exchanged)
        uri = hidden_in(f"{url.scheme}://{url.authority}{asked.path}")
        return result_of(answer.status, answer.type, body, uri, self._access.secrets)

    async def _body(self, exchanged: Exchanged) -> bytes:
        try:
            if exchanged.answer.is_good:
                return await exchanged.body()
            return await exchanged.beginning(self._access.secrets.most_of_error)
        except StreamCut:
            raise CallCutOff(f"{self._channel.host} closed the connection within its answer") from None

    async def post(self, message: Message, line: bytes) -> None:
        """As Wire.post: an API is told nothing."""

    def negotiated(self, version: str | None) -> None:
        """As Wire.negotiated."""

    async def listen(self) -> None:
        """As Wire.listen: it offers nothing."""

    async def goodbye(self) -> None:
        """As Wire.goodbye: it has no session."""
