"""What an administrator looks for in a day, in the browser: a call, a process and its stderr, who has changed what."""

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import NO_PLAYWRIGHT, Fleet
from tests.incidents.stage import Client
from tests.integration.gateway import ROOT

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
pytestmark = pytest.mark.e2e
Sit = Callable[..., Any]
HELPDESK = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/helpdesk.py")]


@pytest.fixture(scope="session")  # as the fleet: a worker may get this module twice
def helpdesk(fleet: Fleet) -> None:
    fleet.gateway.add_backend("acme", "helpdesk", HELPDESK[0], HELPDESK[1:])


@pytest.fixture
def client(fleet: Fleet, helpdesk: None) -> Iterator[Client]:
    """A client with a session at the second node; the console is at the first."""
    node = fleet.nodes.all[1]
    client = Client(f"{node.url}/t/acme/helpdesk/mcp", node.key("acme"), program="claude-code")
    assert client.open().status_code == 200
    yield client
    client.http.delete(client.url)
    client.http.close()


def test_a_slow_call_is_found_and_calls_are_summed_by_tool(sit_down: Sit, client: Client) -> None:
    client.call("search_tickets", words="printer")
    client.call("monthly_report", month="2026-10")
    desk = sit_down("member")
    page = desk.open("/tenants/acme/calls?backend=helpdesk")
    expect(page.get_by_role("row").filter(has_text="search_tickets").first).to_be_visible()
    page.get_by_label("Longer than (ms)").fill("300")
    page.get_by_role("button", name="Search").click()
    slow = page.get_by_role("row").filter(has_text="monthly_report").first
    expect(slow).to_contain_text("claude-code 2.1")
    expect(page.get_by_role("row").filter(has_text="search_tickets")).to_have_count(0)
    slow.get_by_title(re.compile("^Request ")).click()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert len(page.get_by_label("Request").input_value()) == 32
    page.get_by_label("Request").fill("")
    page.get_by_label("Longer than (ms)").fill("")
    page.get_by_label("Summed by").select_option("tool")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("row").filter(has_text="search_tickets")).to_be_visible()
    assert desk.findings() == []


def test_the_stderr_of_a_process_is_followed(sit_down: Sit, client: Client) -> None:
    page = sit_down("admin").open("/tenants/acme/processes")
    page.get_by_role("row").filter(has_text="helpdesk").filter(has_text="leased").get_by_role("link").first.click()
    expect(page.locator("pre")).to_contain_text("helpdesk 1.4 ready")
    client.call("search_tickets", words="crash")
    expect(page.locator("pre")).to_contain_text("index is locked")


def test_a_backend_is_restarted_and_the_audit_says_by_whom(sit_down: Sit, client: Client) -> None:
    page = sit_down("admin").open("/tenants/acme/backends/helpdesk")
    page.get_by_role("button", name="Restart", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Restart").click()
    expect(page.get_by_role("status")).to_be_visible()
    answer = client.call("search_tickets", words="printer")
    assert answer.status_code == 404, answer.text
    page.goto(page.url.replace("/backends/helpdesk", "/audit"))
    page.get_by_label("Action").fill("backend.restart")
    page.get_by_label("Target").fill("backends/helpdesk")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("tbody tr").get_by_role("link", name=re.compile("^key")).click()
    expect(page.locator("tr:target")).to_be_visible()


def test_a_key_is_switched_off_and_on_again(sit_down: Sit, fleet: Fleet, client: Client) -> None:
    key = client.http.headers["Authorization"].removeprefix("Bearer ")
    (about,) = [each for each in fleet.gateway.api("GET", "/tenants/acme/keys?limit=200")["items"] if each["id"] in key]
    page = sit_down("admin").open(f"/tenants/acme/keys#key-{about['id']}")
    row = page.locator("tr:target")
    row.get_by_role("button", name="Switch off").click()
    confirm = page.get_by_role("dialog").get_by_role("button", name="Switch off")
    if confirm.count():
        confirm.click()
    expect(page.locator(f"#key-{about['id']}").get_by_role("button", name="Switch on")).to_be_visible()
    assert client.call("search_tickets", words="printer").status_code in (401, 403, 404)
    page.locator(f"#key-{about['id']}").get_by_role("button", name="Switch on").click()
    expect(page.locator(f"#key-{about['id']}").locator(".state.on")).to_be_visible()
    del client.http.headers["Mcp-Session-Id"]  # that session has ended
    assert client.open().status_code == 200


def test_an_overview_of_one_node_alone(sit_down: Sit, client: Client) -> None:
    page = sit_down("platform").open("/tenants/acme")
    expect(page.locator("svg.chart").first).to_be_visible()
    nodes = page.get_by_label("Node").locator("option")
    expect(nodes).to_have_count(3)
    page.get_by_label("Node").select_option(index=2)
    expect(page.locator("svg.chart").first).to_be_visible()
    page.locator("#chart-details summary").click()
    expect(page.get_by_role("columnheader", name="Sessions and waiting callers: sessions")).to_be_visible()


_JOINED = """async ([path, steps]) => {
  const beside = (name) => import(document.querySelector("script[src*='page.js']").src.replace("page.js", name));
  const [{ extended }, { rest }] = await Promise.all([beside("series.js"), beside("rest.js")]);
  const known = await rest("GET", path);
  for (let tries = 0; tries < 100; tries++) {
    await new Promise((done) => setTimeout(done, 300));
    const latest = await rest("GET", `${path}?steps=${steps}`), whole = await rest("GET", path);
    if (latest.until === known.until || latest.until !== whole.until) continue;
    const joined = extended(known, latest);
    for (const each of [joined, whole]) each.since = Date.parse(each.since);
    const until = new Date(Date.parse(latest.until) + 60e3).toISOString();
    const refused = [{ ...latest, nodes: ["another"] }, { ...latest, until }].map((each) => extended(known, each));
    return { joined, whole, refused };
  }
}"""


def test_the_charts_are_kept_up_to_date_with_the_last_steps_only(sit_down: Sit, client: Client) -> None:
    page = sit_down("platform").open("/tenants/acme")
    client.call("search_tickets", words="printer")
    client.call("no_such_tool")
    found = page.evaluate(_JOINED, ["/tenants/acme/activity", 6])
    assert found["joined"] == found["whole"]
    assert any(found["joined"]["calls_per_second"])
    assert found["refused"] == [None, None]
    with page.expect_request(lambda request: request.headers.get("x-renew") == "problems chartlatest", timeout=60_000):
        pass
    page.wait_for_function("document.getElementById('chartlatest').textContent.trim()")  # its answer is there
    with page.expect_request(lambda request: request.headers.get("x-renew") == "chartdata", timeout=60_000):
        page.evaluate(_LATEST_AGAIN)  # at last everything is asked for


_LATEST_AGAIN = """() => {
  const again = () => document.dispatchEvent(new CustomEvent("renewed", { detail: ["chartlatest"] }));
  for (let times = 0; times < 9; times++) again();
}"""
