"""What a process answers when it is asked what it offers: to learn what it imports, and to compare two of them."""

import json
from typing import Any

import anyio

from app import __version__
from app.domain import Timeouts
from app.errors import InvalidResponse
from app.processes.connection import BackendConnection
from app.processes.conversation import Conversation
from app.protocol.eras.sessionless_envelope import is_refused_handshake
from app.protocol.jsonrpc import Response
from app.protocol.revisions import HANDSHAKE

_LISTS = (
    ("tools", "tools/list"),
    ("resources", "resources/list"),
    ("resources", "resources/templates/list"),
    ("prompts", "prompts/list"),
)

Transcript = list[tuple[str, str]]


async def transcript(connection: BackendConnection, timeouts: Timeouts) -> Transcript:
    """Methods and answers: the handshake, the first page of each list, a ping; of a server that speaks 2026-07-28 only,
    `server/discover` and the lists.

    Raises:
        BackendError: the process ended, or refused the first request.
        TimeoutError: an answer took too long.
    """
    conversation = Conversation(connection)
    connection.attach(conversation)
    with anyio.fail_after(timeouts.initialize_s):
        method, first = await _begin(conversation)
    said = [(method, _text(first))]
    offered = json.loads(said[0][1]).get("capabilities")
    methods = [method for kind, method in _LISTS if isinstance(offered, dict) and kind in offered]
    if method == "initialize":
        conversation.send({"method": "notifications/initialized"})
        methods.append("ping")
    for each in methods:
        with anyio.fail_after(timeouts.call_s):
            said.append((each, _text(await conversation.answer_to(each, {}))))
    return said


async def _begin(conversation: Conversation) -> tuple[str, Response]:
    client = {"name": "trunkline-trial", "version": __version__}
    params: dict[str, Any] = {"protocolVersion": HANDSHAKE[-1], "capabilities": {}, "clientInfo": client}
    method, answer = "initialize", await conversation.answer_to("initialize", params)
    if answer.member == "error" and is_refused_handshake(answer):
        conversation.speak_sessionless(client)
        method, answer = "server/discover", await conversation.answer_to("server/discover", {})
    if answer.member == "error":
        raise InvalidResponse(f"`{method}` was refused")
    return method, answer


def _text(response: Response) -> str:
    """The answer without what may differ in its spelling."""
    try:
        return json.dumps(json.loads(bytes(response.value)), sort_keys=True)
    except (ValueError, RecursionError):
        raise InvalidResponse from None
