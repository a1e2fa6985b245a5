"""A tool whose schema, question, progress or result is made to break the page that draws it."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import NO_PLAYWRIGHT, Fleet
from tests.integration.gateway import ROOT
from tests.servers.puzzles import NAMES, SCHEMAS, SVG

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
pytestmark = pytest.mark.e2e
Sit = Callable[..., Any]
PUZZLES = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/puzzles.py")]
MOST_ELEMENTS = 20_000


@pytest.fixture(scope="session")  # as the fleet: a worker may get this module twice
def puzzles(fleet: Fleet) -> str:
    fleet.gateway.add_backend("acme", "puzzles", PUZZLES[0], PUZZLES[1:])
    return "/tenants/acme/backends/puzzles/try"


def opened(sit_down: Sit, path: str) -> tuple[Any, Any]:
    desk = sit_down("admin")
    desk.context.add_init_script("window.hit = 0")
    page = desk.open(path)
    expect(page.get_by_role("button", name="stream", exact=True)).to_be_visible()
    return desk, page


def chosen(page: Any, tool: str) -> Any:
    page.get_by_role("button", name=tool, exact=True).click()
    expect(page.locator("#work h2")).to_have_text(tool)
    return page.locator("#work")


def called(page: Any, tool: str) -> Any:
    chosen(page, tool).get_by_role("button", name="Call", exact=True).click()
    return page.locator("#outcome")


def test_every_schema_has_a_form_at_once_and_the_tool_can_be_called(sit_down: Sit, puzzles: str) -> None:
    _, page = opened(sit_down, puzzles)
    for tool in SCHEMAS:
        work = chosen(page, tool)
        assert page.evaluate("() => document.querySelectorAll('#work *').length") < MOST_ELEMENTS, tool
        work.get_by_label("Write the arguments as JSON").check()
        work.get_by_label("Arguments, as JSON").last.fill('{"a": "b"}')
        work.get_by_role("button", name="Call", exact=True).click()
        expect(page.locator("#outcome")).to_contain_text('{"a": "b"}')


def test_names_that_objects_have_anyway_are_members_like_others(sit_down: Sit, puzzles: str) -> None:
    _, page = opened(sit_down, puzzles)
    work = chosen(page, "names")
    for name in NAMES:
        work.get_by_label(f"{name} *", exact=True).fill(f"value of {name}")
    work.get_by_role("button", name="Call", exact=True).click()
    expect(page.locator("#outcome")).to_contain_text("Done")
    given = json.loads(page.locator("#outcome pre").first.inner_text())
    assert given == {name: f"value of {name}" for name in NAMES}


@pytest.mark.parametrize("tool", ["large", "stream"])
def test_an_answer_of_megabytes_is_shown(sit_down: Sit, puzzles: str, tool: str) -> None:
    _, page = opened(sit_down, puzzles)
    expect(called(page, tool)).to_contain_text("Done")
    assert page.evaluate("() => document.querySelector('#outcome').textContent.length") < 1_000_000
    chosen(page, "names")


def test_pictures_and_links_run_nothing(sit_down: Sit, puzzles: str) -> None:
    _, page = opened(sit_down, puzzles)
    outcome = called(page, "pictures")
    expect(outcome.get_by_alt_text("Image of the answer")).to_have_count(8)
    expect(outcome).to_contain_text("4 characters of base64")
    expect(outcome).to_contain_text(f"{len(SVG)} characters of base64")
    called(page, "links")
    expect(outcome).to_contain_text("javascript:")
    assert outcome.locator("a").count() == 0
    assert page.evaluate("() => window.hit") == 0


@pytest.mark.parametrize(("tool", "said"), [("progress", "it went on"), ("shapeless", "Done")])
def test_progress_and_results_of_other_types_break_no_call(sit_down: Sit, puzzles: str, tool: str, said: str) -> None:
    _, page = opened(sit_down, puzzles)
    expect(called(page, tool)).to_contain_text(said)


def test_a_crowd_of_questions_is_asked_one_by_one_and_not_without_end(sit_down: Sit, puzzles: str) -> None:
    _, page = opened(sit_down, puzzles)
    outcome = called(page, "crowd")
    expect(page.get_by_role("dialog")).to_have_count(1)
    for _ in range(30):
        if not page.locator("dialog").count():
            break
        page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    expect(outcome).to_contain_text("asked")
