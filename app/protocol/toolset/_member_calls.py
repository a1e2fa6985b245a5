"""Which member works on which call of the session."""

import msgspec

from app.protocol.exchange import FEEDBACK
from app.protocol.jsonrpc import Response, answered_id, may_be_of_a_call
from app.protocol.toolset.outs import ToMember

MAX_CANCELLED = 256  # calls whose late answers are still passed on


class MemberCall(msgspec.Struct, gc=False):
    """A call that a member works on. `uri`: of a subscription. `query`: what was searched for before this call of the
    tool that is shown as `tool`."""

    id: bytes
    member: int
    method: str
    may_make_task: bool = False
    uri: str = ""
    query: str = ""
    tool: str = ""
    was_followed: bool = False  # by another message for the member than a call

    def follow(self) -> None:
        """The member got another message after this call."""
        self.was_followed = True


class MemberCalls:
    """Calls by the session's id, oldest first. Those that were cancelled may still be answered."""

    __slots__ = ("_cancelled", "_running")

    def __init__(self) -> None:
        self._running: dict[bytes, MemberCall] = {}
        self._cancelled: dict[bytes, MemberCall] = {}

    def add(self, call: MemberCall) -> None:
        """The call goes to its member."""
        self._running[call.id] = call

    def of(self, member: int, answered: bytes) -> MemberCall | None:
        """The call that this id names, if it is this member's."""
        call_id = answered_id(answered)
        call = self._running.get(call_id) or self._cancelled.get(call_id)
        return call if call is not None and call.member == member else None

    def only(self, member: int) -> MemberCall | None:
        """The call that the member works on, if it is the only one."""
        calls = [call for call in self._running.values() if call.member == member]
        return calls[0] if len(calls) == 1 else None

    def tell(self, member: int, line: bytes) -> ToMember:
        """The member gets another message than a call."""
        for call in self._running.values():
            if call.member == member:
                call.follow()
        return ToMember(member, line)

    def unread(self, member: int, response: Response) -> MemberCall | None:
        """The call that the member could not read, if this says so."""
        call = self.only(member)
        if call is None or call.was_followed or not may_be_of_a_call(response, call.method):
            return None
        return call

    def may_ask(self, member: int) -> tuple[bytes, ...]:
        """The calls of the member that may ask something, oldest first."""
        mine = (call for call in self._running.values() if call.member == member)
        return tuple(call.id for call in mine if call.method in FEEDBACK)

    def newest(self, members: list[int]) -> int | None:
        """That of these members which got the newest call."""
        return next((each.member for each in reversed(self._running.values()) if each.member in members), None)

    def forget(self, call_id: bytes) -> MemberCall | None:
        """It is answered, or has failed."""
        return self._running.pop(call_id, None) or self._cancelled.pop(call_id, None)

    def cancel(self, call_id: bytes) -> MemberCall | None:
        """The client has cancelled it; None if it is not running."""
        call = self._running.pop(call_id, None)
        if call is not None:
            self._cancelled[call_id] = call
            if len(self._cancelled) > MAX_CANCELLED:
                del self._cancelled[next(iter(self._cancelled))]
        return call

    def lose(self, member: int) -> list[bytes]:
        """Forgets all calls of the member; returns the ids of those that were running."""
        lost = [call.id for call in self._running.values() if call.member == member]
        for calls in (self._running, self._cancelled):
            for call_id in [call.id for call in calls.values() if call.member == member]:
                del calls[call_id]
        return lost
