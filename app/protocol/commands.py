"""What the Exchange asks its owner to do. The owner carries commands out in the order it got them."""

from enum import Enum
from typing import Any

import msgspec

from app.errors import GatewayError
from app.protocol.jsonrpc import Response, code_of


class Listen(Enum):
    """The stream that belongs to the session and not to a request: the GET stream, or the one of HTTP+SSE."""

    STREAM = "listen"


# A stream is whatever object the owner handed in with the request; the Exchange only gives it back.
Stream = Any


class Call(msgspec.Struct, gc=True, eq=False):
    """A client's request on its way: ours toward the backend, theirs toward the client."""

    id: bytes  # the client's bytes
    gateway_id: bytes
    method: str
    stream: Stream
    may_stream: bool  # whether the stream can carry more than the answer
    started: float
    deadline: float
    progress_token: bytes | None = None  # the client's bytes
    cancelled: bool = False
    task: str | None = None  # whose result a `tasks/result` waits for
    waited_s: float = 0.0  # for its turn, before it was sent
    tool: msgspec.Raw | None = None  # which one is called, as the client wrote it
    error_type: str = ""  # what its answer is counted as, once there is one that is no success
    about_task: bool = False  # its answer may say that a task has begun, or ended


class Answer(msgspec.Struct, gc=True):
    """The one answer to a call, under the client's own id."""

    call: Call
    response: Response

    def payload(self) -> bytes:
        """The answer as the client gets it."""
        response = self.response
        if response.member == "result":
            return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (self.call.id, response.value)
        return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (self.call.id, response.value)

    def failure(self) -> str:
        """What the log says of one that is no success: the backend's own code, or else as what it is counted."""
        code = code_of(self.response) if self.response.member == "error" else None
        return self.call.error_type if code is None else str(code)


class Failed(msgspec.Struct, gc=True):
    """A call that gets an error of the gateway's own.

    `may_go_on`: the backend has not answered, and may still ask. Not `was_sent`: it has heard nothing of the call.
    """

    call: Call
    error: GatewayError
    may_go_on: bool = False
    was_sent: bool = True


class ToStream(msgspec.Struct, gc=True):
    """A notification or a question for the client.

    Where it has to wait, a later one with the same `coalesce` replaces it. `question` is our id of a
    question: if it cannot be kept until somebody reads it, the backend must be told.
    """

    stream: Stream
    payload: bytes
    coalesce: bytes | None = None
    question: bytes | None = None


class ToBackend(msgspec.Struct, gc=True):
    """A line for the backend."""

    line: bytes


class Several(msgspec.Struct, gc=True):
    """The line was several messages: each is to be received for itself."""

    lines: list[bytes]


class Dropped(msgspec.Struct, gc=True):
    """A message that reaches nobody; `reason` is from a closed set, for the metric."""

    reason: str


Command = Answer | Failed | ToStream | ToBackend | Several | Dropped
