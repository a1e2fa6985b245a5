"""Inside: what other nodes send to this one: requests they vouch for, probes, and questions for lists of all nodes."""

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from app.errors import ForwardRefused
from app.http.errors import HttpRefusal
from app.routing.forward_credentials import ForwardCredentials
from app.routing.peers import CHALLENGE, PROBE_PATH, PROOF
from app.sessions.all_nodes import OVERVIEW
from app.transports.forwarding import FORWARDED, forward_refused
from app.transports.request import McpRequest

Tell = Callable[[str, dict[str, str]], Any]  # see `all_nodes.answer_for`

_PROBED = PROBE_PATH.decode()


class Inside:
    """Takes a node's word for what the front would check. Whoever is no node learns nothing here."""

    def __init__(self, credentials: ForwardCredentials, tell: Tell, *, max_body_bytes: int) -> None:
        self._credentials, self._tell, self._max_body_bytes = credentials, tell, max_body_bytes

    async def accept(self, request: McpRequest, value: bytes) -> None:
        """Another node has checked names and credentials, if it is one; its word takes their place.

        Raises:
            HttpRefusal: it is none.
            ClientGone: the connection ended first.
        """
        try:
            forwarded = self._credentials.open(value, request.method, request.raw_target())
            body = await request.body(self._max_body_bytes)
            forwarded.require_body(body)
        except ForwardRefused:
            raise forward_refused() from None
        request.keep_body(body)
        request.principal, request.is_forwarded = forwarded.principal, True

    async def has_answered(self, request: McpRequest, path: str) -> bool:
        """Answers what only a node asks; False where it is nothing of the kind.

        Raises:
            HttpRefusal, ClientGone: as `accept`; or there is no such question.
        """
        if path == _PROBED:
            return await self._has_proved(request)
        if not path.startswith(OVERVIEW) or FORWARDED not in request.headers:
            return False
        await self.accept(request, request.headers[FORWARDED])
        query = dict(parse_qsl(request.scope["query_string"].decode("latin-1")))
        told = self._tell(path.removeprefix(OVERVIEW), query)
        if told is None:
            raise HttpRefusal(404, "not_found", "there is nothing at this address")
        await request.answer(200, msgspec.json.encode(told))
        return True

    async def _has_proved(self, request: McpRequest) -> bool:
        """Tells another node which one this is."""
        challenge = request.headers.get(CHALLENGE)
        proof = None if challenge is None else self._credentials.prove(challenge)
        if proof is None:
            return False
        await request.answer_empty(204, [(PROOF, proof)])
        return True
