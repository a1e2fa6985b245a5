"""The sessions and calls of a shared process, and what a Multiplex asks its owner to do."""

from collections.abc import Hashable
from typing import Any

import msgspec

from app.errors import GatewayError
from app.protocol.commands import Dropped
from app.protocol.shared.fair_turns import Party
from app.protocol.shared.task_owners import Cursors


class SharedCall(msgspec.Struct, eq=False):
    """One request of a session, under the process's id for it; `member` is None once nobody wants the answer."""

    id: bytes
    our_id: bytes
    method: str
    member: "Member | None"
    token: bytes | None
    line: bytes  # empty once it is sent
    uri: str | None = None  # of a subscription
    has_place: bool = False


class Member(Party[SharedCall]):
    """One session at the process, and whose it is. `owner` is whatever the caller wants back."""

    __slots__ = ("calls", "cursors", "has_opened", "owner", "principal")

    def __init__(self, owner: Any, principal: Hashable) -> None:
        super().__init__()
        self.owner, self.principal = owner, principal
        self.cursors = Cursors()
        self.calls: dict[bytes, SharedCall] = {}  # by the session's id
        self.has_opened = False


class ToProcess(msgspec.Struct, gc=False):
    """A line for the process; the `call` is to be failed if it cannot be written."""

    line: bytes
    call: SharedCall | None = None


class ToMember(msgspec.Struct, gc=False):
    """A line for one session, as if it had the process for itself."""

    member: Member
    line: bytes


class ToAll(msgspec.Struct, gc=False):
    """A line for each of these sessions; a later one with the same `key` stands for this one too."""

    members: list[Member]
    line: bytes
    key: bytes


class FailCall(msgspec.Struct, gc=False):
    """A session's request that comes to nothing."""

    member: Member
    id: bytes
    error: GatewayError


Out = ToProcess | ToMember | ToAll | FailCall | Dropped
