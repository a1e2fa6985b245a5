"""SessionRecipes: each call of a step is admitted, and counted until it is over; at the end nothing is left."""

from collections.abc import Iterable
from typing import Any

from app.backends.connections._session_recipes import SessionRecipes
from app.errors import GatewayError, QuotaExceeded
from app.protocol.toolset.fan_out import FanOut
from app.protocol.toolset.greeting import About
from app.protocol.toolset.listing import ToolsetListing
from app.protocol.toolset.outs import Out, RunRecipe, ToMember, ToSession
from app.protocol.toolset.own import Own
from app.protocol.toolset.recipe_runs import RecipeRuns, Room
from app.telemetry.metrics import Metrics
from tests.protocol.recipes.dishes import recipe, step
from tests.protocol.toolset.offers import offer, shown, tool


class Gate:
    """A session that admits so many calls of steps at once."""

    def __init__(self, most: int) -> None:
        self.most, self.under_way = most, 0
        self.asked: list[bytes] = []

    def step_begins(self, call: bytes) -> None:
        self.asked.append(call)
        if self.under_way >= self.most:
            raise QuotaExceeded("in_flight", "too many")
        self.under_way += 1

    def step_ends(self) -> None:
        self.under_way -= 1

    def backend_failed(self, call: bytes, error: GatewayError) -> None: ...
    def backend_sent(self, line: bytes) -> None: ...
    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None: ...
    def backend_exited(self, exit: Any) -> None: ...


class Connection:
    """Carries out what is asked of a connection, but for what goes to members and to the session."""

    def __init__(self, most: int) -> None:
        self.made = recipe((step("a", "red_say"), step("b", "red_say")), deadline_s=100)
        listing = ToolsetListing([shown("red", offer("red", tools=[tool("say")]))], Own((), [self.made]))
        self.gate, self.metrics = Gate(most), Metrics("test")
        self.outs: list[Out] = []
        self.paused: list[bytes] = []
        fan_out = FanOut(About("all", "1"), listing)
        runs = RecipeRuns(fan_out, lambda: 0.0, Room())
        self.recipes = SessionRecipes("the toolset all of acme", runs, self.carry_out, self.metrics, self.paused.append)
        self.recipes.attach(self.gate)

    def carry_out(self, outs: Iterable[Out]) -> None:
        for out in outs:
            if isinstance(out, ToMember | ToSession):
                self.outs.append(out)
            else:
                self.recipes.carry_out(out)  # type: ignore[arg-type]

    def run(self) -> None:
        self.recipes.carry_out(RunRecipe(b"7", self.made, {}))

    def count(self, outcome: str) -> float:
        return self.metrics.registry.get_sample_value("trunkline_recipe_runs_total", {"outcome": outcome}) or 0.0


async def test_calls_are_admitted_one_by_one_and_counted_until_they_are_over(caplog) -> None:
    caplog.set_level("INFO")
    connection = Connection(2)
    connection.run()
    assert connection.gate.asked == [b"7", b"7"]
    assert connection.gate.under_way == 2
    connection.carry_out(connection.recipes.runs.failed(b'"recipe-1"', QuotaExceeded("x", "y")))
    assert connection.gate.under_way == 1
    connection.carry_out(connection.recipes.runs.failed(b'"recipe-2"', QuotaExceeded("x", "y")))
    assert connection.gate.under_way == 0
    assert connection.count("failed") == 1
    assert not connection.recipes._deadlines
    assert "The recipe cook of the toolset all of acme ended: failed; its steps: failed, failed" in caplog.text


async def test_a_call_that_is_refused_fails_its_step_and_is_not_sent() -> None:
    connection = Connection(1)
    connection.run()
    assert sum(isinstance(out, ToMember) for out in connection.outs) == 1
    assert connection.gate.under_way == 1
    connection.carry_out(connection.recipes.runs.expired(b"7"))
    assert connection.gate.under_way == 0


async def test_with_the_session_everything_ends_once() -> None:
    connection = Connection(5)
    connection.run()
    for _ in range(2):
        connection.recipes.end()
    assert connection.gate.under_way == 0
    assert connection.count("session_ended") == 1
    connection.run()
    assert len(connection.gate.asked) == 2
