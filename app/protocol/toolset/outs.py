"""What a FanOut asks its owner to do."""

import msgspec

from app.errors import GatewayError
from app.protocol.commands import Dropped


class ToSession(msgspec.Struct, gc=False):
    """A line for the session. With `among` it is a question that belongs to one of the calls with these ids; empty if
    the member works on none."""

    line: bytes
    among: tuple[bytes, ...] | None = None


class ToMember(msgspec.Struct, gc=False):
    """A line for a member; if it cannot be written, the `call` fails. Only a call may start the member. `cancels`: a
    call that need not be sent any more, if it was not."""

    member: int
    line: bytes
    call: bytes | None = None
    cancels: bytes | None = None


class FailCall(msgspec.Struct, gc=False):
    """A call of the session fails."""

    id: bytes
    error: GatewayError


class ListsChanged(msgspec.Struct, gc=False):
    """A member says, by this notification, that the lists of these methods have changed."""

    member: int
    change: str
    methods: tuple[str, ...]


class Noise(msgspec.Struct, gc=False):
    """A line of a member that is no JSON."""

    member: int
    line: bytes


Out = ToSession | ToMember | FailCall | ListsChanged | Noise | Dropped
