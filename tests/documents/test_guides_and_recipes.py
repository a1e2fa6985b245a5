"""The recipe of docs/guides-and-recipes.md is one, and does what the page says."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.admin.schemas.recipes import RecipeBody
from app.protocol.recipes.checking import checking
from app.protocol.recipes.run import AskUser, CallTool, Next, Over, Run
from app.protocol.search.work import finished

PAGE = (Path(__file__).parents[2] / "docs/guides-and-recipes.md").read_text()
RECIPE = RecipeBody.model_validate_json(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0]).value(datetime.now(UTC))


def said(**structured: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({"content": [], "structuredContent": structured}))


def called(then: list[Next]) -> tuple[str, Any]:
    (call,) = then
    assert isinstance(call, CallTool)
    return call.step, json.loads(call.arguments)


def test_the_recipe_has_no_problem() -> None:
    assert finished(checking(RECIPE, lambda tool: {"type": "object"})) == []


@pytest.mark.parametrize(("total", "step"), [(50, "pay"), (80, "pay_much")])
def test_it_asks_where_much_is_paid_and_tells_the_customer(total: int, step: str) -> None:
    run = Run(RECIPE, {"order": "A-17", "reason": "arrived broken"})
    assert [each.step for each in run.begin(0.0) if isinstance(each, CallTool)] == ["order", "rules"]
    run.answered("order", said(total=total, customer={"mail": "ada@example.com"}), 0.0)
    then, reason = run.answered("rules", said(footer="Bye"), 0.0), "arrived broken"
    if step == "pay_much":
        (asked,) = then
        assert isinstance(asked, AskUser)
        assert asked.message == "Refund 80 for order A-17?"
        then, reason = run.user_said(step, "accept", {"note": "seen"}, 0.0), "arrived broken: seen"
    assert called(then) == (step, {"id": "A-17", "reason": reason})
    tell = called(run.answered(step, said(amount=total), 0.0))
    assert tell[1] == {"to": "ada@example.com", "subject": "Your refund", "lines": ["Order A-17", "Bye"]}
    (over,) = run.answered("tell", said(id="m1"), 0.0)
    assert isinstance(over, Over)
    assert over.result["structuredContent"] == {"paid": total, "mail": "m1"}


def test_a_failure_is_told_as_the_page_says() -> None:
    run = Run(RECIPE, {"order": "A-17", "reason": "x"})
    run.begin(0.0)
    run.answered("order", said(total=5, customer={}), 0.0)
    run.answered("rules", said(), 0.0)
    failed = msgspec.Raw(b'{"content": [{"type": "text", "text": "card expired"}], "isError": true}')
    (over,) = run.answered("pay", failed, 0.0)
    assert isinstance(over, Over)
    assert over.result["content"][0]["text"] in PAGE
