"""What an upstream session and the two transports know of each other."""

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from app.backends.upstreams._calls import Call, Calls
from app.backends.upstreams._channel import MAX_ERROR_BYTES, Exchanged, StreamCut
from app.backends.upstreams._statuses import Body
from app.errors import InvalidMessage, ResponseTooLarge
from app.protocol.jsonrpc import Message, Request, Response, parse_backend

ACCEPT_S = 30.0  # within which a server accepts a message that has no answer


class SessionLost(Exception):
    """The server does not know the session any more, in words."""


class OlderServer(Exception):
    """The server may be one of HTTP+SSE (2024-11-05). `failure`: the error if it is not."""

    def __init__(self, failure: Exception) -> None:
        super().__init__(str(failure))
        self.failure = failure


async def refusal_in(exchanged: Exchanged) -> Response | None:
    """The error of JSON-RPC with which one message was refused, whatever its id: nothing else can be meant."""
    if exchanged.answer.is_good or exchanged.answer.body is not Body.JSON:
        return None
    try:
        message = parse_backend(await exchanged.body(MAX_ERROR_BYTES))
    except (StreamCut, ResponseTooLarge, InvalidMessage):
        return None
    return message if isinstance(message, Response) and message.member == "error" else None


class Side(NamedTuple):
    """The session, for its transport: the calls that are open, and `run`, which runs a part of the session until its
    end. `limit_bytes`: of a message. `chance` is random."""

    calls: Calls
    run: Callable[[Coroutine[Any, Any, None], str], object]
    limit_bytes: int
    chance: Callable[[], float]


class Wire(Protocol):
    """One of the transports. `cancels_at_once`: a call is cancelled by closing its connection."""

    cancels_at_once: bool

    async def call(self, call: Call, request: Request, line: bytes) -> None:
        """Sends a request, and passes on what comes for it until it is answered.

        Raises:
            GatewayError: it has failed.
            SessionLost: so has the session.
            OlderServer: the first one was refused as by a server of HTTP+SSE.
        """

    async def post(self, message: Message, line: bytes) -> None:
        """Sends another message. Raises as `call`."""

    def negotiated(self, version: str | None) -> None:
        """The revision that the two have agreed on."""

    async def listen(self) -> None:
        """Passes on what belongs to no call, as long as the server offers it. Raises SessionLost."""

    async def goodbye(self) -> None:
        """Tells the server that the session is over."""
