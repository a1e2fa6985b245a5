"""SessionRecipes: what the recipes of a session need besides the calls of members: permission, deadlines, counters."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from app.backends.connections.source import StepGate
from app.errors import GatewayError
from app.processes.connection import CallListener
from app.protocol.toolset.outs import (
    InnerCall,
    InnerCallAnswered,
    InnerCallOver,
    OfRecipes,
    Out,
    RunBegins,
    RunEnds,
    RunPauses,
    RunRecipe,
)
from app.protocol.toolset.recipe_runs import RecipeRuns
from app.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


class SessionRecipes:
    """Of one connection; `carry_out_all` is the connection's, `where` its toolset in words. Each call of a step is
    counted by the session's gate, like a call of the client, until it is over."""

    def __init__(
        self,
        where: str,
        runs: RecipeRuns,
        carry_out_all: Callable[[Iterable[Out]], None],
        metrics: Metrics,
        pause: Callable[[bytes], None],
    ) -> None:
        """`pause`: this run, by the call of the session, goes on when others had their turn."""
        self.runs = runs
        self._where, self._carry_out_all, self._metrics, self._pause = where, carry_out_all, metrics, pause
        self._gate: StepGate | None = None
        self._has_ended = False
        self._admitted: set[bytes] = set()  # calls of steps
        self._deadlines: dict[bytes, asyncio.TimerHandle] = {}  # of runs, by the call of the session

    def attach(self, listener: CallListener) -> None:
        """The session: its gate admits calls."""
        self._gate = listener if isinstance(listener, StepGate) else None

    def carry_out(self, out: OfRecipes) -> None:
        """Does what has to be done for a run; nothing once the session has ended."""
        if self._has_ended:
            return
        match out:
            case RunRecipe():
                self._carry_out_all(self.runs.start(out))
            case InnerCall():
                self._call(out)
            case InnerCallAnswered():
                self._carry_out_all(self.runs.answered(out))
            case InnerCallOver():
                self._over(out.id)
            case RunBegins():
                later = asyncio.get_running_loop().call_later(out.deadline_s, self._expired, out.call)
                self._deadlines[out.call] = later
            case RunPauses():
                self._pause(out.call)
            case RunEnds():
                self._ended(out)

    def end(self) -> None:
        """The session has ended, and with it whatever runs. Idempotent."""
        for deadline in self._deadlines.values():
            deadline.cancel()
            self._metrics.recipe_runs.labels("session_ended").inc()
        self._deadlines.clear()
        self._has_ended = True
        self.runs.end()
        for inner in list(self._admitted):
            self._over(inner)
        self._gate = None

    def _call(self, inner: InnerCall) -> None:
        try:
            if self._gate is not None:
                self._gate.step_begins(inner.call)
                self._admitted.add(inner.id)
        except GatewayError as error:
            self._carry_out_all(self.runs.failed(inner.id, error))
        else:
            self._carry_out_all(self.runs.call(inner))

    def _over(self, inner: bytes) -> None:
        if inner in self._admitted and self._gate is not None:
            self._admitted.discard(inner)
            self._gate.step_ends()

    def _expired(self, call: bytes) -> None:
        self._carry_out_all(self.runs.expired(call))

    def _ended(self, ended: RunEnds) -> None:
        deadline = self._deadlines.pop(ended.call, None)
        if deadline is not None:
            deadline.cancel()
        self._metrics.recipe_runs.labels(ended.outcome).inc()
        for outcome in ended.steps:
            self._metrics.recipe_steps.labels(outcome).inc()
        if ended.outcome != "ok":
            steps = ", ".join(ended.steps) or "none has an outcome"
            log.info("The recipe %s of %s ended: %s; its steps: %s", ended.recipe, self._where, ended.outcome, steps)
