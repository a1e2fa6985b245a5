"""The messages of a session in the browser: opened, followed, found, saved, and seen by the tenant."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.conftest import NO_PLAYWRIGHT, Fleet

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
pytestmark = pytest.mark.e2e
Sit = Callable[..., Any]
EVIL = "<img src=x onerror=alert(1)>"
PHONE = {"width": 390, "height": 844}


class Client:
    """A client of `echo` at the second node; the console is at the first. `id` is that of its session in lists."""

    def __init__(self, fleet: Fleet) -> None:
        self._gateway, endpoint = fleet.gateway, fleet.endpoint("acme", node=1)
        before = self._sessions()
        self._url = endpoint.mcp
        self._headers = {**endpoint.headers, "Accept": "application/json, text/event-stream"}
        client = {"name": "<b>cli</b>", "version": "1"}
        self.send("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client})
        (self.id,) = self._sessions() - before

    def _sessions(self) -> set[str]:
        return {each["id"] for each in self._gateway.api("GET", "/tenants/acme/sessions?limit=200")["items"]}

    def send(self, method: str, params: Any) -> None:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = httpx2.post(self._url, json=body, headers=self._headers, timeout=60)
        assert answer.is_success, answer.text
        if method == "initialize":
            self._headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]

    def say(self, text: str) -> None:
        self.send("tools/call", {"name": "echo", "arguments": {"text": text}})

    def close(self) -> None:
        httpx2.request("DELETE", self._url, headers=self._headers, timeout=60)


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Client]:
    client = Client(fleet)
    yield client
    client.close()


def opened(page: Any, client: Client, reason: str, *, payloads: bool = True) -> None:
    """From the list of sessions to the page of an inspection."""
    page.get_by_role("link", name=f"Inspect the messages of {client.id}").click()
    assert page.get_by_label("Session").input_value() == client.id
    page.get_by_label("Why the tenant sees it").fill(reason)
    if payloads:
        page.get_by_label("also what the messages say").check()
    page.get_by_role("button", name="Inspect", exact=True).click()
    page.wait_for_url("**/inspections/*")


def test_a_call_is_followed_on_both_sides_found_saved_and_made_again(
    sit_down: Sit, client: Client, tmp_path: Path
) -> None:
    desk = sit_down("admin")
    page = desk.open("/tenants/acme/sessions")
    opened(page, client, f"ticket {EVIL}")
    client.say(EVIL)
    client.say("another")
    rows = page.locator("#traffic > li")
    expect(rows).to_have_count(4)
    first = rows.nth(0)
    expect(first.locator(".client")).to_contain_text("client → gateway")
    expect(first.locator(".backend")).to_contain_text("gateway → backend")
    expect(page.locator("#traffic-state")).to_contain_text("8 messages")
    first.get_by_text("What it says").first.click()
    expect(first.locator("pre").first).to_contain_text(EVIL)
    assert page.locator("#traffic img, #watched img").count() == 0
    assert desk.findings() == []

    page.get_by_label("Find").fill("another")
    expect(page.locator("#traffic > li:not([hidden])")).to_have_count(2)
    page.get_by_label("Find").fill("")
    page.get_by_label("Show").select_option("error")
    expect(page.locator("#traffic > li:not([hidden])")).to_have_count(0)
    page.get_by_label("Show").select_option("")
    page.get_by_label("follow").uncheck()

    with page.expect_download() as downloading:
        page.get_by_role("link", name="Save as JSON lines").click()
    downloading.value.save_as(tmp_path / "seen.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    assert [each["side"] for each in lines] == ["client", "backend", "backend", "client"] * 2

    page.set_viewport_size(PHONE)
    assert not desk.is_too_wide()


def test_the_next_sessions_of_a_backend_are_followed_from_its_page(sit_down: Sit, fleet: Fleet) -> None:
    desk = sit_down("admin")
    page = desk.open("/tenants/acme/backends/echo")
    page.get_by_role("link", name="Inspect its next sessions").click()
    assert page.get_by_label("or the next ones of").input_value() == "echo"
    page.get_by_label("Why the tenant sees it").fill("a handshake that fails")
    page.get_by_role("button", name="Inspect", exact=True).click()
    page.wait_for_url("**/inspections/*")
    expect(page.get_by_role("heading", level=1)).to_contain_text("the next sessions of echo")
    expect(page.locator("#watched")).to_contain_text("the next sessions of echo")
    client = Client(fleet)
    client.say("hello")
    expect(page.locator("#traffic > li").first).to_contain_text("initialize")
    expect(page.locator("#traffic > li").first).to_contain_text(client.id)
    expect(page.locator("#traffic > li")).to_have_count(4)
    client.close()
    assert desk.findings() == []
    page.get_by_role("button", name="Close it").click()
    page.get_by_role("dialog").get_by_role("button", name="Close it").click()
    page.wait_for_url("**/tenants/acme/inspections")


def test_the_tenant_sees_it_on_every_page_until_it_is_closed(sit_down: Sit, client: Client) -> None:
    platform, member = sit_down("platform"), sit_down("member")
    page = platform.open("/tenants/acme/sessions")
    opened(page, client, "a look by the platform", payloads=False)
    seen = member.open("/tenants/acme/backends")
    banner = seen.locator("#watched")
    expect(banner).to_contain_text("a look by the platform")
    expect(banner).to_contain_text("of default")
    assert member.findings() == []
    expect(member.open("/tenants/acme").locator(".problems")).to_contain_text("a look by the platform")
    seen.locator("#watched").get_by_role("link", name="Inspect").click()
    client.say("secret words")
    expect(seen.locator("#traffic > li")).to_have_count(2)
    assert seen.get_by_text("What it says").count() == 0
    assert seen.get_by_role("button", name="Close it").count() == 0
    page.get_by_role("button", name="Close it").click()
    page.get_by_role("dialog").get_by_role("button", name="Close it").click()
    page.wait_for_url("**/tenants/acme/inspections")
    expect(page.get_by_role("row").filter(has_text="a look by the platform").first).to_contain_text("closed")
    assert platform.findings() == []
