"""What another site can do to whoever has signed in, what a browser keeps afterwards, and two people in one browser."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import NO_PLAYWRIGHT, Fleet

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
pytestmark = pytest.mark.e2e
Sit = Callable[..., Any]


_SEND = """async ([url, method, type]) => {
  try {
    const options = { method, credentials: "include", mode: "no-cors", headers: { "Content-Type": type } };
    const answer = await fetch(url, method === "GET" ? { ...options, headers: {} } : { ...options, body: "{}" });
    return answer.type;
  } catch (error) { return String(error); }
}"""
_FORM = """([url, fields]) => {
  const form = document.createElement("form");
  Object.assign(form, { action: url, method: "post" });
  for (const [name, value] of Object.entries(fields)) {
    const field = Object.assign(document.createElement("input"), { name, value });
    form.append(field);
  }
  document.body.append(form);
  form.submit();
}"""
_FRAME = """(url) => new Promise((resolve) => {
  const frame = document.createElement("iframe");
  frame.onload = () => resolve(true);
  frame.src = url;
  document.body.append(frame);
})"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_another_site_changes_and_reads_nothing(sit_down: Sit, fleet: Fleet, elsewhere: int, host: str) -> None:
    desk = sit_down("admin")
    rest = f"{fleet.gateway.url}/console/-/api/v1/tenants/acme"
    made = fleet.gateway.api("POST", "/tenants/acme/keys", {"name": f"of {host}", "scopes": ["mcp:connect"]})
    before = fleet.gateway.api("GET", "/tenants/acme/keys")
    sessions = {each["id"] for each in fleet.gateway.api("GET", "/tenants/acme/sessions")["items"]}
    page = desk.page
    page.goto(f"http://{host}:{elsewhere}/")
    for path, method in (("/keys", "POST"), ("/backends/echo:restart", "POST"), ("", "GET")):
        assert "Failed to fetch" in page.evaluate(_SEND, [rest + path, method, "text/plain"])
    endpoint = f"{fleet.gateway.url}/console/-/t/acme/echo/mcp"
    page.evaluate(_SEND, [endpoint, "GET", ""])
    assert page.evaluate(_SEND, [f"{rest}/keys/{made['id']}", "DELETE", "text/plain"]) != "opaque"
    page.evaluate(_FORM, [fleet.gateway.url + "/console/sign-out", {"csrf": ""}])
    expect(page.locator("body")).to_contain_text("Please send the form from a page of the console")
    page.goto(f"http://{host}:{elsewhere}/")
    page.evaluate(_FORM, [fleet.gateway.url + "/console/sign-in", {"key": fleet.key("admin", "zenith")}])
    expect(page.locator("body")).to_contain_text("Please send the form from a page of the console")
    desk.open("/tenants/acme")
    expect(page.get_by_role("heading", level=1)).to_contain_text("acme")
    now = fleet.gateway.api("GET", "/tenants/acme/keys")
    assert [each["id"] for each in now["items"]] == [each["id"] for each in before["items"]]
    assert {each["id"] for each in fleet.gateway.api("GET", "/tenants/acme/sessions")["items"]} <= sessions
    desk.complaints.clear()  # of what was refused


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_page_shows_itself_in_a_frame_of_another(sit_down: Sit, fleet: Fleet, elsewhere: int, host: str) -> None:
    desk = sit_down("admin")
    page = desk.page
    for path in ("/console", "/console/sign-in", "/console/tenants/acme/keys", "/console/-/api/v1/tenants/acme"):
        page.goto(f"http://{host}:{elsewhere}/")
        page.evaluate(_FRAME, fleet.gateway.url + path)
        assert "acme" not in page.frames[-1].content()
        assert page.frames[-1].locator("form, main, pre").count() == 0, path
    desk.complaints.clear()  # of frames that were refused


def test_nothing_is_shown_again_after_signing_out(sit_down: Sit, fleet: Fleet) -> None:
    desk = sit_down("admin")
    page = desk.open("/tenants/acme/keys")
    desk.open("/tenants/acme/audit")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key or token")).to_be_visible()
    for _ in range(2):
        page.go_back(wait_until="load")
        expect(page.get_by_label("API key or token")).to_be_visible()
        assert "audit" not in page.locator("main").inner_text().lower()
    assert page.evaluate("async () => (await fetch('/console/-/api/v1/tenants/acme')).status") == 401
    desk.complaints.clear()


def test_a_page_of_somebody_else_changes_nothing_after_another_person_has_signed_in(
    sit_down: Sit, fleet: Fleet
) -> None:
    desk = sit_down("admin")
    first = desk.open("/tenants/acme/keys")
    second = desk.context.new_page()
    second.goto(fleet.gateway.url + "/console/sign-in")
    second.get_by_label("API key or token").fill(fleet.key("platform"))
    second.get_by_role("button", name="Sign in").click()
    second.wait_for_url("**/console")
    said = first.evaluate(
        """async () => {
      const { rest } = await import(document.querySelector("script[src*='page.js']").src.replace("page.js", "rest.js"));
      try { await rest("POST", "/tenants", { name: "stolen" }); return "done"; } catch (error) { return error.status; }
    }"""
    )
    assert said == 403
    assert fleet.gateway.api("GET", "/tenants/stolen", expect=404)
    desk.complaints.clear()


def test_a_button_that_is_pressed_twice_acts_once(sit_down: Sit, fleet: Fleet) -> None:
    desk = sit_down("admin")
    page = desk.open("/tenants/acme/keys")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method))
    page.locator("#new-key").evaluate("(form) => form.closest('details') && (form.closest('details').open = true)")
    page.locator("#new-key input[name=name]").fill("twice")
    for box in page.locator("#new-key input[value='tenant:read']").all():
        box.check()
    button = page.locator("#new-key button").last
    button.evaluate("(each) => { each.click(); each.click(); each.form.requestSubmit(); }")
    expect(page.locator("#made")).to_be_visible()
    assert sent.count("POST") == 1
    named = [each for each in fleet.gateway.api("GET", "/tenants/acme/keys")["items"] if each["name"] == "twice"]
    assert len(named) == 1
