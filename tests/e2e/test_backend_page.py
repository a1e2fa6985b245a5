"""The page of one backend, and what it says of its sandbox."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import NO_PLAYWRIGHT, Fleet

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
pytestmark = pytest.mark.e2e


def test_it_says_how_the_backend_is_confined_and_what_is_not_enforced_for_which_reason(
    sit_down: Callable[..., Any], fleet: Fleet
) -> None:
    limits: dict[str, Any] = {"memory_mb": None, "pids": 64}
    members = {"sandbox": {"read": ["/srv/<b>zones"]}, "limits": limits}
    fleet.gateway.add_backend("acme", "confined", "/bin/cat", [], **members)
    desk = sit_down("member")
    page = desk.open("/tenants/acme/backends/confined")
    said = page.locator("#confined")
    (report,) = fleet.gateway.api("GET", "/tenants/acme/backends/confined")["sandbox_report"]
    expect(said.get_by_role("heading", name=f"Tier {report['tier']} ({report['name']})")).to_be_visible()
    for node in report["nodes"]:
        expect(said.locator("article")).to_contain_text(node)
    assert report["missing"]["memory"] == "the backend has no such limit"
    for name, why in report["missing"].items():
        row = said.locator(f"article dt:text-is('{name}') + dd")
        expect(row).to_contain_text(f"not enforced {why}")
    for name in report["enforced"]:
        expect(said.locator(f"article dt:text-is('{name}') + dd .ok")).to_have_text("enforced")
    for words in report["weaker"]:
        expect(said.get_by_text(f"Weaker than it sounds: {words}")).to_be_visible()
    expect(said.get_by_text("/srv/<b>zones", exact=True)).to_be_visible()
    assert desk.findings() == []
    fleet.gateway.api("PATCH", "/tenants/acme/backends/confined", {"sandbox": {"mode": "off"}})
    page.reload()
    expect(said.get_by_role("heading", name="Not at all")).to_be_visible()
    expect(said.locator("article .off")).to_have_count(5)
    fleet.gateway.api("DELETE", "/tenants/acme/backends/confined")


def test_what_is_reached_by_url_has_no_sandbox(sit_down: Callable[..., Any], fleet: Fleet) -> None:
    body = {"name": "far", "url": "https://far.example/mcp"}
    fleet.gateway.api("POST", "/tenants/acme/backends", body)
    page = sit_down("member").open("/tenants/acme/backends/far")
    expect(page.get_by_text("https://far.example/mcp", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name="How it is confined")).to_have_count(0)
    fleet.gateway.api("DELETE", "/tenants/acme/backends/far")
