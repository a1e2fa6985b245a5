"""RequestStateSeal: seals the `requestState` of servers that speak 2026-07-28 themselves.

Few servers sign it, and under `isolation: shared` one process serves all callers of a tenant. So it is sealed for the
principal and the backend, by a key that all nodes have: no client can use another's, or one of its own making.
"""

import base64

import msgspec

from app.auth.sealing import SealBroken, Sealer
from app.errors import StateRefused
from app.protocol.jsonrpc import Params, Response, encode, members_of, string_of
from app.sessions.sessionless.pooled_sessions import Caller

STATE = "requestState"
INPUT_REQUIRED = b'"input_required"'


class RequestStateSeal:
    """Without memory: how often a state may be used is for the server to decide."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def sealed(self, caller: Caller, response: Response) -> Response:
        """The server's answer with its state sealed; unchanged unless it asks for input and has one."""
        if response.member != "result" or b"input_required" not in bytes(response.value):
            return response
        members = members_of(response.value)
        if STATE not in members or bytes(members.get("resultType", msgspec.Raw())) != INPUT_REQUIRED:
            return response
        state = self._sealer.seal(bytes(members[STATE]), _place(caller))
        members[STATE] = msgspec.Raw(encode(base64.urlsafe_b64encode(state).decode()))
        return Response(response.id, "result", msgspec.Raw(encode(members)))

    def opened(self, caller: Caller, params: Params | None) -> Params | None:
        """The client's params with the server's own state. Raises StateRefused where the seal is broken."""
        if params is None or STATE not in params:
            return params
        try:
            sealed = base64.b64decode(string_of(params[STATE]) or "", altchars=b"-_", validate=True)
            state = self._sealer.open(sealed, _place(caller))
        except (SealBroken, ValueError):
            raise StateRefused("state_invalid") from None
        return {**params, STATE: msgspec.Raw(state)}


def _place(caller: Caller) -> str:
    return encode(["backendState", *caller.principal.identity, caller.tenant, caller.backend]).decode()
