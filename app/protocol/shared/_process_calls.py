"""ProcessCalls: the calls of all sessions of a process: our ids for them, their turns, and cancelled ones that may
still be answered."""

import msgspec

from app.protocol.exchange import replace_token
from app.protocol.jsonrpc import ABSENT, Params, Request, Response, dump_notification, dump_request, may_be_of_a_call
from app.protocol.shared._fair_turns import FairTurns, Verdict
from app.protocol.shared.shared_call import Member, Out, SharedCall, ToProcess

MAX_RUNNING = 128  # calls of one process; beyond them each session may have one
MAX_WAITING_BYTES = 4 << 20  # of one session's waiting calls
MAX_LATE = 256  # cancelled calls whose answer is still passed on


class ProcessCalls:
    """Carry out what the methods return, in order."""

    def __init__(self) -> None:
        self.turns: FairTurns[SharedCall] = FairTurns(MAX_RUNNING, MAX_WAITING_BYTES)
        self.running: dict[bytes, SharedCall] = {}  # sent to the process, by our id
        self.late: dict[bytes, SharedCall] = {}  # cancelled
        self._late_before: list[bytes] = []
        self._last_id = 0

    def next_id(self) -> bytes:
        """For a request of our own, which is sent next."""
        for call in self.running.values():
            call.follow()
        self._last_id += 1
        return b"%d" % self._last_id

    def make(self, member: Member, message: Request, params: Params | None, uri: str | None = None) -> SharedCall:
        """A call with our id and progress token, which is not sent yet. `uri` is the resource of a subscription."""
        self._last_id += 1
        our_id, token = b"%d" % self._last_id, None
        if params is not None and "_meta" in params:
            params, token = replace_token(params, our_id)
        line = dump_request(our_id, message.method, params)
        call = member.calls[message.id] = SharedCall(message.id, our_id, message.method, member, token, line, uri)
        return call

    def offer(self, member: Member, call: SharedCall) -> list[Out] | None:
        """Sends the call, or queues it; None if too much of its session waits: the call is forgotten."""
        verdict = self.turns.offer(member, call, len(call.line))
        if verdict is Verdict.RUN:
            call.note_place(True)
            return [self.write(call)]
        if verdict is Verdict.REFUSE:
            del member.calls[call.id]
            return None
        return []

    def _send(self, calls: list[SharedCall]) -> list[Out]:
        """The turn of these calls has come."""
        for call in calls:
            call.note_place(True)
        return [self.write(call) for call in calls]

    def write(self, call: SharedCall) -> ToProcess:
        """Sends the call without waiting for a turn."""
        self.running[call.our_id] = call
        return ToProcess(call.take_line(), call)

    def abandon(self, call: SharedCall) -> list[Out]:
        """Forgets a call that will have no answer."""
        self.running.pop(call.our_id, None)
        return self.finish(call)

    def finish(self, call: SharedCall) -> list[Out]:
        """The call has ended: gives its place to another one."""
        member = call.member
        if member is None:
            return []
        member.calls.pop(call.id, None)
        return self._free(call, member)

    def _free(self, call: SharedCall, member: Member) -> list[Out]:
        if not call.has_place:
            return []
        call.note_place(False)
        return self._send(self.turns.finish(member))

    def only(self) -> SharedCall | None:
        """The running call, if there is exactly one, and no cancelled one."""
        return next(iter(self.running.values())) if len(self.running) == 1 and not self.late else None

    def unread(self, response: Response) -> SharedCall | None:
        """The call that the process could not read, if this says so; it has ended."""
        call = self.only()
        if call is None or call.was_followed or not may_be_of_a_call(response, call.method):
            return None
        return self.running.pop(call.our_id)

    # --- cancelled calls

    def cancelled(self, member: Member, params: Params) -> list[Out]:
        """The session has cancelled one of its calls."""
        call = member.calls.get(bytes(params.get("requestId", ABSENT)))
        if call is None or call.our_id in self.late:
            return []
        if call.our_id in self.running:
            return [self._cancel(call, params), *self._free(call, member)]
        self.turns.withdraw(member, call)
        del member.calls[call.id]
        return []

    def cancel_all(self, member: Member) -> list[Out]:
        """The session has ended; call `leave` as well."""
        outs: list[Out] = []
        for call in member.calls.values():
            call.abandoned()
            if call.our_id in self.running:
                outs.append(self._cancel(call, {}))
        member.calls.clear()
        return outs

    def leave(self, member: Member) -> list[Out]:
        """Gives the places of a session that has ended to others."""
        return self._send(self.turns.leave(member))

    def resume(self, member: Member) -> list[Out]:
        """Undoes `turns.pause`."""
        return self._send(self.turns.resume(member))

    def _cancel(self, call: SharedCall, params: Params) -> ToProcess:
        self.late[call.our_id] = self.running.pop(call.our_id)
        if len(self.late) > MAX_LATE:
            self._forget_late(next(iter(self.late)))
        params = {**params, "requestId": msgspec.Raw(call.our_id)}
        return ToProcess(dump_notification("notifications/cancelled", params))

    def tick(self) -> None:
        """Forgets calls that had been cancelled at the last tick already."""
        for our_id in self._late_before:
            self._forget_late(our_id)
        self._late_before = list(self.late)

    def _forget_late(self, our_id: bytes) -> None:
        call = self.late.pop(our_id, None)
        if call is not None and call.member is not None:
            call.member.calls.pop(call.id, None)
