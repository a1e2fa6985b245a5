"""Run: one run of a recipe. Pass it what has happened; it says what comes next."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from app.domain.resources.recipes import Recipe, Step
from app.protocol.jsonrpc import members_of, string_of
from app.protocol.recipes.expressions import (
    FUEL,
    FUEL_OF_PIECE,
    FUEL_OF_RUN,
    BadExpression,
    Fuel,
    filled,
    is_true,
    value_of,
)

MAX_RESULT = 1 << 20  # bytes of one step's result
MAX_RESULTS = 4 << 20  # of all that a run keeps
MAX_MESSAGE = 2000  # characters of a question

Outcome = Literal["ok", "failed", "skipped", "declined", "dismissed", "cancelled", "timeout"]
_decode = msgspec.json.decode


class CallTool(msgspec.Struct, frozen=True):
    """Call a tool, with these arguments."""

    step: str
    tool: str
    arguments: bytes


class AskUser(msgspec.Struct, frozen=True):
    """Ask the user for this form."""

    step: str
    message: str
    requested_schema: dict[str, Any]


class GiveUp(msgspec.Struct, frozen=True):
    """The call, or the question, of this step is not wanted any more."""

    step: str


class Over(msgspec.Struct, frozen=True):
    """The run is over; `result` is that of `tools/call`."""

    result: dict[str, Any]
    outcome: Outcome


class Pause(msgspec.Struct, frozen=True):
    """Much work was done: call `go_on` when others had their turn. Nothing else of this run happens until then, unless
    it is stopped."""


Next = CallTool | AskUser | GiveUp | Pause | Over


class Ran(msgspec.Struct, frozen=True):
    """What became of a step."""

    step: str
    tool: str
    outcome: Outcome
    ms: int


class Run:
    """Steps of a group begin at once. After one that fails no other begins; those that run are waited for, since what
    they do is done. Times are in seconds."""

    def __init__(self, recipe: Recipe, arguments: Any) -> None:
        self.recipe = recipe
        self.trace: list[Ran] = []
        self._scope: dict[str, Any] = {"input": arguments, "steps": {}}
        self._fuel = Fuel(FUEL_OF_RUN)
        self._rested_at = self._fuel.left
        self._group = 0
        self._asking: dict[str, Step] = {}
        self._calling: dict[str, Step] = {}
        self._began: dict[str, float] = {}
        self._tried: list[str] = []  # steps that have failed and may be done, in whole or in part
        self._kept = 0  # bytes of results
        self._why = ""  # it has failed
        self._outcome: Outcome = "ok"
        self._is_over = False

    def begin(self, now: float) -> list[Next]:
        """The first steps; or the end, if the arguments cannot be meant."""
        why = _misfit(self._scope["input"], self.recipe.input_schema)
        if why is not None:
            self._fail(why, "failed")
            return self._end()
        return self._begin_group(now)

    def answered(self, step_id: str, result: msgspec.Raw, now: float) -> list[Next]:
        """The result of a tool."""
        step = self._calling.pop(step_id, None)
        if step is None:
            return []
        try:
            value, text, is_error = _read(result)
        except ValueError as error:
            self._tried.append(step.id)
            return self._failed(step, str(error), now)
        if is_error:
            self._tried.append(step.id)
            return self._failed(step, f"its tool answered: {text[:MAX_MESSAGE] or 'that it has failed'}", now)
        self._kept += len(result)
        if self._kept > MAX_RESULTS:
            self._tried.append(step.id)
            return self._failed(step, f"the results of all steps together exceed {MAX_RESULTS >> 20} MiB", now)
        self._see(step, result=value, text=text)
        self._note(step, "ok", now)
        return self._go_on(now)

    def failed(self, step_id: str, words: str, now: float, *, may_be_done: bool = False) -> list[Next]:
        """The call, or the question, could not be made; or an error was the answer, and it `may_be_done`
        nevertheless."""
        step = self._calling.pop(step_id, None) or self._asking.pop(step_id, None)
        if step is None:
            return []
        if may_be_done:
            self._tried.append(step.id)
        return self._failed(step, words, now)

    def user_said(self, step_id: str, action: str, content: Any, now: float) -> list[Next]:
        """The user has answered: `accept` with the content of the form, `decline` or `cancel`."""
        step = self._asking.pop(step_id, None)
        if step is None or step.question is None:
            return []
        if action == "accept":
            self._see(step, answer=content)
            return [*self._call(step, now), *([] if self._calling or self._asking else self._go_on(now))]
        outcome: Outcome = "declined" if action == "decline" else "dismissed"
        otherwise = step.question.if_declined if action == "decline" else step.question.if_cancelled
        self._note(step, outcome, now)
        if otherwise == "stop":
            verb = "declined" if action == "decline" else "dismissed the question"
            self._fail(f"the user {verb} before the step {step.id}", outcome)
            return [*self._withdraw(now), *self._go_on(now)]
        self._see(step, skipped=True)
        return self._go_on(now)

    def go_on(self, now: float) -> list[Next]:
        """After a Pause."""
        if self._is_over:
            return []
        self._rested_at = self._fuel.left
        return self._next_group(now)

    def stop(self, words: str, outcome: Outcome, now: float) -> list[Next]:
        """The run ends now, whatever runs: past its deadline, or its caller does not want it any more."""
        if self._is_over:
            return []
        self._fail(words, outcome)
        for step in self._calling.values():
            self._tried.append(step.id)
            self._note(step, outcome, now)
        given_up: list[Next] = [GiveUp(step_id) for step_id in [*self._calling, *self._asking]]
        self._calling.clear()
        self._asking.clear()
        return [*given_up, *self._end()]

    # --- what comes next

    def _begin_group(self, now: float) -> list[Next]:
        started: list[Next] = []
        for step in self.recipe.method.groups[self._group]:
            if not self._why:
                started += self._begin_step(step, now)
        return [*started, *([] if self._calling or self._asking else self._go_on(now))]

    def _begin_step(self, step: Step, now: float) -> list[Next]:
        self._began[step.id] = now
        try:
            fuel = Fuel(FUEL, self._fuel)
            if step.condition is not None and not is_true(value_of(step.condition, self._scope, fuel)):
                self._see(step, skipped=True)
                self._note(step, "skipped", now)
                return []
            if step.question is not None:
                message = value_of(step.question.message, self._scope, fuel)
                self._asking[step.id] = step
                words = message if isinstance(message, str) else msgspec.json.encode(message).decode()
                return [AskUser(step.id, words[:MAX_MESSAGE], step.question.requested_schema)]
        except BadExpression as error:
            return self._fail_step(step, str(error), now)
        return self._call(step, now)

    def _call(self, step: Step, now: float) -> list[Next]:
        try:
            arguments = msgspec.json.encode(filled(step.arguments, self._scope, Fuel(FUEL, self._fuel)))
        except BadExpression as error:
            return self._fail_step(step, str(error), now)
        self._calling[step.id] = step
        return [CallTool(step.id, step.tool, arguments)]

    def _failed(self, step: Step, words: str, now: float) -> list[Next]:
        return [*self._fail_step(step, words, now), *self._go_on(now)]

    def _fail_step(self, step: Step, words: str, now: float) -> list[Next]:
        self._note(step, "failed", now)
        self._fail(f"the step {step.id} ({step.tool}) failed: {words}", "failed")
        return self._withdraw(now)

    def _withdraw(self, now: float) -> list[Next]:
        """Nobody needs to answer any more."""
        asked, self._asking = list(self._asking.values()), {}
        return [GiveUp(step.id) for step in asked]

    def _go_on(self, now: float) -> list[Next]:
        if self._calling or self._asking or self._is_over:
            return []
        self._group += 1
        if self._rested_at - self._fuel.left >= FUEL_OF_PIECE:
            return [Pause()]
        return self._next_group(now)

    def _next_group(self, now: float) -> list[Next]:
        if self._why or self._group >= len(self.recipe.method.groups):
            return self._end()
        return self._begin_group(now)

    def _fail(self, why: str, outcome: Outcome) -> None:
        if not self._why:
            self._why, self._outcome = why, outcome

    def _see(self, step: Step, **members: Any) -> None:
        """Later steps see this of it."""
        empty = {"result": None, "text": "", "answer": None, "skipped": False}
        self._scope["steps"][step.id] = {**self._scope["steps"].get(step.id, empty), **members}

    def _note(self, step: Step, outcome: Outcome, now: float) -> None:
        self.trace.append(Ran(step.id, step.tool, outcome, round((now - self._began.get(step.id, now)) * 1000)))

    # --- the end

    def _end(self) -> list[Next]:
        self._is_over = True
        if not self._why:
            try:
                return [Over(_success(self._output()), "ok")]
            except BadExpression as error:
                self._fail(f"all steps are done, but there is no output: {error}", "failed")
        return [Over(_failure(f"{self._why}\n{self._account()}"), self._outcome)]

    def _output(self) -> Any:
        """Without `output` the results of the last group."""
        method, steps = self.recipe.method, self._scope["steps"]
        if method.output is not None:
            made = filled(method.output, self._scope, Fuel(FUEL, self._fuel))
            if len(msgspec.json.encode(made)) > MAX_RESULT:
                raise BadExpression(f"it exceeds {MAX_RESULT >> 20} MiB")
            return made
        last = {step.id: steps[step.id]["result"] for step in method.groups[-1]}
        return next(iter(last.values())) if len(last) == 1 else last

    def _account(self) -> str:
        """What was done, and what was not."""
        outcomes = {ran.step: ran.outcome for ran in self.trace}
        every = [step.id for step in self.recipe.method.steps]
        done = [each for each in every if outcomes.get(each) == "ok"]
        begun = f" Begun, and not known to be done: {_listed(self._tried)}." if self._tried else ""
        left = [each for each in every if each not in done and each not in self._tried]
        return f"Done: {_listed(done)}.{begun} Not done: {_listed(left)}."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def _success(value: Any) -> dict[str, Any]:
    structured = value if isinstance(value, dict) else {"result": value}
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured}


def _failure(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], "isError": True}


def _read(result: msgspec.Raw) -> tuple[Any, str, bool]:
    """Value, text, and whether it is an error. The value is the structured content; without it the text, read as JSON
    if it is an object or an array. Raises ValueError: it cannot be used."""
    if len(result) > MAX_RESULT:
        raise ValueError(f"its result exceeds {MAX_RESULT >> 20} MiB")
    members = members_of(result)
    try:
        content = _decode(members.get("content", b"[]"))
        structured = _decode(members.get("structuredContent", b"null"))
        is_error = _decode(members.get("isError", b"false")) is True
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("its result cannot be read") from None
    texts = [each.get("text") for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    text = "\n".join(each for each in texts if isinstance(each, str))
    if structured is None:
        structured = text
        if text[:1] in ("{", "["):
            try:
                structured = _decode(text)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                structured = text
    return structured, text, is_error


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "number": (int, float), "integer": (int,), "boolean": (bool,), "array": (list,),
    "object": (dict,),
}  # fmt: skip


def _misfit(arguments: Any, schema: dict[str, Any]) -> str | None:
    """Why the arguments cannot be meant: one is missing, or has another type. Its tools check the rest."""
    if not isinstance(arguments, dict):
        return "the arguments are no object"
    properties, required = schema.get("properties"), schema.get("required")
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str) and name not in arguments:
            return f"the argument {name[:100]} is missing"
    for name, value in arguments.items():
        described = properties.get(name) if isinstance(properties, dict) else None
        wanted = described.get("type") if isinstance(described, dict) else None
        types = _TYPES.get(wanted) if isinstance(wanted, str) else None
        if types and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
            return f"the argument {name[:100]} is no {wanted}"
    return None


def text_of_error(error: msgspec.Raw) -> str:
    """The message of a JSON-RPC error."""
    return string_of(members_of(error).get("message")) or "an error without a message"
