"""RecipeRuns: what goes to members and to the session for a run, without processes."""

import json
from typing import Any

import pytest

from app.domain.resources.recipes import Recipe
from app.errors import BackendBusy, BackendExited, RateLimited
from app.protocol.commands import Dropped
from app.protocol.search.learned import Learned
from app.protocol.toolset.fan_out import FanOut
from app.protocol.toolset.greeting import About
from app.protocol.toolset.listing import ToolsetListing
from app.protocol.toolset.outs import (
    InnerCall,
    InnerCallAnswered,
    InnerCallOver,
    Out,
    RunBegins,
    RunEnds,
    RunRecipe,
    ToMember,
    ToSession,
)
from app.protocol.toolset.own import Own
from app.protocol.toolset.recipe_runs import MAX_RUNS, RecipeRuns, Room
from app.protocol.toolset.searching import NO_SEARCH, Search, Terms
from tests.protocol.recipes.dishes import question, recipe, step
from tests.protocol.toolset.offers import offer, shown, tool

SAY = "red_say"


class Rig:
    """A session over two members; `outs` are carried out as its link does, without permission and without processes."""

    def __init__(self, made: Recipe, search: Search = NO_SEARCH, **capabilities: Any) -> None:
        members = [shown(name, offer(name, tools=[tool("say"), tool("do")])) for name in ("red", "blue")]
        self.fan = FanOut(About("all", "1"), ToolsetListing(members, Own((), [made])), search)
        self.fan.from_session(self.line("initialize", 0, capabilities=capabilities))
        for member in (0, 1):
            list(self.fan.opened(member))
        self.now = 0.0
        self.room = Room(2000)
        self.runs = RecipeRuns(self.fan, lambda: self.now, self.room)
        self.to_session: list[Any] = []
        self.to_member: list[tuple[int, Any]] = []
        self.ended: list[tuple[str, tuple[str, ...]]] = []
        self.under_way: set[bytes] = set()

    @staticmethod
    def line(method: str, identifier: Any = None, **params: Any) -> bytes:
        number = {} if identifier is None else {"id": identifier}
        return json.dumps({"jsonrpc": "2.0", **number, "method": method, "params": params}).encode()

    def carry_out(self, outs: list[Out]) -> None:
        for out in outs:
            if isinstance(out, ToSession):
                self.to_session.append(json.loads(out.line))
            elif isinstance(out, ToMember):
                self.to_member.append((out.member, json.loads(out.line)))
            elif isinstance(out, RunRecipe):
                self.carry_out(self.runs.start(out))
            elif isinstance(out, InnerCall):
                self.under_way.add(out.id)
                self.carry_out(self.runs.call(out))
            elif isinstance(out, InnerCallAnswered):
                self.carry_out(self.runs.answered(out))
            elif isinstance(out, InnerCallOver):
                self.under_way.discard(out.id)
            elif isinstance(out, RunEnds):
                self.ended.append((out.outcome, out.steps))
            else:
                assert isinstance(out, RunBegins | Dropped)

    def send(self, line: bytes) -> None:
        outs = self.runs.from_session(line)
        self.carry_out(self.fan.from_session(line) if outs is None else outs)

    def call(self, identifier: Any = 7, **meta: Any) -> None:
        self.send(self.line("tools/call", identifier, name="cook", arguments={}, **({"_meta": meta} if meta else {})))

    def answer(self, member: int, identifier: str, text: str = "", **more: Any) -> None:
        result = {"content": [{"type": "text", "text": text}], **more}
        self.carry_out(
            self.fan.from_member(member, json.dumps({"jsonrpc": "2.0", "id": identifier, "result": result}).encode())
        )

    def result(self) -> Any:
        return self.to_session[-1]["result"]

    def words(self) -> str:
        return str(self.result()["content"][0]["text"])


def test_each_step_has_the_callers_context_of_a_trace_and_nothing_else_of_its_meta():
    rig = Rig(recipe(step("a", SAY), step("b", "blue_do")))
    context = {"traceparent": "00-a", "tracestate": "b=1", "baggage": "c=2"}
    rig.call(progressToken="p", other=1, **context)
    assert rig.to_member[-1][1]["params"] == {"name": "say", "arguments": {}, "_meta": context}
    rig.answer(0, "recipe-1", "done")
    assert rig.to_member[-1][1]["params"]["_meta"] == context


def test_a_context_that_is_too_long_is_left_out():
    rig = Rig(recipe(step("a", SAY)))
    rig.call(baggage="x" * 8193, tracestate="")
    assert rig.to_member[-1][1]["params"] == {"name": "say", "arguments": {}, "_meta": {"tracestate": ""}}


def test_calls_of_steps_have_ids_of_ours_and_the_members_names():
    rig = Rig(recipe(step("a", SAY, arguments={"x": "'y'"}), step("b", "blue_do")))
    rig.call()
    member, sent = rig.to_member[-1]
    assert (member, sent["id"], sent["params"]) == (0, "recipe-1", {"name": "say", "arguments": {"x": "y"}})
    rig.answer(1, "recipe-1")  # not the one that was asked
    assert len(rig.to_member) == 1
    rig.answer(0, "recipe-1", "done")
    assert rig.to_member[-1][1]["id"] == "recipe-2"
    rig.answer(1, "recipe-2", "all done")
    assert rig.to_session[-1]["id"] == 7
    assert rig.words() == "all done"
    trace = rig.result()["_meta"]["trunkline/trace"]
    assert trace[0] == {"step": "a", "tool": SAY, "outcome": "ok", "ms": 0}
    assert rig.ended == [("ok", ("ok", "ok"))]
    assert not rig.under_way


def test_a_tool_that_is_gone_or_a_recipe_fails_its_step_without_a_call():
    for missing in ("red_gone", "cook", "find_tools"):
        rig = Rig(recipe(step("a", missing)))
        rig.call()
        assert f"Unknown tool: {missing}" in rig.words()
        assert rig.words().endswith("Not done: a.")
        assert not rig.to_member
        assert not rig.under_way


def test_a_session_cannot_answer_for_a_member_nor_a_member_for_the_user():
    rig = Rig(recipe(step("a", SAY, question=question()), step("b", SAY)), elicitation={})
    rig.call()
    ours = rig.to_session[-1]["id"]
    rig.answer(0, ours, "fake")
    assert len(rig.to_session) == 1
    rig.send(json.dumps({"jsonrpc": "2.0", "id": ours, "result": {"action": "accept", "content": {}}}).encode())
    inner = rig.to_member[-1][1]["id"]
    rig.answer(0, inner)
    rig.send(json.dumps({"jsonrpc": "2.0", "id": rig.to_member[-1][1]["id"], "result": {"action": "accept"}}).encode())
    assert rig.ended == [] or rig.ended[0][0] != "ok"


@pytest.mark.parametrize(
    ("error", "account"),
    [
        (BackendExited(), "Begun, and not known to be done: a. Not done: b."),
        (BackendBusy("no"), "Done: nothing. Not done: a, b."),
        (RateLimited("requests_per_second", "too fast"), "Done: nothing. Not done: a, b."),
    ],
)
def test_a_call_that_fails_fails_its_step(error, account):
    rig = Rig(recipe(step("a", SAY), step("b", SAY)))
    rig.call()
    rig.carry_out(rig.runs.failed(b'"recipe-1"', error))
    assert rig.words().endswith(account)
    assert not rig.under_way
    assert rig.runs.failed(b'"recipe-1"', error) == []


def test_a_client_that_cannot_be_asked_is_not():
    rig = Rig(recipe(step("a", SAY, question=question())))
    rig.call()
    assert "this client cannot ask" in rig.words()
    assert len(rig.to_session) == 1


def test_a_client_that_refuses_the_question_fails_the_step():
    rig = Rig(recipe(step("a", SAY, question=question())), elicitation={})
    rig.call()
    ours = rig.to_session[-1]["id"]
    rig.send(json.dumps({"jsonrpc": "2.0", "id": ours, "error": {"code": -1, "message": "not now"}}).encode())
    assert "the user could not be asked: not now" in rig.words()


def test_a_cancelled_run_cancels_its_calls_withdraws_its_questions_and_says_nothing():
    rig = Rig(recipe((step("a", SAY), step("b", SAY, question=question()))), elicitation={})
    rig.call()
    rig.send(rig.line("notifications/cancelled", requestId=7))
    assert rig.to_member[-1][1]["params"] == {"requestId": "recipe-1"}
    assert rig.to_session[-1]["params"] == {"requestId": "recipe-2"}
    assert rig.ended == [("cancelled", ("cancelled",))]
    assert not rig.under_way
    rig.answer(0, "recipe-1", "late")
    assert len(rig.to_session) == 2


def test_the_deadline_ends_a_run_once():
    rig = Rig(recipe(step("a", SAY), deadline_s=3))
    rig.call()
    rig.carry_out(rig.runs.expired(b"7"))
    assert rig.words().startswith("the recipe was not done within 3 s")
    assert rig.runs.expired(b"7") == []
    rig.call()
    rig.answer(0, "recipe-2", "again")
    assert rig.words() == "again"


def test_progress_is_told_where_somebody_wants_to_know():
    rig = Rig(recipe((step("a", SAY), step("b", "blue_say")), step("c", SAY, condition="`false`")))
    rig.call(progressToken="7")
    rig.answer(1, "recipe-2")
    rig.answer(0, "recipe-1")
    told = [each["params"] for each in rig.to_session if each.get("method") == "notifications/progress"]
    assert [(each["progress"], each["total"], each["message"]) for each in told] == [
        (1, 3, "b: ok"),
        (3, 3, "c: skipped"),
    ]


def test_questions_of_members_belong_to_the_call_of_the_session():
    rig = Rig(recipe((step("a", SAY), step("b", "blue_say"))))
    rig.call()
    (out,) = rig.fan.from_member(0, rig.line("roots/list", 1))
    assert isinstance(out, ToSession)
    assert out.among == (b'"recipe-1"',)
    assert rig.runs.among((b'"recipe-1"', b'"recipe-2"', b"9")) == (b"7", b"9")
    assert rig.runs.outer(b'"recipe-2"') == b"7"


def test_runs_of_a_session_have_a_limit():
    rig = Rig(recipe(step("a", SAY)))
    for number in range(MAX_RUNS + 1):
        rig.call(number)
    assert "at most 8 recipes at once" in rig.words()
    assert rig.to_session[-1]["id"] == MAX_RUNS
    assert len(rig.to_member) == MAX_RUNS
    rig.answer(0, "recipe-1")
    rig.call(99)
    assert len(rig.to_member) == MAX_RUNS + 1


def test_arguments_that_are_no_json_begin_nothing():
    rig = Rig(recipe(step("a", SAY)))
    rig.send(b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"cook","arguments":5}}')
    assert rig.words().startswith("the arguments are no object")


def test_a_client_that_only_opens_urls_is_not_asked_for_a_form():
    rig = Rig(recipe(step("a", SAY, question=question())), elicitation={"url": {}})
    rig.call()
    assert "this client cannot ask" in rig.words()
    rig = Rig(recipe(step("a", SAY, question=question())), elicitation={"form": {}, "url": {}})
    rig.call()
    assert rig.to_session[-1]["method"] == "elicitation/create"


def test_what_all_runs_keep_has_a_limit_and_is_given_back():
    rig = Rig(recipe(step("a", SAY), step("b", SAY)))
    rig.call(1)
    rig.call(2)
    rig.answer(0, "recipe-1", "x" * 1200)
    rig.answer(0, "recipe-2", "x" * 1200)
    assert rig.to_session[-1]["id"] == 2
    assert "no room for the results of more recipes" in rig.words()
    rig.answer(0, "recipe-3")
    assert rig.words() == ""
    rig.call(3)
    rig.answer(0, "recipe-4", "x" * 1200)
    rig.runs.end()
    assert rig.room.take(2000)


def test_a_recipe_that_was_found_and_has_succeeded_is_learned():
    learned = Learned()
    rig = Rig(recipe(step("a", SAY)), Search("search", Terms((), learned, lambda: 0.0)))
    for number, fails in ((1, True), (2, False)):
        rig.send(rig.line("tools/call", 0, name="find_tools", arguments={"query": "zebra soup"}))
        rig.send(rig.line("tools/call", number, name="call_tool", arguments={"name": "cook", "arguments": {}}))
        assert learned.evidence("zebra soup", 0.0) == {}
        rig.answer(0, f"recipe-{number}", isError=fails)
    assert set(learned.evidence("zebra soup", 0.0)) == {"cook"}
