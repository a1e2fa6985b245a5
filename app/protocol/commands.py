"""What the Exchange asks its owner to do; the owner carries out commands in order."""

from enum import Enum
from typing import Any

import msgspec

from app.errors import GatewayError
from app.protocol._running_tasks import ABOUT_TASKS
from app.protocol.jsonrpc import ABSENT, Params, Response, code_of, dump_response, members_of, string_of

MAX_NAME_BYTES = 2048  # of the name of what is called, kept meanwhile, or of the message that is kept with it
# By method: the member of its params that names what is called.
TARGETS = {
    "tools/call": "name", "prompts/get": "name", "resources/read": "uri", "resources/subscribe": "uri",
    "resources/unsubscribe": "uri",
}  # fmt: skip
NOISE = "noise"  # the reason why a line was dropped that is no JSON
CANCEL_GRACE_S = 2.0  # for the answer to a cancelled request; then it fails


class Listen(Enum):
    """The stream that belongs to the session and not to a request: the GET stream, or the one of HTTP+SSE."""

    STREAM = "listen"


# Any object that the owner passes with the request; the Exchange only gives it back.
Stream = Any


class Call(msgspec.Struct, gc=True, eq=False):
    """A client's request without an outcome yet."""

    id: bytes  # the client's bytes
    gateway_id: bytes  # toward the backend; also its progress token there
    method: str
    stream: Stream
    may_stream: bool  # whether the stream can carry more than the answer
    started: float
    deadline: float
    progress_token: bytes | None = None  # the client's bytes
    cancelled: bool = False
    task: str | None = None  # whose result a `tasks/result` waits for
    waited_s: float = 0.0  # for its turn, before it was sent
    target: msgspec.Raw | None = None  # the JSON string that names the called tool or prompt, or the resource
    error_type: str = ""  # the metric's label, if the answer is an error
    about_task: bool = False  # its answer may start or end a task
    size: int = 0  # of its line, in bytes
    origin: Any = None  # where it came from; the Exchange only keeps it
    span: Any = None  # of a trace; likewise

    def came_with(self, origin: object, span: object = None) -> None:
        """Keeps where it came from."""
        self.origin, self.span = origin, span

    def note(self, params: Params, *, may_make_task: bool) -> None:
        """Keeps what is needed later on of its params."""
        member = TARGETS.get(self.method)
        if member is not None:
            name = params.get(member)
            # The name is a view that keeps the whole message in memory: of a long one a copy is kept.
            self.target = name if self.size <= MAX_NAME_BYTES else _short_copy(name)
        if self.method == "tools/call":
            if may_make_task or "task" in params:
                self.about_task = True
        elif self.method in ABOUT_TASKS:
            self.about_task = True
            if self.method == "tasks/result":
                self.task = string_of(params.get("taskId"))

    def sent(self, now: float, patience_s: float) -> None:
        """Its turn has come: its time begins."""
        self.waited_s, self.deadline = now - self.started, now + patience_s

    def may_take_until(self, deadline: float) -> None:
        """The backend has given a sign of life."""
        self.deadline = max(self.deadline, deadline)

    def cancel(self, now: float) -> None:
        """Its answer is waited for CANCEL_GRACE_S at most."""
        self.cancelled = True
        self.deadline = min(self.deadline, now + CANCEL_GRACE_S)

    def answered_as(self, error_type: str) -> None:
        self.error_type = error_type


def _short_copy(name: msgspec.Raw | None) -> msgspec.Raw | None:
    return name.copy() if name is not None and len(name) <= MAX_NAME_BYTES else None


class LargeResult:
    """The JSON of a large result or error; `original` has the same bytes object. Whoever counts it learns of its end by
    a weak reference."""

    __slots__ = ("__weakref__", "json", "original")

    def __init__(self, json: bytes, original: "LargeResult | None" = None) -> None:
        self.json, self.original = json, original


class Answer(msgspec.Struct, gc=True):
    """The one answer to a call, under the client's own id. `large`: its value, where that is an object of its own."""

    call: Call
    response: Response
    large: LargeResult | None = None

    def payload(self) -> bytes:
        """The JSON for the client."""
        return dump_response(self.call.id, self.response)

    def parts(self) -> tuple[bytes, ...]:
        """The same, in parts, of which a large value is one."""
        if self.large is None:
            return (self.payload(),)
        head = b'{"jsonrpc":"2.0","id":%b,"%b":' % (self.call.id, self.response.member.encode())
        return head, self.large.json, b"}"

    @property
    def size(self) -> int:
        """Bytes of its value."""
        return len(self.response.value)

    def failure(self) -> str:
        """For the log: the error code of the backend, or else the metric's label."""
        code = code_of(self.response)
        return self.call.error_type if code is None else str(code)


class Failed(msgspec.Struct, gc=True):
    """A call that fails with an error of the gateway. `may_go_on`: the backend may still work on it, and ask questions.
    `was_sent`: whether the backend has got the call."""

    call: Call
    error: GatewayError
    may_go_on: bool = False
    was_sent: bool = True


class ToStream(msgspec.Struct, gc=True):
    """A notification or a question for the client. While it waits, a later one with the same `coalesce` replaces it.
    `question` is our id of a question: if it has to be dropped, the backend must get an error."""

    stream: Stream
    payload: bytes
    coalesce: bytes | None = None
    question: bytes | None = None


class ToBackend(msgspec.Struct, gc=True):
    """A line for the backend."""

    line: bytes


class Several(msgspec.Struct, gc=True):
    """The line had several messages: receive each of them."""

    lines: list[bytes]


class Dropped(msgspec.Struct, gc=True):
    """A message for nobody; `reason` is a label of trunkline_messages_dropped_total."""

    reason: str


Command = Answer | Failed | ToStream | ToBackend | Several | Dropped


class _Result(msgspec.Struct, gc=False, rename="camel"):
    is_error: bool = False


_decode = msgspec.json.Decoder(_Result).decode


def is_tool_error(result: msgspec.Raw) -> bool:
    """Whether a tool says that it has failed, wherever `isError` stands in the first level. Only of `true`: as for
    clients, anything else is no error."""
    try:
        return _decode(result).is_error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # another type, or JSON that only others can read
        text = bytes(result)
        if b"isError" not in text and b"\\u" not in text:  # reading the other members takes long
            return False
        return bytes(members_of(result).get("isError", ABSENT)) == b"true"
