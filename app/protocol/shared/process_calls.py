"""ProcessCalls: the calls of all sessions on their way through one process: our ids for them, whose turn it is, and
those that were cancelled and may be answered all the same. No await, no clock."""

import msgspec

from app.protocol.jsonrpc import (
    ABSENT,
    Params,
    Request,
    dump_notification,
    dump_request,
    encode,
    readable_members_of,
)
from app.protocol.shared.fair_turns import FairTurns, Verdict
from app.protocol.shared.shared_call import Member, Out, SharedCall, ToProcess

MAX_RUNNING = 128  # calls of one process; above it only a session that has none running gets another
MAX_WAITING_BYTES = 4 << 20  # of one session's calls that wait for their turn
MAX_LATE = 256  # cancelled calls whose answer, should it come, still finds its session


class ProcessCalls:
    """What its methods return is to be carried out in order."""

    def __init__(self) -> None:
        self.turns: FairTurns[SharedCall] = FairTurns(MAX_RUNNING, MAX_WAITING_BYTES)
        self.running: dict[bytes, SharedCall] = {}  # what the process works on, by our id
        self.late: dict[bytes, SharedCall] = {}  # what was cancelled
        self._late_before: list[bytes] = []
        self._last_id = 0

    def next_id(self) -> bytes:
        """For a request to the process."""
        self._last_id += 1
        return b"%d" % self._last_id

    def make(self, member: Member, message: Request) -> SharedCall:
        """A session's request under our id and with our progress token; it is neither sent nor does it wait yet."""
        self._last_id += 1
        our_id = b"%d" % self._last_id
        params, token = message.params, None
        if params is not None and "_meta" in params:
            meta = readable_members_of(params["_meta"])
            if "progressToken" in meta:
                token = bytes(meta["progressToken"])
                meta["progressToken"] = msgspec.Raw(our_id)
                params = {**params, "_meta": msgspec.Raw(encode(meta))}
        line = dump_request(our_id, message.method, params)
        call = member.calls[message.id] = SharedCall(message.id, our_id, message.method, member, token, line)
        return call

    def offer(self, member: Member, call: SharedCall) -> list[Out] | None:
        """Sends it, or has it wait for its turn; None where too much of its session waits, and it is forgotten."""
        verdict = self.turns.offer(member, call, len(call.line))
        if verdict is Verdict.RUN:
            call.has_place = True
            return [self.write(call)]
        if verdict is Verdict.REFUSE:
            del member.calls[call.id]
            return None
        return []

    def _send(self, calls: list[SharedCall]) -> list[Out]:
        """The turn of these calls has come."""
        for call in calls:
            call.has_place = True
        return [self.write(call) for call in calls]

    def write(self, call: SharedCall) -> ToProcess:
        """Sends it, whether or not its turn has come."""
        self.running[call.our_id] = call
        line, call.line = call.line, b""
        return ToProcess(line, call)

    def abandon(self, call: SharedCall) -> list[Out]:
        """There will be no answer."""
        self.running.pop(call.our_id, None)
        return self.finish(call)

    def finish(self, call: SharedCall) -> list[Out]:
        """The call is over: its place is free for another."""
        member = call.member
        if member is None:
            return []
        member.calls.pop(call.id, None)
        return self._free(call, member)

    def _free(self, call: SharedCall, member: Member) -> list[Out]:
        if not call.has_place:
            return []
        call.has_place = False
        return self._send(self.turns.finish(member))

    def only(self) -> SharedCall | None:
        """The call to which everything belongs: the only one the process works on, so far as we know."""
        return next(iter(self.running.values())) if len(self.running) == 1 and not self.late else None

    # --- what nobody waits for any more

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
        """The session is over. Its place among those who take turns is given up by `leave`."""
        outs: list[Out] = []
        for call in member.calls.values():
            call.member = None
            call.has_place = False
            if call.our_id in self.running:
                outs.append(self._cancel(call, {}))
        member.calls.clear()
        return outs

    def leave(self, member: Member) -> list[Out]:
        """The places of a session that is over are free for others."""
        return self._send(self.turns.leave(member))

    def resume(self, member: Member) -> list[Out]:
        """A session that was paused takes its turns again."""
        return self._send(self.turns.resume(member))

    def _cancel(self, call: SharedCall, params: Params) -> ToProcess:
        self.late[call.our_id] = self.running.pop(call.our_id)
        if len(self.late) > MAX_LATE:
            self._forget_late(next(iter(self.late)))
        params = {**params, "requestId": msgspec.Raw(call.our_id)}
        return ToProcess(dump_notification("notifications/cancelled", params))

    def tick(self) -> None:
        """Gives up on the answers to calls that had been cancelled at the last tick."""
        for our_id in self._late_before:
            self._forget_late(our_id)
        self._late_before = list(self.late)

    def _forget_late(self, our_id: bytes) -> None:
        call = self.late.pop(our_id, None)
        if call is not None and call.member is not None:
            call.member.calls.pop(call.id, None)
