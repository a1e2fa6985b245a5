"""What a process answers when it is asked what it offers: to learn what it imports, and to compare two of them."""

import asyncio
import json
from typing import Any

import anyio

from app import __version__
from app.domain import Timeouts
from app.errors import BackendError, GatewayError, InvalidMessage, InvalidResponse, ResponseTooLarge
from app.processes.link import BackendLink, Exit
from app.protocol.eras.sessionless_envelope import envelope_of_ours, is_refused_handshake
from app.protocol.jsonrpc import METHOD_NOT_FOUND, Request, Response, error_response, parse_backend
from app.protocol.revisions import HANDSHAKE

_LISTS = (
    ("tools", "tools/list"),
    ("resources", "resources/list"),
    ("resources", "resources/templates/list"),
    ("prompts", "prompts/list"),
)

Transcript = list[tuple[str, str]]


class Dialogue:
    """One question after another. Fulfils BackendListener."""

    def __init__(self, link: BackendLink) -> None:
        self._link = link
        self._last_id = 0
        self._meta: dict[str, object] | None = None  # of each request, for a server of 2026-07-28
        self._answer: asyncio.Future[Response] | None = None
        self._end: BackendError | None = None
        link.attach(self)

    async def transcript(self, timeouts: Timeouts) -> Transcript:
        """Methods and answers: the handshake, the first page of each list, a ping; of a server that speaks 2026-07-28
        only, `server/discover` and the lists.

        Raises:
            BackendError: the process ended, or refused `initialize`.
            TimeoutError: an answer took too long.
        """
        with anyio.fail_after(timeouts.initialize_s):
            said = [await self._begin()]
        offered = json.loads(said[0][1]).get("capabilities")
        methods = [method for kind, method in _LISTS if isinstance(offered, dict) and kind in offered]
        if self._meta is None:
            self._send({"method": "notifications/initialized"})
            methods.append("ping")
        for method in methods:
            with anyio.fail_after(timeouts.call_s):
                said.append((method, _text(await self._ask(method, {}))))
        return said

    async def _begin(self) -> tuple[str, str]:
        client = {"name": "trunkline-trial", "version": __version__}
        params = {"protocolVersion": HANDSHAKE[-1], "capabilities": {}, "clientInfo": client}
        method, answer = "initialize", await self._ask("initialize", params)
        if answer.member == "error" and is_refused_handshake(answer):
            self._meta = envelope_of_ours(client)
            method, answer = "server/discover", await self._ask("server/discover", {})
        if answer.member == "error":
            raise InvalidResponse(f"`{method}` was refused")
        return method, _text(answer)

    async def _ask(self, method: str, params: dict[str, Any]) -> Response:
        if self._end is not None:
            raise self._end
        self._last_id += 1
        self._answer = asyncio.get_running_loop().create_future()
        params = params if self._meta is None else {**params, "_meta": self._meta}
        self._send({"id": self._last_id, "method": method, "params": params})
        return await self._answer

    def _send(self, message: dict[str, Any]) -> None:
        self._link.send(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def backend_sent(self, line: bytes) -> None:
        """Takes our answer, refuses questions, ignores everything else."""
        try:
            message = parse_backend(line)
        except InvalidMessage:
            return
        if isinstance(message, Request):
            refusal = error_response(message.id, METHOD_NOT_FOUND, "this client offers nothing", {})
            try:
                self._link.send(refusal)
            except GatewayError:
                return
            return
        if not isinstance(message, Response) or message.id != b"%d" % self._last_id:
            return
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(message)

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        self._fail(ResponseTooLarge())

    def backend_exited(self, exit: Exit) -> None:
        self._end = exit.error("the process has ended")
        self._fail(self._end)

    def _fail(self, error: BackendError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def _text(response: Response) -> str:
    """The answer without what may differ in its spelling."""
    try:
        return json.dumps(json.loads(bytes(response.value)), sort_keys=True)
    except (ValueError, RecursionError):
        raise InvalidResponse from None
