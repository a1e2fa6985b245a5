"""What a process answers when it is asked what it offers: to learn what it imports, and to compare two of them."""

import json
from typing import Any

import anyio

from app import __version__
from app.domain import Timeouts
from app.errors import InvalidResponse
from app.processes.conversation import Conversation
from app.processes.link import BackendLink
from app.protocol.jsonrpc import Response
from app.protocol.revisions import HANDSHAKE

_LISTS = (
    ("tools", "tools/list"),
    ("resources", "resources/list"),
    ("resources", "resources/templates/list"),
    ("prompts", "prompts/list"),
)

Transcript = list[tuple[str, str]]


async def transcript(link: BackendLink, timeouts: Timeouts) -> Transcript:
    """Methods and answers: the handshake, the first page of each list, a ping.

    Raises:
        BackendError: the process ended, or refused `initialize`.
        TimeoutError: an answer took too long.
    """
    conversation = Conversation(link)
    link.attach(conversation)
    client = {"name": "trunkline-trial", "version": __version__}
    params: dict[str, Any] = {"protocolVersion": HANDSHAKE[-1], "capabilities": {}, "clientInfo": client}
    with anyio.fail_after(timeouts.initialize_s):
        first = await conversation.answer_to("initialize", params)
    if first.member == "error":
        raise InvalidResponse("`initialize` was refused")
    said = [("initialize", _text(first))]
    offered = json.loads(said[0][1]).get("capabilities")
    conversation.send({"method": "notifications/initialized"})
    methods = [method for kind, method in _LISTS if isinstance(offered, dict) and kind in offered]
    for method in (*methods, "ping"):
        with anyio.fail_after(timeouts.call_s):
            said.append((method, _text(await conversation.answer_to(method, {}))))
    return said


def _text(response: Response) -> str:
    """The answer without what may differ in its spelling."""
    try:
        return json.dumps(json.loads(bytes(response.value)), sort_keys=True)
    except (ValueError, RecursionError):
        raise InvalidResponse from None
