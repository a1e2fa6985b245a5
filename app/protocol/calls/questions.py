"""Questions: a backend's requests to its client that wait for an answer, under our ids."""

from collections.abc import Callable, Iterator

import msgspec

from app.protocol.commands import Stream
from app.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, Request, Response, dump_response, error_response

MAX_QUESTIONS = 64  # of one backend open at once; above it the backend is refused
QUESTION_S = 600.0  # a question that nobody is there to answer gets an error after this, never silence


class Question(msgspec.Struct, gc=False):
    """One of them."""

    backend_id: bytes
    stream: Stream
    deadline: float


class Questions:
    """Those of one session. What they return as bytes is a line for the backend."""

    __slots__ = ("_ids", "open")

    def __init__(self) -> None:
        self.open: dict[bytes, Question] = {}  # by our id
        self._ids: dict[bytes, bytes] = {}  # the backend's id -> ours

    def refusal(self, message: Request) -> bytes | None:
        """Tells the backend why this cannot be asked; None where it can."""
        if message.id in self._ids:
            return error_response(message.id, INVALID_REQUEST, "a request with this id waits for the client")
        if len(self.open) >= MAX_QUESTIONS:
            return error_response(message.id, INTERNAL_ERROR, "too many requests wait for the client")
        return None

    def add(self, our_id: bytes, backend_id: bytes, stream: Stream, now: float) -> None:
        """It is put to the client on this stream."""
        self.open[our_id] = Question(backend_id, stream, now + QUESTION_S)
        self._ids[backend_id] = our_id

    def ask_on(self, our_id: bytes, stream: Stream) -> None:
        """The owner has put a question on another stream than the one it was for."""
        question = self.open.get(our_id)
        if question is not None:
            question.stream = stream

    def asked_on(self, our_id: bytes) -> Stream | None:
        """The stream that a question was put on last; None where it is not open any more."""
        question = self.open.get(our_id)
        return None if question is None else question.stream

    def answer(self, message: Response) -> bytes | None:
        """The client's answer; None where the backend has asked no such question, or got its answer."""
        question = self.open.pop(message.id, None)
        if question is None:
            return None
        self._ids.pop(question.backend_id, None)
        return dump_response(question.backend_id, message)

    def refuse(self, our_id: bytes, why: str, code: int = INTERNAL_ERROR) -> bytes | None:
        """Tells the backend that its question reached nobody; None where it is not open any more."""
        question = self.open.pop(our_id, None)
        if question is None:
            return None
        self._ids.pop(question.backend_id, None)
        return error_response(question.backend_id, code, why)

    def withdraw(self, backend_id: bytes) -> tuple[bytes, Stream] | None:
        """The backend does not ask any more: our id, and the stream that must hear of it; None where it has not."""
        our_id = self._ids.pop(backend_id, None)
        return None if our_id is None else (our_id, self.open.pop(our_id).stream)

    def client_is_there(self, reads: Callable[[Stream], bool], now: float) -> None:
        """Questions age only while nobody `reads` the stream that they went to: people may think for hours."""
        for question in self.open.values():
            if reads(question.stream):
                question.deadline = now + QUESTION_S

    def expire(self, now: float) -> Iterator[bytes]:
        """Refuses what nobody has answered by `now`."""
        for our_id in [our_id for our_id, question in self.open.items() if question.deadline <= now]:
            line = self.refuse(our_id, "the client did not answer in time")
            if line is not None:
                yield line

    def clear(self) -> None:
        """The backend asks nothing any more."""
        self.open.clear()
        self._ids.clear()
