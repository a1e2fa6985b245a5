"""Parts of pages that are asked for again: what they have, for whom they are shared, and who gets nothing any more."""

import re
import signal
from collections.abc import Iterator

import httpx2
import pytest

from app.console.views import PAGES
from tests.console.browser import Browser
from tests.integration.gateway import ECHO, Endpoint, Gateway, until
from tests.integration.nodes import Nodes
from tests.integration.wire import initialize

_LIVE = re.compile(r'<(?:section|div) id="(\w+)" data-live="(\d+)"')


@pytest.fixture
def browser(gateway: Gateway) -> Iterator[Browser]:
    with Browser(gateway) as browser:
        yield browser


def renewed(browser: Browser, path: str, *parts: str, **headers: str) -> httpx2.Response:
    return browser.page(path, **{"X-Renew": " ".join(parts), **headers})


def inspected(echo: Endpoint) -> str:
    """The id of an inspection of a new session."""
    accept = {"Accept": "application/json, text/event-stream"}
    assert httpx2.post(echo.mcp, json=initialize(), headers={**echo.headers, **accept}, timeout=60).is_success
    session = echo.gateway.api("GET", f"/tenants/{echo.tenant}/sessions?sort=age&limit=200")["items"][-1]
    body = {"session": session["id"], "reason": "renewals"}
    return str(echo.gateway.api("POST", f"/tenants/{echo.tenant}/inspections", body)["id"])


@pytest.mark.parametrize("page", [path for path, _ in PAGES if "{process}" not in path and "{toolset}" not in path])
def test_every_live_part_of_every_page_is_there_alone(browser: Browser, echo: Endpoint, page: str):
    browser.sign_in(browser.gateway.admin_key)
    inspection = inspected(echo) if "{inspection}" in page else ""
    key = echo.gateway.api("GET", f"/tenants/{echo.tenant}/keys")["items"][0]["id"]
    path = page.format(tenant=echo.tenant, backend=echo.name, inspection=inspection, key=key)
    whole = browser.page(path).text
    live = dict(_LIVE.findall(whole))
    assert len(live) == whole.count("data-live=")
    for part in live:
        answer = renewed(browser, path, part)
        assert answer.status_code == 200
        assert dict(_LIVE.findall(answer.text)).keys() == {part}
        assert "csrf" not in answer.text
        assert "<html" not in answer.text
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
    both = renewed(browser, path, *live)
    assert dict(_LIVE.findall(both.text)).keys() == live.keys()


def test_the_charts_come_with_the_renewals_of_an_overview(browser: Browser, echo: Endpoint):
    browser.sign_in(browser.gateway.admin_key)
    path = f"/tenants/{echo.tenant}"
    assert "calls_per_second" not in browser.page(path).text
    assert "calls_per_second" in renewed(browser, path, "chartdata").text
    assert "Node not found" in renewed(browser, path + "?node=unknown", "chartdata").text
    latest = renewed(browser, path, "chartlatest").text
    assert "calls_per_second" in latest
    assert len(latest) < len(renewed(browser, path, "chartdata").text) / 5


def test_what_has_not_changed_is_not_sent_again(browser: Browser, echo: Endpoint):
    browser.sign_in(browser.gateway.admin_key)
    path = f"/tenants/{echo.tenant}/failures"
    for _ in range(5):  # on a busy machine the second request may be too late for what the first was answered with
        first = renewed(browser, path, "now")
        again = renewed(browser, path, "now", **{"If-None-Match": first.headers["etag"]})
        if again.status_code == 304:
            break
    assert (again.status_code, again.content) == (304, b"")


def test_people_of_other_rights_get_what_is_theirs(gateway: Gateway, echo: Endpoint):
    """One after the other, within the time for which a part is shared."""
    path = f"/tenants/{echo.tenant}/backends/{echo.name}"
    with (
        Browser(gateway) as admin,
        Browser(gateway) as reader,
        Browser(gateway) as stranger,
        Browser(gateway) as nobody,
    ):
        admin.sign_in(gateway.key(echo.tenant, ["tenant:admin"]))
        reader.sign_in(gateway.key(echo.tenant, ["tenant:read"]))
        stranger.sign_in(gateway.key(gateway.add_tenant(), ["tenant:admin"]))
        seen = {
            name: renewed(who, path, "state", "offer")
            for name, who in {"admin": admin, "reader": reader, "stranger": stranger, "nobody": nobody}.items()
        }
    assert {name: each.status_code for name, each in seen.items()} == {
        "admin": 200, "reader": 200, "stranger": 404, "nobody": 303,
    }  # fmt: skip
    assert echo.name not in seen["stranger"].text
    assert "data-method" not in seen["reader"].text


async def test_a_revoked_key_gets_nothing_that_is_shared(gateway: Gateway, echo: Endpoint):
    path, bodies = f"/tenants/{echo.tenant}/backends", {"scopes": ["tenant:read"]}
    first, second = (gateway.api("POST", f"/tenants/{echo.tenant}/keys", bodies) for _ in range(2))
    with Browser(gateway) as one, Browser(gateway) as other:
        one.sign_in(first["key"])
        other.sign_in(second["key"])
        assert renewed(one, path, "now").status_code == renewed(other, path, "now").status_code == 200
        gateway.api("DELETE", f"/tenants/{echo.tenant}/keys/{first['id']}")

        def is_out() -> bool:
            assert renewed(other, path, "now").status_code == 200
            return renewed(one, path, "now").status_code == 303

        await until(is_out, 20)


@pytest.mark.parametrize("named", ["main", "body", "../x", "now;csrf", "NOW", "x" * 21, "now" + " now" * 500])
def test_a_name_that_is_none_of_a_part_brings_nothing_strange(browser: Browser, echo: Endpoint, named: str):
    """Such a header is ignored, or nothing has this name."""
    browser.sign_in(browser.gateway.admin_key)
    answer = browser.page(f"/tenants/{echo.tenant}/sessions", **{"X-Renew": named})
    assert answer.status_code == 200
    assert answer.text == "" or "<h1>Sessions</h1>" in answer.text or answer.text.count("<section") == 1


@pytest.mark.parametrize("page", ["/backends", "/keys/{key}"])
async def test_a_node_that_does_not_answer_is_named_where_it_is_missing(own_nodes: Nodes, page: str):
    one, other = own_nodes.all
    endpoint = one.endpoint(ECHO)
    key = one.api("POST", f"/tenants/{endpoint.tenant}/keys", {"scopes": ["mcp:connect"]})["id"]
    with Browser(one) as browser:
        browser.sign_in(one.key(endpoint.tenant, ["tenant:admin"]))
        other.process.send_signal(signal.SIGSTOP)
        try:
            text = browser.page(f"/tenants/{endpoint.tenant}{page.format(key=key)}").text
        finally:
            other.process.send_signal(signal.SIGCONT)
    assert "No answer within a second from" in text
