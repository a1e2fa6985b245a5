"""Inside: answers what other nodes send to this one: requests of their clients, and questions for lists."""

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from app.sessions.all_nodes import OVERVIEW
from app.transports.node_links import LinkedRequest
from app.transports.request import McpRequest

Tell = Callable[[str, dict[str, str]], Any]  # see `all_nodes.answer_for`
Forwarded = Callable[[LinkedRequest], Awaitable[None]]  # see `Front.forwarded`


class Inside:
    """What `NodeLinks` is to serve."""

    def __init__(self, forwarded: Forwarded, tell: Tell) -> None:
        self._forwarded, self._tell = forwarded, tell

    async def __call__(self, linked: LinkedRequest) -> None:
        if linked.head.target.startswith(_OVERVIEW):
            await self._overview(linked)
        else:
            await self._forwarded(linked)

    async def _overview(self, linked: LinkedRequest) -> None:
        scope = linked.scope()
        request = McpRequest(scope, linked.receive, linked.send, "", "", "")
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        told = self._tell(scope["path"].removeprefix(OVERVIEW), query)
        if told is None:
            await request.answer_empty(404)
        else:
            await request.answer(200, msgspec.json.encode(told))


_OVERVIEW = OVERVIEW.encode()
