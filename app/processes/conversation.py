"""A conversation with a process outside of any session: one question at a time, by this gateway itself."""

import asyncio
from typing import Any

import msgspec

from app.errors import BackendError, GatewayError, InvalidMessage, InvalidResponse, ResponseTooLarge
from app.processes.connection import BackendConnection
from app.processes.endings import Exit
from app.protocol.eras.sessionless_envelope import envelope_of_ours
from app.protocol.jsonrpc import METHOD_NOT_FOUND, Request, Response, error_response, parse_backend, several

_MAX_TEXT = 200  # of an error that is quoted


class Conversation:
    """One request at a time. Fulfils CallListener."""

    def __init__(self, connection: BackendConnection) -> None:
        self._connection = connection
        self._meta: dict[str, object] | None = None  # of each request, for a server of 2026-07-28
        self._last_id = 0
        self._answer: asyncio.Future[Response] | None = None
        self._end: BackendError | None = None

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Returns the result.

        Raises:
            BackendError: the backend ended, or answered with an error or with something invalid.
        """
        return result_of(await self.answer_to(method, params))

    async def answer_to(self, method: str, params: dict[str, Any]) -> Response:
        """Returns the answer, which may be an error. Raises BackendError: the backend ended."""
        if self._end is not None:
            raise self._end
        self._last_id += 1
        self._answer = asyncio.get_running_loop().create_future()
        params = params if self._meta is None else {**params, "_meta": self._meta}
        self.send({"id": self._last_id, "method": method, "params": params})
        return await self._answer

    def speak_sessionless(self, client: dict[str, str]) -> None:
        """From now on each request is one of 2026-07-28."""
        self._meta = envelope_of_ours(client)

    def send(self, message: dict[str, Any]) -> None:
        self._connection.send(msgspec.json.encode({"jsonrpc": "2.0", **message}))

    def backend_sent(self, line: bytes) -> None:
        """Takes our answer, answers or refuses requests, ignores what is no message."""
        try:
            message = parse_backend(line)
        except InvalidMessage:
            for each in several(line):
                self.backend_sent(each)
            return
        try:
            if isinstance(message, Request):
                self._connection.send(_reply(message))
        except GatewayError:
            return
        if not isinstance(message, Response) or message.id != b"%d" % self._last_id:
            return
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(message)

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        self._fail(ResponseTooLarge())  # most likely our answer

    def backend_failed(self, call: bytes, error: GatewayError) -> None:
        if call == b"%d" % self._last_id:
            self._fail(error)

    def backend_exited(self, exit: Exit) -> None:
        self._end = exit.error()
        self._fail(self._end)

    def _fail(self, error: GatewayError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def result_of(response: Response) -> dict[str, Any]:
    """Raises BackendError: it is an error, or invalid."""
    try:
        value = msgspec.json.decode(response.value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidResponse from None
    if response.member == "error":
        message = value.get("message") if isinstance(value, dict) else None
        raise BackendError(f"the backend answered with an error: {str(message)[:_MAX_TEXT]}")
    if not isinstance(value, dict):
        raise InvalidResponse("the backend's result is not an object")
    return value


def _reply(question: Request) -> bytes:
    if question.method == "ping":
        return b'{"jsonrpc":"2.0","id":%b,"result":{}}' % question.id
    return error_response(question.id, METHOD_NOT_FOUND, "this client offers nothing", {})
