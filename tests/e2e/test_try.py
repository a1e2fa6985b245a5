"""Trying tools in the browser, with a server that asks, tells, paints and attacks."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import NO_PLAYWRIGHT, Fleet
from tests.integration.gateway import ROOT

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
pytestmark = pytest.mark.e2e
Sit = Callable[..., Any]
SHOWCASE = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/showcase.py")]
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def showcase(fleet: Fleet) -> str:
    fleet.gateway.add_backend("acme", "showcase", SHOWCASE[0], SHOWCASE[1:])
    return "/tenants/acme/backends/showcase/try"


def tried(page: Any, tool: str, verb: str = "Call") -> Any:
    """Chooses something, and does it; returns what is shown of the answer."""
    page.get_by_role("button", name=tool, exact=True).click()
    page.get_by_role("button", name=verb, exact=True).click()
    return page.locator("#outcome")


def test_a_form_for_every_kind_of_argument(sit_down: Sit, showcase: str) -> None:
    desk = sit_down("admin")
    page = desk.open(showcase + "?tool=every_kind")
    work = page.locator("#work")
    work.get_by_label("text *").fill("x")
    work.get_by_role("button", name="Call").click()
    expect(work.get_by_role("alert")).to_contain_text("at least 2 characters")
    work.get_by_label("text *").fill("hé <b>")
    work.get_by_label("whole").fill("10")
    work.get_by_role("button", name="Call").click()
    expect(work.get_by_role("alert")).to_contain_text("whole")
    work.get_by_label("whole").fill("7")
    work.get_by_label("colour *").select_option(label="Green")
    work.get_by_label("flag").select_option(label="false")
    work.get_by_label("city *").fill("Bern")
    work.get_by_role("button", name="Add to tags").click()
    work.get_by_label("tags 1 *").fill("one")
    work.get_by_label("maybe").fill("1.5")
    work.get_by_label("anything").fill('{"a": [1]}')
    work.get_by_role("button", name="Call").click()
    outcome = page.locator("#outcome")
    expect(outcome).to_contain_text("Done")
    given = json.loads(outcome.locator("pre").first.inner_text())
    assert given == {
        "text": "hé <b>", "whole": 7, "flag": False, "colour": "g", "place": {"city": "Bern"}, "tags": ["one"],
        "maybe": 1.5, "anything": {"a": [1]},
    }  # fmt: skip
    work.get_by_label("Write the arguments as JSON").check()
    expect(work.get_by_label("Arguments, as JSON")).to_have_value(json.dumps(given, indent=2, ensure_ascii=False))
    work.get_by_label("Arguments, as JSON").fill('{"text": "by hand"}')
    work.get_by_role("button", name="Call").click()
    expect(outcome).to_contain_text("by hand")
    assert desk.findings() == []


def test_a_question_of_the_server_is_answered_or_declined(sit_down: Sit, showcase: str) -> None:
    page = sit_down("admin").open(showcase)
    outcome = tried(page, "ask")
    asks = page.get_by_role("dialog")
    expect(asks).to_contain_text("Who? <img src=x")
    asks.get_by_role("button", name="Answer").click()
    asks.get_by_label("name *").fill("Ada")
    asks.get_by_role("button", name="Answer").click()
    expect(outcome).to_contain_text('{"action": "accept", "content": {"name": "Ada"}}')
    tried(page, "ask")
    asks.get_by_role("button", name="Decline").click()
    expect(outcome).to_contain_text('{"action": "decline"}')
    tried(page, "ask")
    expect(asks).to_be_visible()
    page.keyboard.press("Escape")
    expect(outcome).to_contain_text('{"action": "cancel"}')
    tried(page, "think")
    asks.get_by_label("What the model would say").fill("I am one")
    asks.get_by_role("button", name="Answer").click()
    expect(outcome).to_contain_text("I am one")


def test_progress_logs_pictures_errors_prompts_and_resources(sit_down: Sit, showcase: str) -> None:
    page = sit_down("admin").open(showcase)
    expect(tried(page, "count")).to_contain_text("counted")
    expect(page.locator("#heard")).to_contain_text("at 3 <img")
    expect(page.locator("#heard")).to_contain_text("progress 3 of 3")
    image = tried(page, "picture").get_by_alt_text("Image of the answer")
    expect(image).to_be_visible()
    assert image.evaluate("(each) => each.naturalWidth") == 1
    expect(tried(page, "fails")).to_contain_text("The tool says that it has failed")
    page.get_by_role("button", name="greet", exact=True).click()
    page.get_by_label("who *").fill("Ada")
    page.get_by_role("button", name="Get it").click()
    expect(page.locator("#outcome")).to_contain_text("Greet Ada")
    expect(tried(page, "note://one", "Read it")).to_contain_text("<script>")


def test_markup_of_a_server_is_text(sit_down: Sit, showcase: str) -> None:
    desk = sit_down("admin")
    page = desk.open(showcase)
    expect(tried(page, "markup")).to_contain_text("<script>")
    expect(page.locator("#server")).to_contain_text("showcase <img")
    assert page.evaluate("() => document.querySelectorAll('img[src=x], script:not([src])').length") == 0
    assert "broken" not in page.title()
    assert desk.findings() == []


def test_a_call_that_ends_the_server_says_so(sit_down: Sit, fleet: Fleet) -> None:
    page = sit_down("admin").open("/tenants/acme/backends/echo/try?tool=crash")
    page.get_by_role("button", name="Call").click()
    expect(page.locator("#outcome").get_by_role("alert")).to_contain_text("backend_exited")


def test_a_call_is_cancelled_and_the_session_closed_with_the_page(sit_down: Sit, fleet: Fleet) -> None:
    page = sit_down("admin").open("/tenants/acme/backends/echo/try?tool=sleep")
    work = page.locator("#work")
    work.get_by_label("Write the arguments as JSON").check()
    work.get_by_label("Arguments, as JSON").fill('{"seconds": 60, "ms": 60000}')
    work.get_by_role("button", name="Call").click()
    work.get_by_role("button", name="Cancel").click()
    expect(page.locator("#outcome")).to_contain_text("Cancelled")

    def mine() -> list[Any]:
        found = fleet.gateway.api("GET", "/tenants/acme/sessions")["items"]
        return [each for each in found if each["client_name"] == "trunkline-console" and each["backend"] == "echo"]

    assert len(mine()) == 1
    page.goto(fleet.gateway.url + "/console/tenants/acme/sessions")
    deadline = time.monotonic() + 20
    while mine():  # the page has gone, and told the gateway while it went
        assert time.monotonic() < deadline
        page.wait_for_timeout(100)


def test_a_toolset_on_a_phone(sit_down: Sit) -> None:
    desk = sit_down("admin", viewport=PHONE)
    page = desk.open("/tenants/acme/toolsets/all/try?tool=clock_get_current_time")
    page.get_by_label("timezone *").fill("Europe/Zurich")
    page.get_by_role("button", name="Call").click()
    expect(page.locator("#outcome")).to_contain_text("Europe/Zurich")
    assert not desk.is_too_wide()
    assert desk.findings() == []
