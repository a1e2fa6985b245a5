"""PooledSession: a session that the gateway opened itself, for clients of 2026-07-28. Group: interchangeable ones."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import anyio
import msgspec

from app.domain import BackendSpec
from app.protocol.commands import Answer
from app.protocol.eras.sessionless_envelope import MAY_ASK, SESSIONLESS, TASKS
from app.protocol.jsonrpc import Params, members_of
from app.sessions.routes import Identity
from app.sessions.session import Session, SessionState
from app.sessions.sessionless._mirrored_headers import MirroredHeaders
from app.sessions.streams.streams import Reply

RESERVED = 8  # calls of a pooled session, at most a quarter, that are kept for requests of the gateway itself

MAX_CLIENT_INFO_BYTES = 4 << 10  # longer ones are not kept

CallerKey = tuple[Identity, str, str]


class CallerHomes(NamedTuple):
    """Whether this node may still serve a caller; and whom to tell when a caller has no request or session left."""

    may_serve: Callable[[Session], bool] = lambda session: True
    on_gone: Callable[[CallerKey], None] = lambda caller: None


ANYWHERE = CallerHomes()


def reserved_of(spec: BackendSpec) -> int:
    """How many calls of a pooled session are kept for the gateway itself."""
    return min(RESERVED, spec.calls_per_session // 4)


def max_shared(spec: BackendSpec) -> int:
    """How many calls of clients may run on a pooled session. On home more wait for their turn."""
    return spec.calls_per_session - reserved_of(spec)


class Need(Enum):
    """Which of the caller's pooled sessions a request may use."""

    HOME = "home"  # the oldest: it may name what only that process knows, such as a cursor or a task
    SHARED = "shared"  # one that no call has for itself
    ALONE = "alone"  # one for itself: what the process asks or logs there must belong to this call


@dataclass(eq=False, slots=True)
class PooledSession:
    """One session, and what its backend said of itself."""

    session: Session
    is_sessionless: bool
    about: Params  # the `initialize` or `server/discover` result
    capabilities: Params
    held_by: object = None
    may_still_ask: bool = False  # for a call that was given up: so it takes only requests of Need.HOME
    is_retired: bool = False  # takes no more calls, and closes after the last one
    log_level_is_set: bool = False

    @property
    def is_home(self) -> bool:
        """Whether it takes every request of its caller: unless the backend keeps no state and its messages do not say
        to which call they belong."""
        return self.is_sessionless or not self.session.spec.is_respawned

    def takes(self, need: Need) -> bool:
        """Whether it can take such a request now."""
        if self.session.state is not SessionState.OPEN:
            return False
        if self.is_home or need is Need.HOME:
            return True
        calls = self.session.exchange.calls
        if len(calls) >= max_shared(self.session.spec):
            return False
        is_quiet = need is Need.SHARED or not any(call.method in MAY_ASK for call in calls.values())
        return self.held_by is None and is_quiet and not self.may_still_ask

    def serve_only(self, call: object) -> None:
        """Takes no other call until this one is answered."""
        self.held_by = call

    def answered(self, call: object, may_go_on: bool) -> None:
        """The process has answered a call; or it was given up, and the process may go on with it."""
        if self.held_by is call:
            self.held_by = None
            self.may_still_ask |= may_go_on

    def told_to_log(self) -> None:
        self.log_level_is_set = True

    def retire(self) -> None:
        self.is_retired = True


@dataclass(eq=False, slots=True)
class Group:
    """The pooled sessions of one caller with one set of client capabilities."""

    sessions: list[PooledSession] = field(default_factory=list)  # oldest first
    opening: anyio.Lock = field(default_factory=anyio.Lock)
    mirrors: MirroredHeaders = field(default_factory=MirroredHeaders)

    def pick(self, need: Need) -> PooledSession | None:
        """The oldest pooled session that takes such a request."""
        return next((pooled for pooled in self.sessions if pooled.takes(need)), None)

    def opens_at_once(self, need: Need) -> bool:
        """Whether to open one without waiting for others that are being opened, as it will serve one call only."""
        return need is Need.ALONE and bool(self.sessions) and not self.sessions[0].is_home


def adopted(session: Session, about: Params) -> PooledSession:
    """Of a process that speaks 2026-07-28, and has said this of itself."""
    session.adopt(SESSIONLESS)
    if TASKS.encode() in bytes(about.get("capabilities", msgspec.Raw())):
        session.exchange.any_call_may_make_task()
    return PooledSession(session, True, about, members_of(about.get("capabilities", msgspec.Raw(b"{}"))))


def discovered(probe: Reply) -> Params | None:
    """The `server/discover` result, if the server speaks 2026-07-28."""
    outcome = probe.outcomes[0] if probe.outcomes else None
    if not isinstance(outcome, Answer) or outcome.response.member == "error":
        return None
    about = members_of(outcome.response.value)
    return about if SESSIONLESS.encode() in bytes(about.get("supportedVersions", msgspec.Raw())) else None


def kept(client_info: msgspec.Raw | None) -> msgspec.Raw | None:
    """A copy, so that the whole request is not kept in memory; None where it is too long."""
    return None if client_info is None or len(client_info) > MAX_CLIENT_INFO_BYTES else client_info.copy()
