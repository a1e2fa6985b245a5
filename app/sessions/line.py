"""Line: one session that the gateway has opened itself, for clients of 2026-07-28. Group: those that are alike."""

from dataclasses import dataclass, field
from enum import Enum

import anyio

from app.domain import BackendSpec
from app.protocol.jsonrpc import Params
from app.protocol.lifecycle import SessionState
from app.protocol.modern import MAY_ASK
from app.sessions.mirrors import Mirrors
from app.sessions.session import Session

RESERVED = 8  # calls of one line, at most a quarter, that are left to what the gateway asks itself


def max_shared(spec: BackendSpec) -> int:
    """How many calls of clients a line takes; for the next there is another line. They do not wait for their turn."""
    return spec.calls_per_session - min(RESERVED, spec.calls_per_session // 4)


class Need(Enum):
    """What a request wants of its line."""

    ANY = "any"  # it asks nothing and logs nothing: any line will do
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

    def is_free(self, need: Need) -> bool:
        """Whether it can take such a request."""
        calls = self.session.exchange.calls
        if self.session.state is not SessionState.OPEN or len(calls) >= max_shared(self.session.spec):
            return False
        if self.is_modern or need is Need.ANY:
            return True
        is_quiet = need is Need.SHARED or not any(call.method in MAY_ASK for call in calls.values())
        return self.held_by is None and is_quiet and not self.may_still_ask


@dataclass(eq=False, slots=True)
class Group:
    """The lines of one caller with one set of capabilities, and the tools they were seen to offer."""

    lines: list[Line] = field(default_factory=list)  # the one used last stands last
    opening: anyio.Lock = field(default_factory=anyio.Lock)
    mirrors: Mirrors = field(default_factory=Mirrors)

    def pick(self, need: Need) -> Line | None:
        """The line used last that can take such a request; one that is held only where there is no other."""
        able = [line for line in self.lines if line.is_free(need)]
        line = next((line for line in reversed(able) if line.held_by is None), able[-1] if able else None)
        if line is not None:
            self.lines.remove(line)
            self.lines.append(line)
        return line
