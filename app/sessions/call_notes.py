"""CallNotes: what one session adds to the history of calls. program_of: the client program behind a session."""

import time
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from app.domain import BackendSpec, Principal, public_id
from app.protocol.commands import TARGETS, Call
from app.protocol.jsonrpc import Params, Request, members_of, string_of
from app.telemetry.call_history.history import CallHistory, Named, Origin, name_of
from app.telemetry.logs import current

MAX_NAME = 80  # characters of a client's name and version
REFUSED_EVERY_S = 1.0  # of the calls that a session's limits refuse one in so long is noted
_LEFT_OUT = frozenset({"ping"})  # some clients send it every second


class Noted(Protocol):
    """The session whose calls are noted."""

    id: str
    principal: Principal
    spec: BackendSpec
    hello: bytes | None
    client_info: msgspec.Raw | None


class Asked(NamedTuple):
    """A request of a 2026-07-28 client, until it is answered."""

    method: str
    target: bytes | None
    size: int
    ids: Named | None
    began_at: float
    id: bytes = b""


class CallNotes:
    """Notes the calls of one session when they are over. Costs about a microsecond for each."""

    __slots__ = ("_history", "_origin", "_refused_at", "_session")

    def __init__(self, history: CallHistory, session: Noted) -> None:
        self._history, self._session = history, session
        self._origin: Origin | None = None
        self._refused_at = -REFUSED_EVERY_S

    def over(self, call: Call, outcome: str, seconds: float, bytes_out: int) -> None:
        """A call has its outcome: "" for a success."""
        method = call.method
        if method not in _LEFT_OUT:
            name = name_of(method, call.target)
            self._history.note(
                self._origin or self._from(), method, name, outcome or "ok", seconds, call.size, bytes_out, call.origin
            )

    def answered(self, asked: Asked, outcome: str, seconds: float, bytes_out: int) -> None:
        """The same, for a request of a 2026-07-28 client."""
        method, target, size, ids = asked[:4]
        name = name_of(method, target)
        self._history.note(self._origin or self._from(), method, name, outcome or "ok", seconds, size, bytes_out, ids)

    def refused(self, message: Request, reason: str, now: float) -> None:
        """A call was refused before it was sent. Floods of them would push everything else out of the history."""
        if now - self._refused_at >= REFUSED_EVERY_S:
            self._refused_at = now
            self.answered(asked_now(message, now), reason, 0.0, 0)

    def _from(self) -> Origin:
        """At the first call: until then the session may not know its client."""
        session, program = self._session, program_of(self._session)
        client = program.get("name", ""), program.get("version", "")
        self._origin = Origin(session.spec.key, session.principal.identity, public_id(session.id), client)
        return self._origin


def asked_now(message: Request, now: float | None = None) -> Asked:
    """The request that is being served."""
    params = message.params
    size = 0 if params is None else sum(map(len, params.values()))
    target = params.get(TARGETS.get(message.method, "")) if params else None
    # Not a view of it, which would keep the whole request in memory.
    kept = None if target is None or len(target) > 2048 else bytes(target)
    return Asked(message.method, kept, size, ids_now(), time.monotonic() if now is None else now, message.id)


def ids_now() -> Named | None:
    """The ids of the HTTP request that is being served."""
    served = current.get()
    return None if served is None else served.ids


def program_of(session: Noted) -> Mapping[str, str]:
    """`name` and `version` from the client's `clientInfo`, as far as it sent them."""
    info = session.client_info
    try:
        if info is None and session.hello is not None:
            params: Params = members_of(members_of(msgspec.Raw(session.hello))["params"])
            info = params["clientInfo"]
    except KeyError:
        return {}
    said = {} if info is None else members_of(info)
    named = {name: string_of(said.get(name)) for name in ("name", "version")}
    return {name: printable(text[:MAX_NAME]) for name, text in named.items() if text}


def printable(text: str) -> str:
    """A client's text, safe to show on a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)
