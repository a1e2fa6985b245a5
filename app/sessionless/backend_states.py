"""BackendStates: the `requestState` of a server that speaks 2026-07-28 itself, on its way to its client and back.

Servers put into it what they want to find again, and few of them sign it. One process serves a caller for long, and
under `isolation: shared` all callers of a tenant: so what one client was given is worth nothing in another's hands,
and what no server has said does not reach one. It is sealed for the principal and the backend, by a key that every node
has.
"""

import base64

import msgspec

from app.auth.sealing import SealBroken, Sealer
from app.errors import StateRefused
from app.protocol.jsonrpc import Params, Response, encode, members_of, string_of
from app.sessionless.pooled_sessions import Caller

STATE = "requestState"
INPUT_REQUIRED = b'"input_required"'


class BackendStates:
    """Seals and opens. Has no memory: how often a state is good is the server's own affair."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def sealed(self, caller: Caller, response: Response) -> Response:
        """A server's answer for its client; unchanged unless it asks for input and has a state."""
        if response.member != "result" or b"input_required" not in bytes(response.value):
            return response
        members = members_of(response.value)
        if STATE not in members or bytes(members.get("resultType", msgspec.Raw())) != INPUT_REQUIRED:
            return response
        state = self._sealer.seal(bytes(members[STATE]), _place(caller))
        members[STATE] = msgspec.Raw(encode(base64.urlsafe_b64encode(state).decode()))
        return Response(response.id, "result", msgspec.Raw(encode(members)))

    def opened(self, caller: Caller, params: Params | None) -> Params | None:
        """A client's params for the server, with the state as the server wrote it.

        Raises:
            StateRefused: no server has given this state to this principal.
        """
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
