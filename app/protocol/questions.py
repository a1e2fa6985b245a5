"""Questions: a backend's open requests to its client, under our ids."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from app.protocol.commands import Stream
from app.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, Request, Response, dump_response, error_response

MAX_QUESTIONS = 64  # of one backend open at once; more get an error
QUESTION_S = 600.0  # a question whose stream nobody reads gets an error after this


class Question(msgspec.Struct, gc=False, frozen=True):
    backend_id: bytes
    stream: Stream
    deadline: float
    among: tuple[bytes, ...] = ()


@dataclass(slots=True, eq=False)
class Questions:
    """The questions of one session. Bytes that are returned are a line for the backend."""

    open: dict[bytes, Question] = field(default_factory=dict)  # by our id
    _ids: dict[bytes, bytes] = field(default_factory=dict)  # the backend's id -> ours

    def refusal(self, message: Request) -> bytes | None:
        """The error if this cannot be asked."""
        if message.id in self._ids:
            return error_response(message.id, INVALID_REQUEST, "a request with this id waits for the client")
        if len(self.open) >= MAX_QUESTIONS:
            return error_response(message.id, INTERNAL_ERROR, "too many requests wait for the client")
        return None

    def add(self, our_id: bytes, backend_id: bytes, stream: Stream, now: float, among: tuple[bytes, ...] = ()) -> None:
        """The client is asked on this stream. With `among` the question belongs to one of these calls."""
        self.open[our_id] = Question(backend_id, stream, now + QUESTION_S, among)
        self._ids[backend_id] = our_id

    def ask_on(self, our_id: bytes, stream: Stream) -> None:
        """The owner has sent the question on another stream."""
        question = self.open.get(our_id)
        if question is not None:
            self.open[our_id] = msgspec.structs.replace(question, stream=stream)

    def may_belong_to(self, our_id: bytes, call: bytes) -> bool:
        """Whether this call may be the one for which the question was asked."""
        question = self.open.get(our_id)
        return question is None or not question.among or call in question.among

    def asked_on(self, our_id: bytes) -> Stream | None:
        """The stream of an open question."""
        question = self.open.get(our_id)
        return None if question is None else question.stream

    def answer(self, message: Response) -> bytes | None:
        """The client's answer; None if there is no such question open."""
        backend_id = self._close(message.id)
        return None if backend_id is None else dump_response(backend_id, message)

    def refuse(self, our_id: bytes, why: str, code: int = INTERNAL_ERROR) -> bytes | None:
        """An error instead of an answer; None if the question is not open."""
        backend_id = self._close(our_id)
        return None if backend_id is None else error_response(backend_id, code, why)

    def _close(self, our_id: bytes) -> bytes | None:
        question = self.open.pop(our_id, None)
        if question is None:
            return None
        del self._ids[question.backend_id]
        return question.backend_id

    def withdraw(self, backend_id: bytes) -> tuple[bytes, Stream] | None:
        """The backend has cancelled a question: our id and its stream; None if it is not open."""
        our_id = self._ids.pop(backend_id, None)
        return None if our_id is None else (our_id, self.open.pop(our_id).stream)

    def client_is_there(self, reads: Callable[[Stream], bool], now: float) -> None:
        """Extends the deadlines of questions whose stream somebody `reads`: people may think for hours."""
        for our_id, question in self.open.items():
            if reads(question.stream):
                self.open[our_id] = msgspec.structs.replace(question, deadline=now + QUESTION_S)

    def expire(self, now: float) -> Iterator[bytes]:
        """The errors for questions past their deadline."""
        for our_id in [our_id for our_id, question in self.open.items() if question.deadline <= now]:
            line = self.refuse(our_id, "the client did not answer in time")
            if line is not None:
                yield line
