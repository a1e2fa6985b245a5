"""RecipeRuns: the recipes that run in one session. Their calls go through the session's FanOut, as if its client had
made them, under ids of ours; their questions go to the client."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from app.errors import ClientError, GatewayError, is_refusal
from app.protocol.eras.sessionless_envelope import takes_mode
from app.protocol.jsonrpc import (
    ABSENT,
    Notification,
    Params,
    Response,
    dump_notification,
    dump_request,
    encoded,
    members_of,
    object_in,
    parse_backend,
    result_response,
    string_of,
)
from app.protocol.recipes.run import AskUser, CallTool, GiveUp, Next, Outcome, Over, Pause, Run, text_of_error
from app.protocol.toolset.fan_out import FanOut
from app.protocol.toolset.outs import (
    INNER,
    InnerCall,
    InnerCallAnswered,
    InnerCallOver,
    Out,
    RunBegins,
    RunEnds,
    RunPauses,
    RunRecipe,
    ToSession,
)

MAX_RUNS = 8  # of one session at once
MAX_KEPT = 64 << 20  # bytes of results that all runs of a node keep, before they are read
TRACE = "trunkline/trace"  # in `_meta` of the result
_TRACE_CONTEXT = ("traceparent", "tracestate", "baggage")  # of `_meta`: each step gets the caller's (SEP-414)
MAX_CONTEXT = 8194  # bytes of each, with its quotes; a longer one is left out
_BUSY = f"a session runs at most {MAX_RUNS} recipes at once: wait for one of them"
_NO_ROOM = "this node has no room for the results of more recipes"
_NOBODY = "the user has to be asked before it, and this client cannot ask"


class Room:
    """What the runs of all sessions may keep of results, in bytes."""

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most, self._taken = most, 0

    def take(self, size: int) -> bool:
        """Whether there was so much room; it is taken until `give`."""
        if self._taken + size > self._most:
            return False
        self._taken += size
        return True

    def give(self, size: int) -> None:
        self._taken -= size


class _Running(msgspec.Struct, eq=False):
    """A run, the call of the session that it answers, and that call's progress token and context of a trace. `told`: of
    how many steps. `kept`: bytes of results."""

    asked: RunRecipe
    run: Run
    token: msgspec.Raw | None
    trace: Params
    told: int = 0
    kept: int = 0

    @property
    def id(self) -> bytes:
        return self.asked.id

    def keep(self, size: int, room: Room) -> bool:
        """Whether there is room for a result of this size."""
        if not room.take(size):
            return False
        self.kept += size
        return True

    def progress(self) -> int | None:
        """How many steps have an outcome, if the client wants to know and does not."""
        if self.token is None or len(self.run.trace) <= self.told:
            return None
        self.told = len(self.run.trace)
        return self.told


class _Asked(NamedTuple):
    """A step that waits for a member or, if it is a question, for the user."""

    running: _Running
    step: str
    is_question: bool = False


class RecipeRuns:
    """`clock` is in seconds. Carry out what it returns."""

    def __init__(self, fan_out: FanOut, clock: Callable[[], float], room: Room) -> None:
        self._fan_out, self._clock, self._room = fan_out, clock, room
        self._runs: dict[bytes, _Running] = {}  # by the call of the session
        self._steps: dict[bytes, _Asked] = {}  # by our id of a call or a question
        self._last_id = 0

    # --- from the session

    def from_session(self, line: bytes) -> list[Out] | None:
        """What a line of the session means for runs; None if it does not concern them."""
        if not self._runs:
            return None
        message = parse_backend(line)
        if type(message) is Response and message.id in self._steps:
            return self._user_answered(message)
        if type(message) is Notification and message.method == "notifications/cancelled":
            running = self._runs.get(bytes((message.params or {}).get("requestId", ABSENT)))
            return None if running is None else self._stop(running, "its caller has cancelled it", "cancelled")
        return None

    def start(self, asked: RunRecipe) -> list[Out]:
        """A recipe is called."""
        if len(self._runs) >= MAX_RUNS:
            return [ToSession(result_response(asked.id, _refusal(_BUSY)))]
        arguments = _plain(asked.params.get("arguments", msgspec.Raw(b"{}")))
        meta = object_in(asked.params, "_meta")
        trace = {name: meta[name] for name in _TRACE_CONTEXT if len(meta.get(name, b"")) in range(1, MAX_CONTEXT)}
        running = _Running(asked, Run(asked.recipe, arguments), meta.get("progressToken"), trace)
        self._runs[asked.id] = running
        begins = RunBegins(asked.id, asked.recipe.method.deadline_s)
        return [begins, *self._carry_out(running, running.run.begin(self._clock()))]

    def go_on(self, call: bytes) -> list[Out]:
        """Others had their turn."""
        running = self._runs.get(call)
        return [] if running is None else self._carry_out(running, running.run.go_on(self._clock()))

    def expired(self, call: bytes) -> list[Out]:
        """The deadline of this run has passed."""
        running = self._runs.get(call)
        if running is None:
            return []
        words = f"the recipe was not done within {running.run.recipe.method.deadline_s:g} s"
        return self._stop(running, words, "timeout")

    def _stop(self, running: _Running, words: str, outcome: Outcome) -> list[Out]:
        return self._carry_out(running, running.run.stop(words, outcome, self._clock()))

    def _user_answered(self, response: Response) -> list[Out]:
        running, step, _ = self._steps.pop(response.id)
        if response.member == "error":
            words = f"the user could not be asked: {text_of_error(response.value)[:300]}"
            return self._carry_out(running, running.run.failed(step, words, self._clock()))
        said = members_of(response.value)
        action, content = string_of(said.get("action")) or "cancel", _plain(said.get("content", msgspec.Raw(b"null")))
        return self._carry_out(running, running.run.user_said(step, action, content, self._clock()))

    # --- calls of members

    def call(self, inner: InnerCall) -> list[Out]:
        """The call of a step may be made now."""
        if inner.id not in self._steps:
            return []
        outs: list[Out] = []
        for out in self._fan_out.from_session(inner.line):
            if isinstance(out, ToSession):  # it goes to no member: the answer says why
                outs += self._answered(inner.id, _response_in(out.line), may_be_done=False)
            else:
                outs.append(out)
        return outs

    def answered(self, answered: InnerCallAnswered) -> list[Out]:
        """A member has answered the call of a step."""
        return self._answered(answered.id, answered.response, may_be_done=True)

    def _answered(self, inner: bytes, response: Response, *, may_be_done: bool) -> list[Out]:
        found = self._steps.pop(inner, None)
        if found is None:
            return []
        running, step, _ = found
        if response.member == "error":
            words = text_of_error(response.value)[:2000]
            then = running.run.failed(step, words, self._clock(), may_be_done=may_be_done)
        elif not running.keep(len(response.value), self._room):
            then = running.run.failed(step, _NO_ROOM, self._clock(), may_be_done=True)
        else:
            then = running.run.answered(step, response.value, self._clock())
        return [InnerCallOver(inner), *self._carry_out(running, then)]

    def failed(self, inner: bytes, error: GatewayError) -> list[Out]:
        """The call of a step has failed, or was refused."""
        found = self._steps.pop(inner, None)
        if found is None:
            return []
        running, step, _ = found
        may_be_done = not is_refusal(error) and not isinstance(error, ClientError)
        then = running.run.failed(step, str(error), self._clock(), may_be_done=may_be_done)
        return [InnerCallOver(inner), *self._carry_out(running, then)]

    def among(self, calls: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """The calls of the session for which a member works on these."""
        return tuple(dict.fromkeys(self.outer(each) for each in calls))

    def outer(self, call: bytes) -> bytes:
        """The call of the session that this belongs to."""
        found = self._steps.get(call)
        return call if found is None else found.running.id

    def end(self) -> None:
        """The session has ended."""
        for running in self._runs.values():
            self._room.give(running.kept)
        self._runs.clear()
        self._steps.clear()

    # --- what comes next

    def _carry_out(self, running: _Running, then: list[Next]) -> list[Out]:
        outs = self._progress(running)
        for each in then:
            if isinstance(each, CallTool):
                inner = self._our_id(_Asked(running, each.step))
                params: Params = {"name": encoded(each.tool), "arguments": msgspec.Raw(each.arguments)}
                if running.trace:
                    params["_meta"] = encoded(running.trace)
                outs.append(InnerCall(running.id, inner, dump_request(inner, "tools/call", params)))
            elif isinstance(each, AskUser):
                outs += self._ask(running, each)
            elif isinstance(each, Pause):
                outs.append(RunPauses(running.id))
            elif isinstance(each, GiveUp):
                outs += self._give_up(running, each.step)
            else:
                outs += self._over(running, each)
        return outs

    def _progress(self, running: _Running) -> list[Out]:
        progress = running.progress()
        if progress is None or running.token is None:
            return []
        last = running.run.trace[-1]
        params: Params = {
            "progressToken": running.token,
            "progress": encoded(progress),
            "total": encoded(sum(1 for _ in running.run.recipe.method.steps)),
            "message": encoded(f"{last.step}: {last.outcome}"),
        }
        return [ToSession(dump_notification("notifications/progress", params))]

    def _ask(self, running: _Running, asked: AskUser) -> list[Out]:
        if not _takes_forms(object_in(self._fan_out.hello, "capabilities")):
            return self._carry_out(running, running.run.failed(asked.step, _NOBODY, self._clock()))
        ours = self._our_id(_Asked(running, asked.step, is_question=True))
        params: Params = {"message": encoded(asked.message), "requestedSchema": encoded(asked.requested_schema)}
        return [ToSession(dump_request(ours, "elicitation/create", params), (running.id,))]

    def _give_up(self, running: _Running, step: str) -> list[Out]:
        """A call is cancelled, a question withdrawn."""
        outs: list[Out] = []
        for ours in [each for each, of in self._steps.items() if of.running is running and of.step == step]:
            line = dump_notification("notifications/cancelled", {"requestId": msgspec.Raw(ours)})
            if self._steps.pop(ours).is_question:
                outs.append(ToSession(line))
            else:
                outs += [*self._fan_out.from_session(line), InnerCallOver(ours)]
        return outs

    def _over(self, running: _Running, over: Over) -> list[Out]:
        del self._runs[running.id]
        self._room.give(running.kept)
        if over.outcome == "ok" and running.asked.succeeded is not None:
            running.asked.succeeded()
        trace = [msgspec.to_builtins(each) for each in running.run.trace]
        ends = RunEnds(
            running.id, running.run.recipe.name, over.outcome, tuple(each.outcome for each in running.run.trace)
        )
        if over.outcome == "cancelled":
            return [ends]  # nobody waits for the answer
        return [ToSession(result_response(running.id, {**over.result, "_meta": {TRACE: trace}})), ends]

    def _our_id(self, asked: _Asked) -> bytes:
        self._last_id += 1
        ours = b'%b%d"' % (INNER, self._last_id)
        self._steps[ours] = asked
        return ours


def _takes_forms(capabilities: Params) -> bool:
    """Whether a client with these can be asked for a form."""
    return "elicitation" in capabilities and takes_mode("form", members_of(capabilities["elicitation"]))


def _plain(value: msgspec.Raw) -> Any:
    """None if it cannot be read."""
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _refusal(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], "isError": True}


def _response_in(line: bytes) -> Response:
    response = parse_backend(line)
    assert isinstance(response, Response)
    return response
