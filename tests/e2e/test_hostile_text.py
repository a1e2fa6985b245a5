"""Whatever servers, clients and administrators write, on every page: it is text, and no page breaks."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from tests.e2e.conftest import NO_PLAYWRIGHT, Fleet
from tests.integration.gateway import Endpoint
from tests.processes.rig import SERVERS
from tests.servers.graffiti import TEXTS

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
pytestmark = pytest.mark.e2e
Sit = Callable[..., Any]

TENANT = "graffiti"
PHONE = {"width": 390, "height": 844}
DEEP = {"width": 1280, "height": 900}
# What the REST API takes is printable.
WRITTEN = ["".join(each if each.isprintable() else " " for each in text) for text in TEXTS]
REASON = f"{WRITTEN[0]} {WRITTEN[1]} {'W' * 120}"[:200]  # with markup, and a word that is longer than a line
_WATCH = """
window.hit = 0;
window.violations = [];
addEventListener("securitypolicyviolation", ({ violatedDirective }) => window.violations.push(violatedDirective));
"""
# What is set beside a text that goes from right to left stays where it is.
_IS_TURNED = """() => [...document.querySelectorAll("summary, h1, h2, h3, td, li, p")].filter((block) => {
  const [first, second] = block.children;
  if (!second || !first.textContent.includes("\\u202e") || !/^(CODE|A|STRONG)$/.test(first.tagName)) return false;
  const [left, right] = [first, second].map((each) => each.getClientRects()[0]);
  return left && right && Math.abs(left.top - right.top) < 4 && right.left < left.left;
}).length"""


class Client:
    """Of a hostile name."""

    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self._endpoint = endpoint
        self._headers = {**endpoint.headers, "Accept": "application/json, text/event-stream"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": name, "version": name}}
        answer = self.send("initialize", hello)
        self._headers["Mcp-Session-Id"] = answer.headers.get("mcp-session-id", "")

    def send(self, method: str, params: Any) -> httpx2.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return httpx2.post(self._endpoint.mcp, json=body, headers=self._headers, timeout=60)

    def call(self, tool: str) -> None:
        self.send("tools/call", {"name": tool, "arguments": {}, "_meta": {"progressToken": "p"}})


@pytest.fixture(scope="module")
def pages(fleet: Fleet) -> Iterator[dict[str, str]]:
    """A tenant full of hostile texts; its pages by name."""
    api, of = fleet.gateway.api, f"/tenants/{TENANT}"
    api("POST", "/tenants", {"name": TENANT})
    wall = [str(SERVERS / "graffiti.py")]
    fleet.gateway.add_backend(TENANT, "wall", sys.executable, wall, pin="warn")
    api("POST", f"{of}/backends/wall:check", {})
    api("POST", f"{of}/backends/wall/tools:approve", {})
    api("PATCH", f"{of}/backends/wall", {"args": [*wall, " more " + TEXTS[1]]})
    api("POST", f"{of}/backends/wall:check", {})
    fleet.gateway.add_backend(TENANT, "broken", sys.executable, [*wall, "dies"], max_processes=1)
    far = {"name": "far", "url": "https://far.example/mcp?x=%22%3E%3Cscript%3E", "enabled": False, "reason": REASON}
    api("POST", f"{of}/backends", far)
    odd: dict[str, Any] = {"describe": {"a": TEXTS[2]}, "enabled": False, "reason": REASON}
    fleet.gateway.add_backend(TENANT, "odd", "/bin/cat", TEXTS, **odd)
    members = [{"backend": "wall", "prefix": "w_"}]
    toolset = {"name": "all", "title": WRITTEN[0], "instructions": REASON, "members": members, "guides": ["*"]}
    api("POST", f"{of}/toolsets", toolset)
    for number, text in enumerate(TEXTS):
        api("POST", f"{of}/guides", {"name": f"g{number}", "title": WRITTEN[number][:100], "text": text})
        made = api("POST", f"{of}/keys", {"name": WRITTEN[number][:200], "scopes": ["mcp:connect"]})
    api("PATCH", f"{of}/keys/{made['id']}", {"enabled": False, "reason": REASON})
    principal = {"issuer": "https://idp.example", "subject": WRITTEN[1], "enabled": False, "reason": REASON}
    api("PATCH", f"{of}/principals", principal)
    issuer = {
        "issuer": "https://idp.example/%3Cscript%3E?a='b'",
        "algorithms": ["RS256"],
        "audience": [WRITTEN[0], "W" * 200],
    }
    api("POST", f"{of}/issuers", {**issuer, "jwks_url": "https://idp.example/jwks"})
    api("POST", "/tenants", {"name": "painted"})
    api("PATCH", "/tenants/painted", {"enabled": False, "reason": REASON})
    clients = [Client(fleet.endpoint(TENANT, "wall", node=1), text) for text in TEXTS]
    session = api("GET", f"{of}/sessions")["items"][0]["id"]
    asked = {"session": session, "reason": REASON, "minutes": 30, "payloads": True}
    inspection = api("POST", f"{of}/inspections", asked)["id"]
    for client in clients:
        for tool in (*(text[:128] for text in TEXTS), "fails", "errs"):
            client.call(tool)
    process = api("GET", f"{of}/processes")["items"][0]["id"]
    clients[0].call("dies")
    Client(fleet.endpoint(TENANT, "broken"), TEXTS[0])
    yield {
        "tenants": "/tenants", "overview": of, "backends": f"{of}/backends", "backend": f"{of}/backends/wall",
        "broken": f"{of}/backends/broken", "far": f"{of}/backends/far", "odd": f"{of}/backends/odd",
        "settings": f"{of}/backends/odd/settings", "toolsets": f"{of}/toolsets", "toolset": f"{of}/toolsets/all",
        "new toolset": f"{of}/toolsets:new", "sessions": f"{of}/sessions", "processes": f"{of}/processes",
        "process": f"{of}/processes/{process}", "calls": f"{of}/calls", "sums": f"{of}/calls?by=tool",
        "inspections": f"{of}/inspections", "traffic": f"{of}/inspections/{inspection}", "failures": f"{of}/failures",
        "keys": f"{of}/keys", "key": f"{of}/keys/{made['id']}", "issuers": f"{of}/issuers", "audit": f"{of}/audit",
        "try": f"{of}/backends/wall/try", "asked": f"{of}/calls?tool=" + "%3Cscript%3Ewindow.hit=1%3C/script%3E",
        "platform": "", "painted": "/tenants/painted",
    }  # fmt: skip
    for each in (TENANT, "painted"):
        api("DELETE", f"/tenants/{each}")


def seated(sit_down: Sit, viewport: dict[str, int]) -> Any:
    desk = sit_down("platform", viewport=viewport)
    desk.context.add_init_script(_WATCH)
    desk.page.on("dialog", lambda dialog: desk.complaints.append(f"dialog: {dialog.message}"))
    return desk


def must_be_unharmed(desk: Any, name: str) -> None:
    assert desk.page.evaluate("() => [window.hit, window.violations]") == [0, []], name
    assert desk.complaints == [], name


def test_markup_that_is_no_text_would_be_noticed(sit_down: Sit, pages: dict[str, str]) -> None:
    desk = seated(sit_down, DEEP)
    page = desk.open(pages["backends"])
    page.evaluate("() => { try { document.body.innerHTML = '<b>'; } catch { /* Trusted Types */ } }")
    page.wait_for_function("() => window.violations.length")
    with pytest.raises(AssertionError):
        must_be_unharmed(desk, "backends")
    desk.complaints.clear()


@pytest.mark.parametrize("viewport", [PHONE, DEEP], ids=["phone", "desk"])
def test_every_page_shows_it_as_text_and_keeps_its_form(
    sit_down: Sit, pages: dict[str, str], viewport: dict[str, int]
) -> None:
    desk, wrong = seated(sit_down, viewport), []
    for name, path in pages.items():
        page = desk.open(path)
        page.evaluate("() => document.querySelectorAll('details').forEach((each) => each.open = true)")
        if name == "traffic":
            expect(page.locator(".traffic li").first).to_be_visible()
        if name == "try":
            expect(page.get_by_role("button", name=TEXTS[0]).first).to_be_visible()
        must_be_unharmed(desk, name)
        if desk.is_too_wide():
            wrong.append(f"{name} is too wide: {page.evaluate(_WIDEST)}")
        if page.evaluate(_IS_TURNED):
            wrong.append(f"{name}: something stands on the wrong side")
        if viewport is DEEP and (findings := desk.findings()):
            wrong.append(f"{name}: {findings}")
    assert not wrong, "\n".join(wrong)


_WIDEST = """() => [...document.querySelectorAll("body *")].filter((each) => each.getBoundingClientRect().right >
  document.documentElement.clientWidth + 1 && !each.closest(".scroll, pre")).slice(0, 5).map((each) =>
  each.tagName + "." + each.className + " " + each.textContent.slice(0, 40))"""


@pytest.mark.parametrize("viewport", [PHONE, DEEP], ids=["phone", "desk"])
def test_what_pages_do_shows_it_as_text_too(sit_down: Sit, pages: dict[str, str], viewport: dict[str, int]) -> None:
    desk = seated(sit_down, viewport)
    page = desk.open(pages["backend"])
    page.get_by_role("button", name="Check it").click()
    expect(page.locator("#checked")).to_contain_text("11 tools")
    expect(page.locator("#checked")).to_contain_text("<script>")
    must_be_narrow(desk, "a check")
    page = desk.open(pages["broken"])
    page.get_by_role("button", name="Check it").click()
    expect(page.locator("#checked pre")).to_contain_text("<script>")
    must_be_narrow(desk, "a check that fails")
    page = desk.open(pages["try"])
    for kind, button in (("Tools", "Call"), ("Prompts", "Get it"), ("Resources", "Read it")):
        page.locator(f"#offered h2:text-is('{kind}') + ul").get_by_role("button").nth(1).click()
        page.locator("#work").get_by_role("button", name=button).click()
        expect(page.locator("#outcome")).to_contain_text("<script>")
        must_be_narrow(desk, kind)
    page = desk.open(f"/tenants/{TENANT}/backends:new")
    pasted = {"mcpServers": {text: {"command": text, "args": [text]} for text in TEXTS}}
    page.get_by_label("An mcpServers block").fill(json.dumps(pasted))
    page.get_by_role("button", name="See what it would add").click()
    expect(page.locator("#imported")).to_contain_text("<script>")
    must_be_narrow(desk, "an import")
    page = desk.open(pages["traffic"])
    expect(page.locator(".traffic li").first).to_be_visible()
    for entry in page.locator(".traffic summary").all()[:12]:
        entry.click()
    must_be_narrow(desk, "messages")


def must_be_narrow(desk: Any, name: str) -> None:
    must_be_unharmed(desk, name)
    assert not desk.is_too_wide(), (name, desk.page.evaluate(_WIDEST))
