"""PeerRequests: what other nodes send here: forwarded requests, greetings, queries for lists over all nodes."""

import logging
import time
from collections.abc import Callable

from app.cluster.all_nodes import OVERVIEW
from app.cluster.peers.client import CHALLENGE, COMPLAIN_EVERY_S, FORWARDED, GREETING_PATH, OTHER_KEY, PROOF, SESSION
from app.cluster.peers.credentials import ForwardRefused, NodeCredentials, Sent
from app.http.errors import HttpRefusal
from app.http.remote.forwarding import forward_refused
from app.http.remote.late_heads import LateHeads, LateSend
from app.http.scope import BY_NODE, LET_IN
from app.http.transports.request import McpRequest

Tell = Callable[[str, bytes], bytes | None]  # see `AllNodes.answer`

_GREETING = GREETING_PATH.decode()

log = logging.getLogger(__name__)


class PeerRequests:
    """Trusts another node's word for what Front would check. Reveals nothing to anyone else."""

    def __init__(self, credentials: NodeCredentials, tell: Tell, late_heads: LateHeads, *, max_body_bytes: int) -> None:
        self._credentials, self._tell, self._late_heads = credentials, tell, late_heads
        self._max_body_bytes = max_body_bytes
        self._complained_at = -COMPLAIN_EVERY_S

    async def accept(self, request: McpRequest) -> None:
        """Takes the principal from the node that has forwarded the request.

        Raises:
            HttpRefusal: the sender did not prove that it is a node.
            ClientGone: the connection ended first.
        """
        sent = Sent(request.method, request.raw_target(), request.headers.get(SESSION, b""))
        try:
            forwarded = self._credentials.open(request.headers[FORWARDED], sent)
            body = await request.body(self._max_body_bytes)
            forwarded.require_body(body)
        except ForwardRefused as refused:
            if refused.ahead_s:
                self._complain(refused.ahead_s)
            raise forward_refused(clock=bool(refused.ahead_s)) from None
        request.scope[LET_IN] = BY_NODE
        request.keep_body(body)
        request.vouched_for(forwarded.word)

    def watch(self, request: McpRequest) -> LateSend:
        """Tells the other node when the answer is late; call `done` at its end."""
        late = self._late_heads.watch(request.send)
        request.answer_through(late)
        return late

    async def has_answered(self, request: McpRequest, path: str) -> bool:
        """Answers a greeting or a query of another node; False where this is neither. Raises as `accept`."""
        if path == _GREETING:
            return await self._has_greeted(request)
        if not path.startswith(OVERVIEW) or FORWARDED not in request.headers:
            return False
        await self.accept(request)
        told = self._tell(path.removeprefix(OVERVIEW), await request.body(self._max_body_bytes))
        if told is None:
            raise HttpRefusal(404, "not_found", "there is nothing at this address")
        await request.answer(200, told)
        return True

    async def _has_greeted(self, request: McpRequest) -> bool:
        """Proves to another node which node this is; says OTHER_KEY to one with a different key."""
        challenge = request.headers.get(CHALLENGE)
        if challenge is None:
            return False
        proof = self._credentials.prove(challenge)
        if proof is None:
            await request.answer_empty(403, [(PROOF, OTHER_KEY)])
        else:
            request.scope[LET_IN] = BY_NODE
            await request.answer_empty(204, [(PROOF, proof)])
        return True

    def _complain(self, ahead_s: float) -> None:
        now = time.monotonic()
        if now - self._complained_at >= COMPLAIN_EVERY_S:
            self._complained_at = now
            log.error(
                "Refused a forwarded request: the sending node's clock is %.0f s %s this node's; synchronise with NTP",
                abs(ahead_s), "ahead of" if ahead_s > 0 else "behind",
            )  # fmt: skip
