"""A program on another site has a person sign in, in a real browser: as its own window, or as the page itself."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from tests.e2e.conftest import NO_PLAYWRIGHT, Fleet
from tests.integration.person import Program

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
pytestmark = pytest.mark.e2e
Sit = Callable[..., Any]


@pytest.fixture
def program(fleet: Fleet, elsewhere: int) -> Iterator[Program]:
    """One whose people come back to another site."""
    fleet.gateway.api("PATCH", "/tenants/acme", {"sign_in": {}})
    with httpx2.Client(timeout=30) as http:
        issuer, resource = f"{fleet.gateway.url}/oauth/acme", f"{fleet.gateway.url}/t/acme/echo/mcp"
        program = Program(http, issuer, resource, redirect_uri=f"http://localhost:{elsewhere}/callback")
        assert program.register().status_code == 201
        yield program
    fleet.gateway.api("PATCH", "/tenants/acme", {"sign_in": None})


def answer_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


def test_a_window_that_a_program_opens_comes_back_to_it(
    chromium: Any, fleet: Fleet, program: Program, elsewhere: int
) -> None:
    """Nobody is signed in: the person signs in on the way. The program still knows the window."""
    from tests.e2e.desk import Desk

    context = chromium.new_context()
    desk = Desk(fleet.gateway, context)
    key = str(fleet.gateway.api("POST", "/tenants/acme/keys", {"scopes": ["mcp:connect"]})["key"])
    desk.page.goto(f"http://localhost:{elsewhere}/")
    with context.expect_page() as opened:
        desk.page.evaluate("(url) => { window.open(url); }", program.address())
    page = opened.value
    page.get_by_label("API key or token").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Connect a program on your machine?")
    expect(page.locator("dl")).to_contain_text("By hand")
    page.get_by_role("button", name="Allow").click()
    page.wait_for_url("**/callback?*")
    assert page.evaluate("() => window.opener !== null")
    answer = answer_of(page.url)
    assert (answer["state"], answer["iss"]) == (program.state, program.issuer)
    assert program.redeem(answer["code"]).status_code == 200
    assert desk.complaints == []
    context.close()


def test_who_refuses_is_sent_back_and_who_looks_sees_what_is_connected(sit_down: Sit, program: Program) -> None:
    desk = sit_down("admin")
    page = desk.page
    page.goto(program.address())
    assert desk.findings() == []
    page.get_by_role("button", name="Refuse").click()
    page.wait_for_url("**/callback?*")
    assert answer_of(page.url)["error"] == "access_denied"
    page.goto(program.address())
    page.get_by_role("button", name="Allow").click()
    page.wait_for_url("**/callback?*")
    assert program.redeem(answer_of(page.url)["code"]).status_code == 200
    desk.open("/connections")
    expect(page.locator("table")).to_contain_text("By hand")
    assert desk.findings() == []
    page.get_by_role("button", name="End").first.click()
    page.get_by_role("dialog").get_by_role("button", name="End").click()
    expect(page.locator("table")).to_contain_text("None yet")
    assert desk.complaints == []


def test_the_page_is_shown_in_no_frame(sit_down: Sit, fleet: Fleet, program: Program, elsewhere: int) -> None:
    desk = sit_down("admin")
    desk.page.goto(f"http://localhost:{elsewhere}/")
    shown = desk.page.evaluate(
        """(url) => new Promise((resolve) => {
          const frame = document.createElement("iframe");
          frame.onload = () => resolve(frame.contentDocument === null ? "refused" : frame.contentDocument.title);
          frame.src = url;
          document.body.append(frame);
        })""",
        program.address(),
    )
    assert shown == "refused"
    assert any("frame-ancestors" in each for each in desk.complaints)
    desk.complaints.clear()
