"""What an administrator does in a day, in the browser."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx2
import pytest

from tests.e2e.conftest import CLOCK, NO_PLAYWRIGHT, Fleet
from tests.integration.gateway import ECHO, Endpoint
from tests.integration.needy import ARGV, three_places
from tests.jail.sandbox.inside import needs_bubblewrap
from tests.processes.rig import SERVERS

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
pytestmark = pytest.mark.e2e
_SEND = """([url, body, headers]) =>
  fetch(url, {method: "POST", body, headers, credentials: "include"}).catch(() => 0)"""
Sit = Callable[..., Any]


def open_session(endpoint: Endpoint) -> str:
    """The id of a session as its client knows it."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "<b>cli</b>", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    accept = {"Accept": "application/json, text/event-stream"}
    answer = httpx2.post(endpoint.mcp, json=body, headers={**endpoint.headers, **accept}, timeout=60)
    return answer.headers["mcp-session-id"]


def test_a_backend_is_pasted_checked_and_removed(sit_down: Sit, fleet: Fleet) -> None:
    page = sit_down("platform").open("/tenants/acme/backends:new")
    pasted = {"mcpServers": {"pasted": {"command": CLOCK[0], "args": CLOCK[1:]}}}
    page.get_by_label("An mcpServers block").fill(json.dumps(pasted))
    page.get_by_role("button", name="See what it would add").click()
    expect(page.locator("#imported")).to_contain_text("Nothing was changed yet")
    page.get_by_role("button", name="Add them").click()
    expect(page.locator("#imported")).to_contain_text("Done")
    page.goto(fleet.gateway.url + "/console/tenants/acme/backends/pasted")
    page.get_by_role("button", name="Check it").click()
    expect(page.locator("#checked")).to_contain_text("answers: 2 tools")
    expect(page.locator("#checked meter")).not_to_have_count(0)
    page.reload()
    expect(page.get_by_text("get_current_time").first).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.wait_for_url("**/backends")
    assert all(each["name"] != "pasted" for each in fleet.gateway.api("GET", "/tenants/acme/backends")["items"])


def test_a_check_shows_each_step_while_it_is_taken(sit_down: Sit, fleet: Fleet, tmp_path: Path) -> None:
    fleet.gateway.add_backend("acme", "gate", sys.executable, [str(SERVERS / "gate.py"), str(tmp_path)])
    desk = sit_down("admin")
    page = desk.open("/tenants/acme/backends/gate")
    button, checked = page.get_by_role("button", name="Check it"), page.locator("#checked")
    button.focus()
    page.keyboard.press("Enter")
    bar = checked.get_by_role("progressbar", name="Check it")
    expect(checked).to_contain_text("Step 2 of 6: it is greeted")
    assert (bar.get_attribute("max"), bar.get_attribute("value")) == ("6", "1")
    expect(bar).to_have_accessible_description("Step 2 of 6: it is greeted")
    expect(checked.get_by_role("row")).to_have_count(1)
    expect(button).to_be_focused()
    assert desk.findings() == []
    page.keyboard.press("Enter")  # once is enough
    (tmp_path / "open").touch()
    expect(checked).to_contain_text("gate 1 answers: 1 tools")
    expect(checked.get_by_role("rowheader")).to_have_text(["start", "initialize", "tools/list", "catalog"])
    expect(bar).to_have_count(0)
    expect(page.locator("#offer").get_by_text("through").first).to_be_visible()
    assert desk.findings() == []
    (tmp_path / "open").unlink()
    button.click()
    expect(checked).to_contain_text("it is greeted")
    page.goto(fleet.gateway.url + "/console/tenants/acme/backends")  # who leaves ends the check
    expect(page.get_by_role("link", name="gate")).to_be_visible()
    deadline = time.monotonic() + 30
    while any(each["backend"] == "gate" for each in fleet.gateway.api("GET", "/tenants/acme/processes")["items"]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    fleet.gateway.api("DELETE", "/tenants/acme/backends/gate")


@pytest.fixture
def place() -> Iterator[Path]:
    with three_places() as found:
        yield found


@needs_bubblewrap
def test_what_a_check_misses_is_added_by_whom_may_until_it_works(sit_down: Sit, fleet: Fleet, place: Path) -> None:
    env = {"READS": f"{place}/one/file {place}/two/file"}
    fleet.gateway.add_backend("acme", "needy", ARGV[0], ARGV[1:], env=env)
    page = sit_down("admin").open("/tenants/acme/backends/needy")
    page.get_by_role("button", name="Check it").click()
    checked = page.locator("#checked")
    expect(checked).to_contain_text("Only a platform administrator may.")
    expect(checked.get_by_role("button", name="Allow and check again")).to_have_count(0)
    desk = sit_down("platform")
    page = desk.open("/tenants/acme/backends/needy")
    checked = page.locator("#checked")
    page.get_by_role("button", name="Check it").click()
    checked.get_by_role("button", name="Allow and check again").click()
    expect(checked.locator(".told")).to_contain_text("answers:", timeout=180_000)
    expect(checked.get_by_text("Round 2: it does not work.")).to_be_visible()
    expect(checked.get_by_role("button", name="Allow and check again")).to_have_count(0)
    expect(page.get_by_role("button", name="Check it")).to_be_focused()
    assert desk.findings() == []
    read = fleet.gateway.api("GET", "/tenants/acme/backends/needy")["sandbox"]["read"]
    assert read == [f"{place}/one/file", f"{place}/two/file"]
    fleet.gateway.api("DELETE", "/tenants/acme/backends/needy")


def test_a_backend_is_made_by_form_and_what_is_wrong_is_said(sit_down: Sit, fleet: Fleet) -> None:
    page = sit_down("platform").open("/tenants/acme/backends:new")
    form = page.locator("form[data-path$='/backends']")
    form.get_by_label("Name lower-case").fill("formed")
    form.get_by_label("Command").fill(ECHO[0])
    form.get_by_label("Arguments").fill("\n".join(ECHO[1:]))
    form.get_by_label("Environment").fill("no equals sign")
    form.get_by_role("button", name="Add").click()
    expect(form.get_by_role("alert")).to_contain_text("NAME=value")
    form.get_by_label("Environment").fill("A=1")
    form.get_by_role("button", name="Add").click()
    page.wait_for_url("**/backends/formed")
    made = fleet.gateway.api("GET", "/tenants/acme/backends/formed")
    assert (made["command"], made["args"], list(made["env"])) == (ECHO[0], ECHO[1:], ["A"])
    page.get_by_role("button", name="Switch off").click()
    page.get_by_role("dialog").get_by_role("button", name="No").click()
    page.get_by_role("button", name="Switch off").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Switch off").click()
    page.get_by_role("dialog").get_by_role("button", name="Switch off").click()
    expect(page.get_by_role("button", name="Switch on")).to_be_visible()
    fleet.gateway.api("DELETE", "/tenants/acme/backends/formed")


def test_a_session_is_seen_and_closed_on_whatever_node_it_is(sit_down: Sit, fleet: Fleet) -> None:
    session = open_session(fleet.endpoint("acme", node=1))
    page = sit_down("admin").open("/tenants/acme/sessions")
    row = page.get_by_role("row").filter(has_text="<b>cli</b>")
    expect(row).to_have_count(1)
    row.get_by_role("button", name="Close").click()
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    expect(row).to_have_count(0)
    endpoint = fleet.endpoint("acme")
    gone = httpx2.delete(endpoint.mcp, headers={**endpoint.headers, "Mcp-Session-Id": session})
    assert gone.status_code == 404


def test_a_process_is_restarted_on_whatever_node_it_is(sit_down: Sit, fleet: Fleet) -> None:
    for recovery, is_over in (("end", True), ("respawn", False)):
        fleet.gateway.add_backend("acme", recovery, ECHO[0], ECHO[1:], recovery=recovery)
        endpoint = fleet.endpoint("acme", recovery, node=1)
        session = open_session(endpoint)
        page = sit_down("admin").open("/tenants/acme/processes")
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=recovery, exact=True))
        if is_over:
            row.get_by_role("button", name="Restart").click()
        else:
            row.get_by_role("rowheader").get_by_role("link").click()
            page.get_by_role("button", name="Restart").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("It serves 1 session: calls under way fail.")
        dialog.get_by_role("button", name="Restart").click()
        if is_over:
            expect(row).to_have_count(0)
        else:
            page.wait_for_url("**/processes")
        accept = {"Accept": "application/json, text/event-stream", "Mcp-Session-Id": session}
        body = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        answer = httpx2.post(endpoint.mcp, json=body, headers={**endpoint.headers, **accept}, timeout=60)
        assert answer.status_code == (404 if is_over else 200)
        assert ("process_restarted" in answer.text) is is_over
        fleet.gateway.api("DELETE", f"/tenants/acme/backends/{recovery}")
    acts = fleet.gateway.api("GET", "/tenants/acme/audit?action=process.restart")["items"]
    assert [each["detail"] for each in acts] == ["respawn", "end"]


def test_a_key_is_made_used_and_revoked(sit_down: Sit, fleet: Fleet) -> None:
    page = sit_down("admin").open("/tenants/acme/keys")
    page.get_by_text("Add a key").click()
    page.get_by_label("Name whose it is").fill("made in the browser")
    page.get_by_role("button", name="Add", exact=True).click()
    secret = page.locator("#secret")
    expect(secret).to_have_text(re.compile(r"^tlk_"))
    key = secret.inner_text()
    expect(page.locator("#snippets")).to_contain_text("claude mcp add")
    assert page.get_by_role("link", name="Add to VS Code").get_attribute("href").startswith("vscode:mcp/install?")
    headers = {"Authorization": f"Bearer {key}"}
    assert httpx2.get(fleet.gateway.url + "/api/v1/tenants/acme/me", headers=headers).status_code == 200
    page.reload()
    assert key not in page.content()
    row = page.get_by_role("row").filter(has_text="made in the browser")
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row.get_by_text("revoked")).to_be_visible()
    assert httpx2.get(fleet.gateway.url + "/api/v1/tenants/acme/me", headers=headers).status_code == 401


def test_a_client_is_connected_with_a_key_that_nobody_can_show_any_more(sit_down: Sit, fleet: Fleet) -> None:
    made = fleet.gateway.api("POST", "/tenants/acme/keys", {"scopes": ["mcp:connect:clock"], "name": "<b>laptop"})
    desk = sit_down("member")
    page = desk.open("/tenants/acme/keys")
    page.get_by_role("row").filter(has_text="<b>laptop").get_by_role("rowheader").get_by_role("link").click()
    page.wait_for_url(f"**/keys/{made['id']}")
    expect(page.get_by_role("option")).to_have_text(["clock"])  # it may connect to nothing else
    url = f"{fleet.gateway.url}/t/acme/clock/mcp"
    expect(page.get_by_label("Claude Code", exact=True)).to_have_text(
        f'claude mcp add --transport http clock {url} --header "Authorization: Bearer $GATEWAY_KEY"'
    )
    assert json.loads(page.get_by_label("Cursor", exact=True).inner_text())["mcpServers"]["clock"]["url"] == url
    link = page.get_by_role("link", name="Add to VS Code").get_attribute("href")
    assert json.loads(unquote(link.removeprefix("vscode:mcp/install?")))["url"] == url
    assert made["key"] not in page.content()
    assert desk.findings() == []
    fleet.gateway.api("DELETE", f"/tenants/acme/keys/{made['id']}")
    page.reload()
    expect(page.get_by_text("Clients with this key are refused")).to_be_visible()


def test_a_toolset_is_made(sit_down: Sit, fleet: Fleet) -> None:
    page = sit_down("admin").open("/tenants/acme/toolsets:new")
    page.get_by_label("Name").fill("made")
    page.get_by_label("echo", exact=True).check()
    page.get_by_label("Prefix of the tools of echo").fill("x_")
    page.get_by_role("button", name="Add", exact=True).click()
    page.wait_for_url("**/toolsets/made")
    expect(page.get_by_text("x_echo", exact=True)).to_be_visible()
    fleet.gateway.api("DELETE", "/tenants/acme/toolsets/made")


def test_tools_are_approved_and_the_policy_is_set(sit_down: Sit, fleet: Fleet) -> None:
    fleet.gateway.api("POST", "/tenants/zenith/backends/clock:check", {})
    page = sit_down("admin", "zenith").open("/tenants/zenith/backends/clock")
    page.get_by_role("button", name="Approve what waits").click()
    page.get_by_role("dialog").get_by_role("button", name="Approve what waits").click()
    expect(page.locator("#offer .state.approved")).to_have_count(2)
    page.get_by_label("Policy").select_option("block")
    page.get_by_role("button", name="Set").click()
    expect(page.get_by_role("status")).to_contain_text("Saved")
    assert fleet.gateway.api("GET", "/tenants/zenith/backends/clock")["pin"] == "block"
    page.goto(fleet.gateway.url + "/console/tenants/zenith/audit?action=tool.approve")
    expect(page.get_by_role("cell", name="tool.approve").first).to_be_visible()


def test_somebody_whose_key_is_revoked_is_asked_to_sign_in_again(sit_down: Sit, fleet: Fleet) -> None:
    made = fleet.gateway.api("POST", "/tenants/acme/keys", {"scopes": ["tenant:read"], "name": "short-lived"})
    desk = sit_down("member")
    desk.context.clear_cookies()
    desk.sign_in(made["key"])
    page = desk.open("/tenants/acme/sessions")
    fleet.gateway.api("DELETE", f"/tenants/acme/keys/{made['id']}")
    expect(page.get_by_label("API key or token")).to_be_visible()
    desk.complaints = [each for each in desk.complaints if "401" not in each]  # what the page had under way was refused


def test_signing_out_by_keyboard(sit_down: Sit) -> None:
    page = sit_down("member").open("/tenants/acme/backends")
    page.get_by_role("button", name="Sign out").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("API key or token")).to_be_focused()


def test_skipping_to_the_content(sit_down: Sit) -> None:
    page = sit_down("member").open("/tenants/acme/backends")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()


def test_a_page_of_another_site_can_neither_frame_nor_change_anything(sit_down: Sit, fleet: Fleet) -> None:
    """The other node stands for it: another origin, to which the browser sends the cookie of this host all the same."""
    desk = sit_down("admin")
    before = len(fleet.gateway.api("GET", "/tenants/acme/keys?limit=200")["items"])
    other = desk.context.new_page()
    other.goto(fleet.nodes.all[1].url + "/livez")
    target = fleet.gateway.url + "/console/-/api/v1/tenants/acme/keys"
    body = json.dumps({"scopes": ["mcp:connect"]})
    for headers in ({}, {"X-CSRF-Token": "0" * 64, "Content-Type": "application/json"}):
        other.evaluate(
            _SEND,
            [target, body, headers],
        )
    assert len(fleet.gateway.api("GET", "/tenants/acme/keys?limit=200")["items"]) == before
    other.evaluate(
        "(url) => { const frame = document.createElement('iframe'); frame.src = url; document.body.append(frame); }",
        fleet.gateway.url + "/console",
    )
    other.wait_for_timeout(500)
    assert all("Trunkline" not in frame.title() for frame in other.frames[1:])


def test_a_link_brings_a_key_that_no_server_is_sent(sit_down: Sit, fleet: Fleet) -> None:
    desk = sit_down("member")
    desk.context.clear_cookies()
    asked: list[str] = []
    desk.page.on("request", lambda request: asked.append(request.url))
    key = fleet.key("member")
    page = desk.open(f"/sign-in?to=/console/tenants/acme/backends/clock#key={key}")
    expect(page.get_by_role("button", name="Sign in")).to_be_focused()
    assert key not in page.url
    page.keyboard.press("Enter")
    page.wait_for_url("**/backends/clock")
    assert not any(key in each for each in asked)
