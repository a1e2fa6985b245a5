"""Line: one session that the gateway has opened itself, for clients of 2026-07-28. Group: those that are alike."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import anyio

from app.domain import BackendSpec
from app.protocol.eras.modern import MAY_ASK
from app.protocol.jsonrpc import Params
from app.protocol.lifecycle import SessionState
from app.routing.routes import Identity
from app.sessionless.mirrored_headers import MirroredHeaders
from app.sessionless.unasked import Unasked
from app.sessions.session import Session

RESERVED = 8  # calls of one line, at most a quarter, that are left to what the gateway asks itself

CallerKey = tuple[Identity, str, str]


class CallerHomes(NamedTuple):
    """Which callers are this node's to serve: whether a new line's is, and who hears when nothing is left of one."""

    may_serve: Callable[[Session], bool] = lambda session: True
    on_gone: Callable[[CallerKey], None] = lambda caller: None


ANYWHERE = CallerHomes()


def reserved_of(spec: BackendSpec) -> int:
    """How many calls of a line are not for clients: what waits for them must not wait for what they wait for."""
    return min(RESERVED, spec.calls_per_session // 4)


def max_shared(spec: BackendSpec) -> int:
    """How many calls of clients a line has with its process. At home the next waits for its turn."""
    return spec.calls_per_session - reserved_of(spec)


class Need(Enum):
    """What a request wants of its line, where home may be joined by others."""

    HOME = "home"  # it asks nothing, and may name what only one process knows: a cursor, a task
    SHARED = "shared"  # no line that somebody has for himself
    ALONE = "alone"  # what the process asks or logs on it must be this call's


@dataclass(eq=False, slots=True)
class Line:
    """One session of ours, and what its backend said of itself."""

    session: Session
    is_modern: bool
    about: Params  # the `initialize` or `server/discover` result
    capabilities: Params
    held_by: object = None
    may_still_ask: bool = False  # for a call that nobody waits for any more: it only answers lists from now on
    is_retired: bool = False  # takes no more calls, and is closed after the last one
    log_level_is_set: bool = False
    is_pinged: bool = False

    @property
    def unasked(self) -> Unasked:
        """What its process says without a call's name."""
        assert isinstance(self.session.streams.listen, Unasked)
        return self.session.streams.listen

    @property
    def is_home(self) -> bool:
        """Whether it takes every request of its caller. Not where the backend keeps no state, unless each message says
        to which call it belongs."""
        return self.is_modern or self.session.spec.recovery != "respawn"

    def takes(self, need: Need) -> bool:
        """Whether it is there for such a request, now."""
        if self.session.state is not SessionState.OPEN:
            return False
        if self.is_home or need is Need.HOME:
            return True
        calls = self.session.exchange.calls
        if len(calls) >= max_shared(self.session.spec):
            return False
        is_quiet = need is Need.SHARED or not any(call.method in MAY_ASK for call in calls.values())
        return self.held_by is None and is_quiet and not self.may_still_ask


@dataclass(eq=False, slots=True)
class Group:
    """The lines of one caller with one set of capabilities, and the tools they were seen to offer."""

    lines: list[Line] = field(default_factory=list)  # oldest first
    opening: anyio.Lock = field(default_factory=anyio.Lock)
    mirrors: MirroredHeaders = field(default_factory=MirroredHeaders)

    def pick(self, need: Need) -> Line | None:
        """The oldest line that takes such a request."""
        return next((line for line in self.lines if line.takes(need)), None)

    def opens_at_once(self, need: Need) -> bool:
        """Whether a line is opened beside others that are opened now, because nobody else could use it."""
        return need is Need.ALONE and bool(self.lines) and not self.lines[0].is_home
