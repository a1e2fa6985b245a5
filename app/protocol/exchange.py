"""Exchange: matches answers to requests, and messages to streams, for one session. No await, no clock.

The client's ids and progress tokens never reach the backend, and the backend's never the client: the
gateway makes its own on both sides and gives back the bytes it was given. So an answer can only reach the
request it belongs to, and a backend cannot guess or repeat its way into another.
"""

from collections.abc import Callable, Iterator

import msgspec

from app.errors import (
    BackendTimeout,
    GatewayError,
    InvalidMessage,
    InvalidResponse,
    ParseError,
    QuotaExceeded,
    RequestCancelled,
    ResponseTooLarge,
)
from app.protocol import tolerant
from app.protocol.commands import (
    Answer,
    Call,
    Command,
    Dropped,
    Failed,
    Listen,
    Several,
    Stream,
    ToBackend,
    ToStream,
)
from app.protocol.jsonrpc import (
    ABSENT,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MAX_ID_CHARACTERS,
    Notification,
    Params,
    Request,
    Response,
    answered_id,
    dump_notification,
    dump_request,
    dump_response,
    encode,
    error_response,
    members_of,
    parse_backend,
    readable_members_of,
    refusal,
    result_response,
    several,
    string_of,
)
from app.protocol.running_tasks import ABOUT_TASKS, RunningTasks

# Bytes of params that a session, its link or its record keep for as long as they live.
MAX_KEPT = {"initialize": 64 << 10, "logging/setLevel": 2048, "resources/subscribe": 4096}
MAX_TOKEN_BYTES = MAX_ID_CHARACTERS + 2  # of a progress token, quotes included
MAX_TOOL_BYTES = 2048  # of a tool's name that is remembered while it is called, or of a message that is kept for it
MIN_WAITING = 8  # calls that may wait for their turn, where fewer may run
MAX_WAITING_BYTES = 4 << 20  # of the lines of calls that wait; one alone may be longer
LINE_OVERHEAD = 64  # by so much may a line for the backend be longer than the message it is made of
MAX_QUESTIONS = 64  # of one backend open at once; above it the backend is refused
CANCEL_GRACE_S = 2.0  # a cancelled request may still be answered; after that its response is ended for it
QUESTION_S = 600.0  # a question that nobody is there to answer gets an error after this, never silence

PING = "ping"
RELATED_TASK_KEY = "io.modelcontextprotocol/related-task"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
_FOR_EVER = frozenset({"subscriptions/listen", "tasks/result"})  # answered when what they wait for ends
_FEEDBACK = frozenset({"tools/call", "prompts/get", "resources/read"})  # what may ask and log while it runs
_COALESCED = frozenset({
    "notifications/tools/list_changed", "notifications/prompts/list_changed",
    "notifications/resources/list_changed", "notifications/resources/updated",
})  # fmt: skip


class Question(msgspec.Struct, gc=False):
    """A backend's request to the client that waits for its answer."""

    backend_id: bytes
    stream: Stream
    deadline: float


class _Waiting(msgspec.Struct, gc=True):
    """A call whose turn has not come, and the line that it is."""

    call: Call
    line: bytes
    is_own: bool


class Exchange:
    """The pure core of one session.

    The owner hands in what the client sent (`request`, `notification`, `response`) and gets the line for the
    backend; it hands in what the backend sent (`receive`) and gets a command. `call_s` is how long a call may
    take without a sign of life. At most `max_calls` are with the backend at once; others wait their turn: after
    each call that has ended, the owner asks `next_turn`. `reserved` of them are left to what the gateway asks itself.
    """

    def __init__(self, call_s: float, *, initialize_s: float = 30.0, max_calls: int = 128) -> None:
        self.calls: dict[bytes, Call] = {}  # with the backend: by our id, oldest first
        self.waiting: dict[bytes, _Waiting] = {}  # for their turn, likewise; none of them was sent
        self._max_calls, self.max_waiting = max_calls, max(max_calls, MIN_WAITING)
        self._waiting_bytes = 0
        self._by_client_id: dict[bytes, Call] = {}
        self._questions: dict[bytes, Question] = {}  # by our id
        self._question_ids: dict[bytes, bytes] = {}  # the backend's id -> ours
        self._last_id = 0
        self._call_s, self._initialize_s = call_s, initialize_s
        self.listening = False  # whether somebody reads the Listen stream
        self.reserved = 0
        self.running_tasks = RunningTasks()
        self.may_make_tasks = False  # of any call: so does a server of 2026-07-28 with that extension

    def number_from(self, number: int) -> None:
        """Ids begin after this one: smaller ones were another node's, and no late answer to them may fit here."""
        self._last_id = number

    @property
    def has_questions(self) -> bool:
        """Whether the backend waits for the client."""
        return bool(self._questions)

    @property
    def in_flight(self) -> int:
        """Calls without an outcome, those that wait for their turn included."""
        return len(self.calls) + len(self.waiting)

    def every_call(self) -> list[Call]:
        """The same calls, oldest first."""
        return [*self.calls.values(), *(each.call for each in self.waiting.values())]

    # --- from the client

    def request(
        self, message: Request, stream: Stream, now: float, *, may_stream: bool = True, is_own: bool = False
    ) -> tuple[Call, bytes | None]:
        """Registers a call; the answer comes out of `receive`, `expire` or `fail_all`, exactly once.

        Returns:
            The call, and the line for the backend; None where it waits for its turn.

        Raises:
            InvalidMessage: a call with this id is still in flight; or what is kept of its params is too long.
            QuotaExceeded: as many run as may, and as many wait.
        """
        if message.id in self._by_client_id:
            raise InvalidMessage("a request with this id is in flight already")
        if message.method in MAX_KEPT:
            _require_short(message)
        self._last_id += 1
        gateway_id = b"%d" % self._last_id
        params, token = message.params, None
        if params is not None and "_meta" in params:
            params, token = _replace_token(params, gateway_id)
        patience = self._patience(message.method)
        call = Call(message.id, gateway_id, message.method, stream, may_stream, now, now + patience, token)
        line = dump_request(gateway_id, message.method, params)
        if params is not None:
            self._note(call, params, len(line))
        limit = self._max_calls if is_own else self._max_calls - self.reserved
        if len(self.calls) >= limit and message.method != "initialize":  # which everything else waits for
            self._wait(call, line, is_own=is_own)
            return call, None
        self.calls[gateway_id] = self._by_client_id[message.id] = call
        return call, line

    def _note(self, call: Call, params: Params, size: int) -> None:
        """What has to be known of a call later on, beside its ids."""
        if call.method == "tools/call":
            name = params.get("name")
            # A view of the message, all of which it keeps: of a long one a copy is kept.
            call.tool = name if size <= MAX_TOOL_BYTES else _short_copy(name)
            if self.may_make_tasks or "task" in params:
                call.about_task = True
        elif call.method in ABOUT_TASKS:
            call.about_task = True
            if call.method == "tasks/result":
                call.task = string_of(params.get("taskId"))

    def require_room(self, calls: int, size: int) -> None:
        """Looks whether so many calls of `size` bytes in all would run or wait, every one of them.

        Raises:
            QuotaExceeded: they would not.
        """
        would_wait = self.in_flight + calls - self._max_calls
        if would_wait > 0:
            self._require_places(would_wait, size + calls * LINE_OVERHEAD, is_one=calls == 1)

    def _wait(self, call: Call, line: bytes, *, is_own: bool) -> None:
        self._require_places(len(self.waiting) + 1, len(line), is_one=True)
        self._by_client_id[call.id] = call
        self.waiting[call.gateway_id] = _Waiting(call, line, is_own)
        self._waiting_bytes += len(line)

    def _require_places(self, would_wait: int, size: int, *, is_one: bool) -> None:
        is_alone = is_one and not self.waiting
        if would_wait > self.max_waiting or (self._waiting_bytes + size > MAX_WAITING_BYTES and not is_alone):
            places = f"{self._max_calls} calls with its backend, {self.max_waiting} waiting, with 4 MiB"
            raise QuotaExceeded("calls_per_session", f"a session has at most {places}; this one has {self.in_flight}")

    def next_turn(self, now: float) -> tuple[Call, bytes] | None:
        """The call that has waited longest, and its line, if it may run now; it counts as sent: its clock starts."""
        if not self.waiting or len(self.calls) >= self._max_calls:
            return None
        is_for_all = len(self.calls) < self._max_calls - self.reserved
        first = next((gateway_id for gateway_id, each in self.waiting.items() if is_for_all or each.is_own), None)
        if first is None:
            return None
        call, line = self._stop_waiting(first)
        call.waited_s, call.deadline = now - call.started, now + self._patience(call.method)
        self.calls[call.gateway_id] = call
        return call, line

    def withdraw(self, message: Notification) -> Failed | None:
        """The outcome of a call that this cancels before its turn has come; None where there is no such call."""
        if message.method != "notifications/cancelled":
            return None
        call = self._by_client_id.get(bytes((message.params or {}).get("requestId", ABSENT)))
        if call is None or call.gateway_id not in self.waiting:
            return None
        self._stop_waiting(call.gateway_id)
        del self._by_client_id[call.id]
        return Failed(call, RequestCancelled(), was_sent=False)

    def _stop_waiting(self, gateway_id: bytes) -> tuple[Call, bytes]:
        waiting = self.waiting.pop(gateway_id)
        self._waiting_bytes -= len(waiting.line)
        return waiting.call, waiting.line

    def _patience(self, method: str) -> float:
        if method in _FOR_EVER:
            return float("inf")
        return self._initialize_s if method == "initialize" else self._call_s

    def abandon(self, call: Call) -> None:
        """Forgets a call whose line could not be written."""
        self._finish(call)

    def notification(self, message: Notification, now: float) -> bytes | None:
        """The line for the backend; None where there is nothing to tell it."""
        if message.method == "notifications/cancelled":
            return self._cancel(message.params or {}, now)
        return dump_notification(message.method, message.params)

    def response(self, message: Response) -> bytes | None:
        """The line for the backend; None where it has asked no such question, or got its answer."""
        question = self._questions.pop(message.id, None)
        if question is None:
            return None
        self._question_ids.pop(question.backend_id, None)
        return dump_response(question.backend_id, message)

    def _cancel(self, params: Params, now: float) -> bytes | None:
        call = self._by_client_id.get(bytes(params.get("requestId", ABSENT)))
        if call is None or call.method == "initialize":  # which must not be cancelled (basic/utilities/cancellation)
            return None
        call.cancelled = True
        call.deadline = min(call.deadline, now + CANCEL_GRACE_S)
        return dump_notification("notifications/cancelled", {**params, "requestId": msgspec.Raw(call.gateway_id)})

    # --- from the backend

    def receive(self, line: bytes, now: float) -> Command:
        """One line of the backend: what is to be done about it."""
        try:
            message = parse_backend(line)
        except InvalidMessage as error:
            return self._receive_invalid(line, error)
        if type(message) is Response:
            call = self.calls.pop(message.id, None) or self._answered_without_id(message)
            if call is None:
                return Dropped("unknown_answer")
            del self._by_client_id[call.id]
            if call.about_task and message.member == "result":
                self.running_tasks.answered(call.method, call.task, message.value, now)
            return Answer(call, message)
        if type(message) is Request:
            return self._receive_question(message, now)
        assert type(message) is Notification
        return self._receive_notification(message, now)

    def _answered_without_id(self, response: Response) -> Call | None:
        """The call that an error concerns whose id the backend could not read: the only one there is, or none."""
        if response.id != b"null" or response.member != "error" or len(self.calls) != 1:
            return None
        return self.calls.popitem()[1]

    def receive_oversized(self, beginning: bytes, end: bytes = b"") -> Command:
        """A line over the limit: the call that its ends name fails; when it has ended without a name that can be read,
        the only one that it can be the answer to."""
        name = tolerant.answered(beginning, end)
        call = named = self.calls.get(answered_id(name or b""))
        if name is None and end and tolerant.is_answer(beginning) and len(self.calls) == 1:
            call = next(iter(self.calls.values()))
        if call is None:
            return Dropped("oversized")
        self._finish(call)
        return Failed(call, ResponseTooLarge(), may_go_on=named is None)

    def _receive_invalid(self, line: bytes, error: InvalidMessage) -> Command:
        """Several messages, a broken answer to one of our calls, a broken question, or noise."""
        messages = several(line)
        if messages:
            return Several(messages)
        broken = tolerant.broken(line)
        call = self.calls.get(answered_id(broken.answers or b""))
        if call is not None:
            self._finish(call)
            return Failed(call, InvalidResponse(f"the backend's answer is no JSON-RPC response: {error}"))
        refused = refusal(broken.asks or b"", error)
        if refused is not None:
            return ToBackend(refused)
        return Dropped("noise" if isinstance(error, ParseError) else "invalid")

    def receive_question(self, line: bytes, related: bytes, now: float) -> Command:
        """A question of which is known to which call it belongs, by our id."""
        message = parse_backend(line)
        assert isinstance(message, Request)
        return self._receive_question(message, now, self.calls.get(related))

    def _receive_question(self, message: Request, now: float, related: Call | None = None) -> Command:
        if message.method == PING:
            return ToBackend(result_response(message.id, {}))
        if message.id in self._question_ids:
            return ToBackend(error_response(message.id, INVALID_REQUEST, "a request with this id waits for the client"))
        if len(self._questions) >= MAX_QUESTIONS:
            return ToBackend(error_response(message.id, INTERNAL_ERROR, "too many requests wait for the client"))
        self._last_id += 1
        our_id = b"%d" % self._last_id
        known = related is not None and related.may_stream
        stream = related.stream if related is not None and known else self._stream_for_feedback(message.params)
        self._questions[our_id] = Question(message.id, stream, now + QUESTION_S)
        self._question_ids[message.id] = our_id
        return ToStream(stream, dump_request(our_id, message.method, message.params), question=our_id)

    def ask_on(self, our_id: bytes, stream: Stream) -> None:
        """The owner has put a question on another stream than the one it was for."""
        question = self._questions.get(our_id)
        if question is not None:
            question.stream = stream

    def asked_on(self, our_id: bytes) -> Stream | None:
        """The stream that a question was put on last; None where it is not open any more."""
        question = self._questions.get(our_id)
        return None if question is None else question.stream

    def refuse_question(self, our_id: bytes, why: str, code: int = INTERNAL_ERROR) -> bytes | None:
        """The line that tells the backend that its question reached nobody."""
        question = self._questions.pop(our_id, None)
        if question is None:
            return None
        self._question_ids.pop(question.backend_id, None)
        return error_response(question.backend_id, code, why)

    def _receive_notification(self, message: Notification, now: float) -> Command:
        method, params = message.method, message.params or {}
        if method == "notifications/progress":
            return self._progress(params, now)
        if method == "notifications/cancelled":
            return self._question_withdrawn(params)
        payload = dump_notification(method, message.params)
        if "_meta" in params and (call := self._subscription(params)) is not None:
            return ToStream(call.stream, payload)
        if method.startswith("notifications/tasks"):
            self.running_tasks.seen(params, now)
        if method == "notifications/message":
            return ToStream(self._stream_for_feedback(message.params), payload)
        if method in _COALESCED:
            return ToStream(Listen.STREAM, payload, method.encode() + bytes(params.get("uri", ABSENT)))
        return ToStream(Listen.STREAM, payload)

    def _subscription(self, params: Params) -> Call | None:
        """The `subscriptions/listen` (2026-07-28) that a notification is sent for; its id is our request's."""
        return self.calls.get(bytes(members_of(params["_meta"]).get(SUBSCRIPTION_KEY, ABSENT)))

    def _progress(self, params: Params, now: float) -> Command:
        call = self.calls.get(bytes(params.get("progressToken", ABSENT)))
        if call is None or call.progress_token is None or call.cancelled:
            return Dropped("unknown_progress")
        if call.method != "initialize":  # until it is answered there is no session that could be too old
            call.deadline = max(call.deadline, now + self._call_s)
        if not call.may_stream:
            return Dropped("no_stream")
        params["progressToken"] = msgspec.Raw(call.progress_token)
        return ToStream(call.stream, dump_notification("notifications/progress", params))

    def _question_withdrawn(self, params: Params) -> Command:
        request_id = bytes(params.get("requestId", ABSENT))
        our_id = self._question_ids.pop(request_id, None)
        if our_id is None:
            call = self.calls.get(request_id)
            if call is None or call.method != "subscriptions/listen":
                return Dropped("unknown_cancel")
            self._finish(call)  # 2026-07-28: so a server may end a subscription; its client gets a result
            return Answer(call, Response(request_id, "result", _end_of_subscription(request_id)))
        question = self._questions.pop(our_id)
        params["requestId"] = msgspec.Raw(our_id)
        return ToStream(question.stream, dump_notification("notifications/cancelled", params))

    def _stream_for_feedback(self, params: Params | None) -> Stream:
        """The stream for a question or a log message; stdio does not say to which call it belongs.

        0. It names a task: the stream of the `tasks/result` that waits for it, else the Listen stream.
        1. Exactly one call is in flight: its stream.
        2. Several are, or one that cannot stream, and somebody listens: the Listen stream.
        3. Nobody listens: the stream of the oldest call that may ask.
        4. No call can carry it: the Listen stream, where it waits for a reader.
        """
        if params is not None and "_meta" in params:
            task = _task_of(members_of(params["_meta"]).get(RELATED_TASK_KEY))
            if task is not None:
                waiting = (call.stream for call in self.calls.values() if call.task == task and call.may_stream)
                return next(waiting, Listen.STREAM)
        running = [call for call in self.calls.values() if call.may_stream and not call.cancelled]
        if len(self.calls) == 1 and running:
            return running[0].stream
        if not self.listening:
            for call in running:
                if call.method in _FEEDBACK:
                    return call.stream
        return Listen.STREAM

    # --- time, and the end

    def client_is_there(self, reads: Callable[[Stream], bool], now: float) -> None:
        """Questions age only while nobody `reads` the stream that they went to: people may think for hours."""
        for question in self._questions.values():
            if reads(question.stream):
                question.deadline = now + QUESTION_S

    def expire(self, now: float) -> Iterator[Command]:
        """What is overdue at `now`: calls get their error and the backend hears that nobody waits any more."""
        for our_id in [our_id for our_id, question in self._questions.items() if question.deadline <= now]:
            line = self.refuse_question(our_id, "the client did not answer in time")
            if line is not None:
                yield ToBackend(line)
        for call in [call for call in self.calls.values() if call.deadline <= now]:
            if self._waits_for_client(call):
                continue
            self._finish(call)
            if call.cancelled:
                yield Failed(call, RequestCancelled(), may_go_on=True)
                continue
            timeout = BackendTimeout(f"the backend did not answer within {now - call.started - call.waited_s:.0f} s")
            yield Failed(call, timeout, may_go_on=True)
            if call.method != "initialize":
                yield ToBackend(
                    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":'
                    b'{"requestId":%b,"reason":"timeout"}}' % call.gateway_id
                )

    def _waits_for_client(self, call: Call) -> bool:
        """A call may wait for the client as long as the client may think."""
        return bool(self._questions) and not call.cancelled and call.method != "initialize"

    def fail_all(self, error: GatewayError, *, waiting: GatewayError) -> list[Failed]:
        """Ends every call with this error, those that were not sent with the other; there will be no other answers."""
        failed = [Failed(each.call, waiting, was_sent=False) for each in self.waiting.values()]
        failed += [Failed(call, error) for call in self.calls.values()]
        self.calls.clear()
        self.waiting.clear()
        self._waiting_bytes = 0
        self._by_client_id.clear()
        self._questions.clear()
        self._question_ids.clear()
        return failed

    def _finish(self, call: Call) -> None:
        self.calls.pop(call.gateway_id, None)
        self._by_client_id.pop(call.id, None)

    def __repr__(self) -> str:
        return f"<Exchange [{len(self.calls)} calls, {len(self.waiting)} waiting, {len(self._questions)} questions]>"


def _short_copy(name: msgspec.Raw | None) -> msgspec.Raw | None:
    return name.copy() if name is not None and len(name) <= MAX_TOOL_BYTES else None


def _require_short(message: Request) -> None:
    limit = MAX_KEPT[message.method]
    if len(encode(message.params)) > limit:
        raise InvalidMessage(f"the params of `{message.method}` have at most {limit} bytes")


def _replace_token(params: Params, ours: bytes) -> tuple[Params, bytes | None]:
    """The params with our progress token for the client's; the client's bytes, None where it has none."""
    meta = readable_members_of(params["_meta"])
    token = meta.get("progressToken")
    if token is None:
        return params, None
    if len(bytes(token)) > MAX_TOKEN_BYTES:
        raise InvalidMessage(f'a "progressToken" has at most {MAX_ID_CHARACTERS} characters')
    meta["progressToken"] = msgspec.Raw(ours)
    return {**params, "_meta": msgspec.Raw(encode(meta))}, bytes(token)


def _end_of_subscription(subscription_id: bytes) -> msgspec.Raw:
    meta = msgspec.Raw(encode({SUBSCRIPTION_KEY: msgspec.Raw(subscription_id)}))
    return msgspec.Raw(encode({"resultType": "complete", "_meta": meta}))


def _task_of(related: msgspec.Raw | None) -> str | None:
    """The task that a message of 2025-11-25 belongs to."""
    return None if related is None else string_of(members_of(related).get("taskId"))


def negotiated_version(result: msgspec.Raw) -> str | None:
    """The protocolVersion of an `initialize` result."""
    return string_of(members_of(result).get("protocolVersion"))
