"""SuspendedCalls: calls that wait for their clients' answers, and the sealed `requestState` that identifies them.

A state is bound to the principal, the backend and the same request; it is good for one round of one call.
"""

import base64
import hashlib
import json
import time
from typing import Any, NamedTuple

import msgspec

from app.auth.sealing import SealBroken, Sealer
from app.errors import StateRefused
from app.protocol.jsonrpc import Request, encode, string_of
from app.sessions.sessionless.call import SessionlessCall
from app.sessions.sessionless.pooled_sessions import Caller

MAX_SUSPENDED = 10_000  # of a node; one more ends the oldest
SUSPENDED_S = 300.0  # how long a client may take to come back
EXACT_DIGITS = 21  # JavaScript writes longer integers with an exponent


class Place(NamedTuple):
    """A node that holds suspended calls, and where it can be reached."""

    node: str
    url: str


ALONE = Place("", "")  # of a node without others


class SuspendedCalls:
    """The suspended calls of this node, which is `here`."""

    def __init__(self, sealer: Sealer, suspended_s: float, here: Place) -> None:
        self._sealer, self._suspended_s, self.here = sealer, suspended_s, here
        self._calls: dict[str, SessionlessCall] = {}
        self._spent: dict[str, None] = {}  # calls that were suspended, and went on to their end

    def add(self, caller: Caller, call: SessionlessCall) -> str:
        """Suspends the call; returns the state by which its client continues it."""
        if call.id not in self._calls and len(self._calls) >= MAX_SUSPENDED:
            next(iter(self._calls.values())).cancel("too many calls wait for their clients")
        self._calls[call.id] = call
        call.suspend(time.monotonic() + self._suspended_s)
        until = int(time.time() + self._suspended_s)
        state = {**self.here._asdict(), "call": call.id, "round": call.round, "until": until}
        sealed = self._sealer.seal(json.dumps(state).encode(), _purpose(caller, call.message))
        return base64.urlsafe_b64encode(sealed).decode()

    def find(self, caller: Caller, message: Request) -> SessionlessCall:
        """The call behind the request's state.

        Raises:
            StateRefused: the state is invalid, of another principal or request, spent or lost.
        """
        state = self._open(caller, message)
        if int(state["until"]) < time.time():
            raise StateRefused("state_lost")
        call = self._calls.get(state["call"])
        if call is None:
            raise StateRefused("state_spent" if state["call"] in self._spent else "state_lost")
        if call.round != state["round"] or call.deadline is None:
            raise StateRefused("state_spent")
        return call

    def place_of(self, caller: Caller, message: Request) -> Place | None:
        """Where the call of the request's state is or was; None where the state is invalid."""
        try:
            state = self._open(caller, message)
        except StateRefused:
            return None
        return Place(state["node"], state["url"])

    def _open(self, caller: Caller, message: Request) -> dict[str, Any]:
        state = string_of((message.params or {}).get("requestState")) or ""
        try:
            sealed = base64.urlsafe_b64decode(state.encode())
            if base64.urlsafe_b64encode(sealed).decode() != state:
                raise ValueError("not as it was written")
            opened: dict[str, Any] = json.loads(self._sealer.open(sealed, _purpose(caller, message)))
        except (SealBroken, ValueError):
            raise StateRefused("state_invalid") from None
        return opened

    def over(self, call: SessionlessCall) -> None:
        """The call has ended: its states are spent now; or lost, if it ended while suspended."""
        if self._calls.pop(call.id, None) is None or call.deadline is not None:
            return
        self._spent[call.id] = None
        if len(self._spent) > MAX_SUSPENDED:
            del self._spent[next(iter(self._spent))]

    def sweep(self, now: float) -> None:
        """Cancels the calls whose clients did not come back in time; see also SessionlessCall.ask_elsewhere."""
        for call in self.waiting():
            if call.deadline is not None and call.deadline < now:
                call.cancel("the client did not come back in time")
            else:
                call.ask_elsewhere(now)

    def waiting(self) -> list[SessionlessCall]:
        """The calls whose clients are to come back."""
        return [call for call in self._calls.values() if call.deadline is not None]


def _purpose(caller: Caller, message: Request) -> str:
    """What a state is bound to; the params by value, as clients and proxies may write them differently."""
    params = [
        (name, canonical(value))
        for name, value in sorted((message.params or {}).items())
        if name not in ("_meta", "inputResponses", "requestState")
    ]
    digest = hashlib.sha256(encode([message.method, params])).hexdigest()
    return "|".join(["requestState", *caller.principal.identity, caller.tenant, caller.backend, digest])


def canonical(raw: msgspec.Raw) -> str:
    """Equal for equal JSON values, whatever their white space, escapes, order of keys and form of numbers.

    What is too deep for Python is equal only to the same bytes.
    """
    try:
        value = json.loads(bytes(raw), parse_int=_number, parse_float=_number)
        return json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError):
        return bytes(raw).hex()


def _number(text: str) -> int | float:
    """Integers exactly, up to the length at which some peers change to an exponent; anything else as a double."""
    if text.lstrip("-").isdigit() and len(text) <= EXACT_DIGITS:
        return int(text)
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 10**EXACT_DIGITS else number
