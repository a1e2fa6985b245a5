"""Every page, for everybody, in both schemes, on a phone, by keyboard, and as axe-core sees it."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import Fleet

pytestmark = pytest.mark.e2e

PAGES = {
    "overview": "/tenants/{t}",
    "backends": "/tenants/{t}/backends",
    "backend": "/tenants/{t}/backends/clock",
    "backend-settings": "/tenants/{t}/backends/clock/settings",
    "try": "/tenants/{t}/backends/clock/try",
    "new-backend": "/tenants/{t}/backends:new",
    "toolsets": "/tenants/{t}/toolsets",
    "toolset": "/tenants/{t}/toolsets/all",
    "new-toolset": "/tenants/{t}/toolsets:new",
    "sessions": "/tenants/{t}/sessions",
    "processes": "/tenants/{t}/processes",
    "calls": "/tenants/{t}/calls",
    "inspections": "/tenants/{t}/inspections",
    "failures": "/tenants/{t}/failures",
    "callers": "/tenants/{t}/callers",
    "keys": "/tenants/{t}/keys",
    "issuers": "/tenants/{t}/issuers",
    "audit": "/tenants/{t}/audit",
}
OF_THE_PLATFORM = {"platform": "", "tenants": "/tenants", "nodes": "/nodes"}
_NUMBER_STOPS = """() => {
  let count = 0;
  for (const each of document.querySelectorAll("a[href], button, input, select, textarea, summary")) {
    if (each.checkVisibility() && !each.disabled && each.type !== "hidden") each.dataset.stop = count++;
  }
  return count;
}"""
PHONE = {"width": 390, "height": 844}
MOST_EMPTY = 40  # pixels
_EMPTY_ABOVE_MAIN = """() => document.querySelector("main").getBoundingClientRect().top
    - document.querySelector("nav").lastElementChild.getBoundingClientRect().bottom"""


@pytest.mark.parametrize("role", ["member", "admin", "platform"])
def test_every_page_works_and_axe_core_finds_nothing_serious(
    sit_down: Callable[..., Any], fleet: Fleet, role: str
) -> None:
    desk, found = sit_down(role), {}
    for name, path in {**PAGES, **(OF_THE_PLATFORM if role == "platform" else {})}.items():
        if role == "member" and name in ("audit", "try"):
            continue  # 403: Chromium says so in its console
        page = desk.open(path.format(t=fleet.tenants[0]))
        assert page.locator("h1").count() == 1, name
        found[name] = desk.findings()
    assert {name: findings for name, findings in found.items() if findings} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_phone_in_both_schemes(sit_down: Callable[..., Any], fleet: Fleet, scheme: str) -> None:
    desk, wrong = sit_down("platform", viewport=PHONE, color_scheme=scheme), {}
    for name, path in {**PAGES, **OF_THE_PLATFORM}.items():
        page = desk.open(path.format(t=fleet.tenants[0]))
        if desk.is_too_wide():
            wrong[name] = "too wide"
        if page.evaluate(_EMPTY_ABOVE_MAIN) > MOST_EMPTY:
            wrong[name] = "nothing between the links and the page"
        if findings := desk.findings():
            wrong[name] = findings
    assert wrong == {}


def _renews_nothing(route: Any) -> None:
    if "x-renew" in route.request.headers:
        route.fulfill(status=304)
    else:
        route.continue_()


def test_every_page_can_be_walked_by_keyboard(sit_down: Callable[..., Any], fleet: Fleet) -> None:
    """Tab reaches each link, button and field, shows where it is, and gets out at the end."""
    desk, missed = sit_down("platform"), {}
    desk.page.route("**/console/**", _renews_nothing)  # the walk may take longer than a list stays as it is
    for name, path in {**PAGES, **OF_THE_PLATFORM}.items():
        page = desk.open(path.format(t=fleet.tenants[0]))
        wanted = page.evaluate(_NUMBER_STOPS)
        reached, invisible = set(), []
        for _ in range(wanted + 20):
            page.keyboard.press("Tab")
            stop, outline = page.evaluate(
                "() => [document.activeElement.dataset.stop, getComputedStyle(document.activeElement).outlineStyle]"
            )
            if stop is not None:
                reached.add(int(stop))
                if outline == "none":
                    invisible.append(stop)
        # Of radio buttons one is a stop for all.
        if len(reached) < wanted or invisible:
            missed[name] = (sorted({*range(wanted)} - reached), invisible)
    assert missed == {}
