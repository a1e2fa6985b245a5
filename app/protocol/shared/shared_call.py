"""The sessions and calls of a shared process, and what a Multiplex asks its owner to do."""

from collections.abc import Hashable
from typing import Any

import msgspec

from app.errors import GatewayError
from app.protocol.commands import Dropped
from app.protocol.shared._fair_turns import Party


class SharedCall(msgspec.Struct, eq=False):
    """One request of a session; `member` is None after the end of the session."""

    id: bytes  # the session's
    our_id: bytes  # toward the process
    method: str
    member: "Member | None"
    token: bytes | None
    line: bytes  # empty once it is sent
    uri: str | None = None  # of a subscription
    has_place: bool = False  # among the running calls
    was_followed: bool = False  # by a request of our own

    def follow(self) -> None:
        """The process got a request of our own after this call."""
        self.was_followed = True

    def note_place(self, has_place: bool) -> None:
        self.has_place = has_place

    def take_line(self) -> bytes:
        """The line, which is sent once."""
        line, self.line = self.line, b""
        return line

    def abandoned(self) -> None:
        """The session has ended."""
        self.member, self.has_place = None, False


class Member(Party[SharedCall]):
    """One session at the process. `owner` is any object of the caller."""

    __slots__ = ("calls", "has_opened", "owner", "principal")

    def __init__(self, owner: Any, principal: Hashable) -> None:
        super().__init__()
        self.owner, self.principal = owner, principal
        self.calls: dict[bytes, SharedCall] = {}  # by the session's id
        self.has_opened = False

    def opened(self) -> None:
        """`initialize` was answered."""
        self.has_opened = True


class ToProcess(msgspec.Struct, gc=False):
    """A line for the process; if it cannot be written, the `call` fails."""

    line: bytes
    call: SharedCall | None = None


class ToMember(msgspec.Struct, gc=False):
    """A line for one session."""

    member: Member
    line: bytes


class ToAll(msgspec.Struct, gc=False):
    """A line for each of these sessions; a later one with the same `key` replaces it."""

    members: list[Member]
    line: bytes
    key: bytes


class FailCall(msgspec.Struct, gc=False):
    """A request of a session fails."""

    member: Member
    id: bytes
    error: GatewayError


Out = ToProcess | ToMember | ToAll | FailCall | Dropped
