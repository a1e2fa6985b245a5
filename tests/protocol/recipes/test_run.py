"""Run: which calls come next, and what is said at the end."""

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.resources.recipes import Recipe
from app.protocol.recipes import run as module
from app.protocol.recipes.run import AskUser, CallTool, GiveUp, Next, Over, Pause, Run
from tests.protocol.recipes.dishes import question, recipe, step


def result(text: str = "", **members: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps({"content": [{"type": "text", "text": text}], **members}).encode())


def begun(made: Recipe, **arguments: Any) -> tuple[Run, list[Next]]:
    run = Run(made, arguments)
    return run, run.begin(0.0)


def driven(run: Run, then: list[Next]) -> list[Next]:
    """What comes after its pauses."""
    while then and isinstance(then[-1], Pause):
        then = [*then[:-1], *run.go_on(0.0)]
    return then


def over(then: list[Next]) -> Over:
    (last,) = then
    assert isinstance(last, Over)
    return last


def words(then: list[Next]) -> str:
    return str(over(then).result["content"][0]["text"])


def test_a_step_sees_the_input_and_the_steps_before_it():
    made = recipe(
        step("a", arguments={"x": "input.n"}),
        (step("b", "left", arguments={"y": "steps.a.result.v"}), step("c", "right", arguments={"y": "steps.a.text"})),
        output={"b": "steps.b.result", "c": "steps.c.result[0]"},
    )
    run, then = begun(made, n=5)
    assert then == [CallTool("a", "say", b'{"x":5}')]
    then = run.answered("a", result("t", structuredContent={"v": [1]}), 1.0)
    assert then == [CallTool("b", "left", b'{"y":[1]}'), CallTool("c", "right", b'{"y":"t"}')]
    assert run.answered("c", result('["json"]'), 2.0) == []
    end = over(run.answered("b", result("plain"), 3.0))
    assert end.outcome == "ok"
    assert end.result["structuredContent"] == {"b": "plain", "c": "json"}
    assert [(each.step, each.ms) for each in run.trace] == [("a", 1000), ("c", 1000), ("b", 2000)]
    assert run.answered("b", result(), 4.0) == [] == run.stop("late", "timeout", 5.0)


@pytest.mark.parametrize(
    ("groups", "text", "structured"),
    [
        ([step("a")], "hi", {"result": "hi"}),
        ([(step("a"), step("b"))], '{"a":"hi","b":"hi"}', {"a": "hi", "b": "hi"}),
    ],
)
def test_without_an_output_it_is_the_result_of_the_last_group(groups, text, structured):
    run, then = begun(recipe(*groups))
    for each in then:
        assert isinstance(each, CallTool)
        last = run.answered(each.step, result("hi"), 0.0)
    assert over(last).result == {"content": [{"type": "text", "text": text}], "structuredContent": structured}


def test_a_step_whose_condition_is_not_met_is_skipped():
    made = recipe(step("a", condition="input.go"), step("b", arguments={"skipped": "steps.a.skipped"}))
    run, then = begun(made)
    assert then == [CallTool("b", "say", b'{"skipped":true}')]
    assert [(each.step, each.outcome) for each in run.trace] == [("a", "skipped")]
    assert begun(made, go=1)[1] == [CallTool("a", "say", b"{}")]


def test_all_steps_may_be_skipped():
    assert over(begun(recipe(step("a", condition="`false`")))[1]).result["structuredContent"] == {"result": None}


def test_a_failed_step_lets_those_that_run_end_and_begins_no_other():
    run, _ = begun(recipe(step("z"), (step("a"), step("b"), step("c", question=question())), step("d")))
    then = run.answered("z", result(), 0.0)
    assert [type(each) for each in then] == [CallTool, CallTool, AskUser]
    assert run.answered("a", result("bad day", isError=True), 0.0) == [GiveUp("c")]
    assert run.user_said("c", "accept", {}, 0.0) == []
    end = run.answered("b", result("fine"), 0.0)
    assert over(end).outcome == "failed"
    assert words(end) == (
        "the step a (say) failed: its tool answered: bad day\n"
        "Done: z, b. Begun, and not known to be done: a. Not done: c, d."
    )
    assert over(end).result["isError"] is True


@pytest.mark.parametrize(
    ("may_be_done", "account"), [(True, "Begun, and not known to be done: a. Not done: b."), (False, "Not done: a, b.")]
)
def test_what_was_refused_is_not_done_and_what_broke_off_may_be(may_be_done, account):
    run, _ = begun(recipe(step("a"), step("b")))
    assert words(run.failed("a", "no", 0.0, may_be_done=may_be_done)).endswith(f"Done: nothing. {account}")


@pytest.mark.parametrize(
    ("action", "members", "outcome", "goes_on"),
    [
        ("decline", {}, "declined", False),
        ("decline", {"if_declined": "skip"}, "declined", True),
        ("cancel", {}, "dismissed", False),
        ("cancel", {"if_cancelled": "skip"}, "dismissed", True),
        ("nonsense", {}, "dismissed", False),
    ],
)
def test_what_no_means(action, members, outcome, goes_on):
    made = recipe(step("a", question=question("join('', ['Sure, ', input.who])", **members)), step("b"))
    run, then = begun(made, who="Ada")
    assert then == [AskUser("a", "Sure, Ada", {"type": "object", "properties": {}})]
    then = run.user_said("a", action, None, 0.0)
    if goes_on:
        assert then == [CallTool("b", "say", b"{}")]
    else:
        assert over(then).outcome == outcome
        assert words(then).endswith("Not done: a, b.")
    assert [each.outcome for each in run.trace] == [outcome]


def test_the_answer_is_seen_by_its_own_step_and_later_ones():
    made = recipe(
        step("a", question=question(), arguments={"x": "steps.a.answer.n"}), step("b", condition="steps.a.answer.n")
    )
    run, _ = begun(made)
    assert run.user_said("a", "accept", {"n": 7}, 0.0) == [CallTool("a", "say", b'{"x":7}')]
    assert run.answered("a", result(), 0.0) == [CallTool("b", "say", b"{}")]


def test_a_question_that_nobody_can_be_asked_fails_its_step():
    run, _ = begun(recipe(step("a", question=question())))
    assert words(run.failed("a", "nobody", 0.0)) == "the step a (say) failed: nobody\nDone: nothing. Not done: a."


def test_at_the_deadline_calls_and_questions_are_given_up():
    run, _ = begun(recipe((step("a"), step("b", question=question()), step("c")), step("d")))
    run.answered("c", result(), 1.0)
    then = run.stop("too late", "timeout", 5.0)
    assert then[:2] == [GiveUp("a"), GiveUp("b")]
    assert words(then[2:]) == "too late\nDone: c. Begun, and not known to be done: a. Not done: b, d."
    assert [(each.step, each.outcome) for each in run.trace] == [("c", "ok"), ("a", "timeout")]


@pytest.mark.parametrize("where", ["condition", "arguments", "question"])
def test_an_expression_without_a_value_fails_its_step(where):
    bad: dict[str, Any] = {"condition": "abs('a')", "arguments": {"x": "abs('a')"}, "question": question("abs('a')")}
    _, then = begun(recipe(step("a", **{where: bad[where]}), step("b")))
    assert words(then).startswith("the step a (say) failed: `abs('a')` has no value")
    assert words(then).endswith("Not done: a, b.")


def test_after_an_expression_without_a_value_no_other_step_of_its_group_begins():
    _, then = begun(recipe((step("a", condition="abs('a')"), step("b")), step("c")))
    assert words(then).endswith("Not done: a, b, c.")


def test_all_expressions_of_a_run_together_have_a_limit():
    heavy = [step(f"s{number}", condition="input.many[?@ > `9`]") for number in range(32)]
    began = time.thread_time()
    then = driven(*begun(recipe(*heavy), many=list(range(9)) * 200))
    assert "the expressions do too much work" in words(then)
    assert time.thread_time() - began < 1.0  # some 40 ms
    assert isinstance(driven(*begun(recipe(*heavy[:2], step("end")), many=list(range(9)) * 200))[0], CallTool)


def test_an_expression_that_fails_after_the_answer_ends_the_run():
    run, _ = begun(recipe(step("a", question=question(), arguments={"x": "abs('a')"})))
    assert over(run.user_said("a", "accept", {}, 0.0)).outcome == "failed"


def test_an_output_without_a_value_says_that_all_is_done():
    run, _ = begun(recipe(step("a"), output="abs(steps.a.text)"))
    assert words(run.answered("a", result("x"), 0.0)).startswith("all steps are done, but there is no output: ")


def test_results_have_limits(monkeypatch):
    monkeypatch.setattr(module, "MAX_RESULT", 200)
    monkeypatch.setattr(module, "MAX_RESULTS", 300)
    run, _ = begun(recipe(step("a"), step("b")))
    assert "its result exceeds" in words(run.answered("a", result("x" * 200), 0.0))
    run, _ = begun(recipe(step("a"), step("b")))
    run.answered("a", result("x" * 150), 0.0)
    assert "of all steps together exceed" in words(run.answered("b", result("x" * 150), 0.0))
    run, _ = begun(recipe(step("a"), output="[steps.a.text, steps.a.text]"))
    assert "there is no output: it exceeds" in words(run.answered("a", result("x" * 120), 0.0))


@pytest.mark.parametrize(
    "broken", [b'{"content": [1, {"text": 2}]}', b"{}", b'{"content": 5}', b'{"content": [{"text": "{"}]}']
)
def test_odd_results_have_a_text_nevertheless(broken):
    run, _ = begun(recipe(step("a")))
    assert over(run.answered("a", msgspec.Raw(broken), 0.0)).outcome == "ok"


def test_a_result_within_results_without_end_is_an_error():
    run, _ = begun(recipe(step("a")))
    nested = b'{"structuredContent":' + b"[" * 5000 + b"]" * 5000 + b"}"
    assert "its result cannot be read" in words(run.answered("a", msgspec.Raw(nested), 0.0))


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "f": {"type": "number"}, "b": {"type": "boolean"}, "x": {"type": ["a"]}},
    "required": ["n"],
}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "the argument n is missing"),
        ({"n": "1"}, "the argument n is no integer"),
        ({"n": True}, "the argument n is no integer"),
        ({"n": 1, "b": 1}, "the argument b is no boolean"),
        ([], "the arguments are no object"),
        ({"n": 1, "f": 1, "b": True, "x": 5, "more": 1}, ""),
    ],
)
def test_arguments_that_cannot_be_meant_begin_nothing(arguments, expected):
    then = Run(recipe(step("a"), schema=SCHEMA), arguments).begin(0.0)
    if expected:
        assert words(then).startswith(expected)
    else:
        assert isinstance(then[0], CallTool)


@given(st.data())
def test_whatever_happens_each_step_begins_once_in_order_and_there_is_one_end(data):
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    groups = []
    for number, size in enumerate(sizes):
        asked = [data.draw(st.booleans()) for _ in range(size)]
        groups.append(
            tuple(
                step(
                    f"s{number}_{place}",
                    question=question() if asks else None,
                    condition=data.draw(st.sampled_from([None, "`false`"])),
                )
                for place, asks in enumerate(asked)
            )
        )
    run, then = begun(recipe(*groups))
    calling, asking, called, ends = set[str](), set[str](), list[str](), list[Over]()
    for _ in range(60):
        for each in then:
            if isinstance(each, CallTool):
                assert each.step not in called
                called.append(each.step)
                calling.add(each.step)
            elif isinstance(each, AskUser):
                asking.add(each.step)
            elif isinstance(each, GiveUp):
                calling.discard(each.step)
                asking.discard(each.step)
            elif isinstance(each, Over):
                ends.append(each)
        if not calling and not asking:
            break
        name = data.draw(st.sampled_from(sorted(calling | asking)))
        if name in calling:
            calling.discard(name)
            what = data.draw(st.sampled_from(["ok", "error", "failed"]))
            then = (
                run.failed(name, "x", 0.0)
                if what == "failed"
                else run.answered(name, result("", isError=what == "error"), 0.0)
            )
        else:
            asking.discard(name)
            then = run.user_said(name, data.draw(st.sampled_from(["accept", "decline", "cancel"])), {}, 0.0)
    assert len(ends) == 1
    assert [int(name[1:].split("_")[0]) for name in called] == sorted(int(name[1:].split("_")[0]) for name in called)
    assert len({each.step for each in run.trace}) == len(run.trace)
    if ends[0].outcome == "ok":
        assert {each.outcome for each in run.trace} <= {"ok", "skipped"}
        assert len(run.trace) == sum(sizes)
    assert ends[0].result.get("isError", False) is (ends[0].outcome != "ok")


def test_a_run_pauses_after_much_work_and_goes_on_where_it_was():
    grow = "[@,@]|[@,@][]" + "|[@,@][]" * 8 + "|`false`"
    run = Run(recipe(*(step(f"s{n}", condition=grow) for n in range(4)), step("last")), {})
    pauses, then = 0, run.begin(0.0)
    while isinstance(then[-1], Pause):
        pauses, then = pauses + 1, run.go_on(0.0)
    assert pauses > 1
    assert [each.step for each in then if isinstance(each, CallTool)] == ["last"]
    assert [ran.outcome for ran in run.trace] == ["skipped"] * 4


def test_a_run_that_was_stopped_in_its_pause_does_not_go_on():
    grow = "[@,@]|[@,@][]" + "|[@,@][]" * 8 + "|`false`"
    run = Run(recipe(*(step(f"s{n}", condition=grow) for n in range(9))), {})
    assert isinstance(run.begin(0.0)[-1], Pause)
    assert isinstance(run.stop("enough", "cancelled", 0.0)[-1], Over)
    assert run.go_on(0.0) == []
