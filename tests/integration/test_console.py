"""The console without a browser: who gets in, what the cookie is good for, and that it may do only what REST allows."""

import re
from collections.abc import Iterator

import httpx2
import pytest

from tests.console.browser import Browser
from tests.integration.gateway import Endpoint, Gateway, until
from tests.integration.nodes import Nodes

PAGES = (
    "", "/tenants/{t}", "/tenants/{t}/backends", "/tenants/{t}/backends/{b}", "/tenants/{t}/backends:new",
    "/tenants/{t}/backends/{b}/try",
    "/tenants/{t}/toolsets", "/tenants/{t}/toolsets:new", "/tenants/{t}/sessions", "/tenants/{t}/processes",
    "/tenants/{t}/failures",
    "/tenants/{t}/callers",
    "/tenants/{t}/calls", "/tenants/{t}/inspections", "/tenants/{t}/keys", "/tenants/{t}/issuers", "/tenants/{t}/audit",
)  # fmt: skip
OF_THE_PLATFORM = ("/tenants", "/nodes")


@pytest.fixture
def browser(gateway: Gateway) -> Iterator[Browser]:
    with Browser(gateway) as browser:
        yield browser


def test_somebody_who_has_not_signed_in_sees_the_form_and_comes_back(browser: Browser, echo: Endpoint):
    wanted = f"/tenants/{echo.tenant}/backends?limit=5"
    answer = browser.page(wanted)
    assert answer.status_code == 303
    form = browser.http.get(answer.headers["location"])
    assert form.status_code == 200
    to = re.search(r'name="to" value="([^"]*)"', form.text)
    assert to is not None
    done = browser.sign_in(echo.gateway.key(echo.tenant, ["tenant:admin"]), to[1])
    assert (done.status_code, done.headers["location"]) == (303, "/console" + wanted)
    assert browser.page(wanted).status_code == 200


ELSEWHERE = (
    "//evil.example",
    "https://evil.example",
    "/console/../x",
    "/t/x",
    "/console\\x",
    "/console/-/t",
    "/consolex",
)


def test_signing_in_again_ends_the_earlier_session(browser: Browser):
    browser.sign_in(browser.gateway.admin_key)
    earlier = browser.http.cookies["trunkline-console"]
    browser.sign_in(browser.gateway.admin_key)
    assert browser.page().status_code == 200
    assert browser.http.cookies["trunkline-console"] != earlier
    with Browser(browser.gateway) as stolen:
        stolen.http.cookies.set("trunkline-console", earlier)
        assert stolen.page().status_code == 303


@pytest.mark.parametrize("to", ELSEWHERE)
def test_nobody_is_sent_elsewhere_after_signing_in(browser: Browser, to: str):
    answer = browser.sign_in(browser.gateway.admin_key, to)
    where = answer.headers["location"]
    assert where == "/console"


def test_a_wrong_key_is_refused_in_words(browser: Browser):
    answer = browser.sign_in("tlk_AAAAAAAA_" + "A" * 54)
    assert answer.status_code == 401
    assert 'role="alert"' in answer.text
    assert "set-cookie" not in answer.headers


def test_the_cookie_is_for_scripts_and_other_sites_of_no_use(browser: Browser):
    cookie = browser.sign_in(browser.gateway.admin_key).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert browser.gateway.admin_key not in cookie


@pytest.mark.parametrize("path", [*PAGES, *OF_THE_PLATFORM])
def test_every_page_is_shown_and_locked_down(browser: Browser, echo: Endpoint, path: str):
    browser.sign_in(browser.gateway.admin_key)
    answer = browser.page(path.format(t=echo.tenant, b=echo.name))
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["cache-control"] == "no-store"
    assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", answer.text)


@pytest.mark.parametrize("path", [*PAGES, *OF_THE_PLATFORM])
def test_what_rest_refuses_is_not_shown(browser: Browser, echo: Endpoint, path: str):
    """To an administrator of another tenant: as if there were no such tenant."""
    if not path:
        pytest.skip("everybody has a first page")
    stranger = browser.gateway.key(browser.gateway.add_tenant(), ["tenant:admin"])
    browser.sign_in(stranger)
    answer = browser.page(path.format(t=echo.tenant, b=echo.name))
    assert "Tenant not found" in answer.text or answer.status_code in (403, 404)
    assert echo.name not in answer.text


def test_a_member_sees_why_a_part_is_missing(browser: Browser, echo: Endpoint):
    browser.sign_in(browser.gateway.key(echo.tenant, ["tenant:read"]))
    answer = browser.page(f"/tenants/{echo.tenant}/audit")
    assert answer.status_code == 403
    assert "audit:read" in answer.text or "insufficient" in answer.text.lower()
    shown = browser.page(f"/tenants/{echo.tenant}/backends/{echo.name}")
    assert 'data-method="DELETE"' not in shown.text


def test_requests_to_rest_are_those_of_the_person(browser: Browser, echo: Endpoint):
    browser.sign_in(browser.gateway.key(echo.tenant, ["tenant:admin"]))
    assert browser.rest("GET", f"/api/v1/tenants/{echo.tenant}/keys").status_code == 200
    assert browser.rest("GET", "/api/v1/nodes").status_code == 403
    made = browser.rest("POST", f"/api/v1/tenants/{echo.tenant}/keys", {"name": "by hand", "scopes": ["mcp:connect"]})
    assert made.status_code == 201
    assert (
        browser.rest("POST", f"/api/v1/tenants/{echo.tenant}/keys", {"scopes": ["platform:admin"]}).status_code == 422
    )


def test_an_mcp_client_in_the_page(browser: Browser, echo: Endpoint):
    browser.sign_in(browser.gateway.key(echo.tenant, ["mcp:connect"]))
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    accept = {"Accept": "application/json, text/event-stream"}
    answer = browser.rest("POST", f"/t/{echo.tenant}/{echo.name}/mcp", message, **accept)
    assert answer.status_code == 200
    session = {"Mcp-Session-Id": answer.headers["mcp-session-id"]}
    assert browser.rest("DELETE", f"/t/{echo.tenant}/{echo.name}/mcp", **session).status_code == 204


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"X-CSRF-Token": "0" * 64},
        {"X-CSRF-Token": ""},
    ],
)
def test_a_change_that_another_site_asks_for_is_refused(browser: Browser, echo: Endpoint, headers: dict[str, str]):
    browser.sign_in(browser.gateway.admin_key)
    path = f"/api/v1/tenants/{echo.tenant}/keys"
    before = len(browser.rest("GET", path).json()["items"])
    assert browser.rest("POST", path, {"scopes": ["mcp:connect"]}, **headers).status_code == 403
    assert len(browser.rest("GET", path).json()["items"]) == before


@pytest.mark.parametrize("headers", [{}, {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}])
def test_a_get_that_opens_a_session_needs_the_token_too(browser: Browser, echo: Endpoint, headers: dict[str, str]):
    """A picture of a page on another port of this host brings the cookie, and no Origin."""
    browser.sign_in(browser.gateway.key(echo.tenant, ["tenant:admin"]))
    path = f"/console/-/t/{echo.tenant}/{echo.name}/sse"
    with browser.http.stream("GET", path, headers=headers) as refused:
        assert refused.status_code == 403
    with browser.http.stream("GET", path, headers={"X-CSRF-Token": browser.csrf}) as answer:
        assert answer.status_code == 200
        assert next(answer.iter_lines()) == "event: endpoint"


def test_the_token_of_one_session_is_of_no_use_in_another(gateway: Gateway, echo: Endpoint):
    with Browser(gateway) as mine, Browser(gateway) as theirs:
        mine.sign_in(gateway.admin_key)
        theirs.sign_in(gateway.admin_key)
        path = f"/api/v1/tenants/{echo.tenant}/keys"
        refused = mine.rest("POST", path, {"scopes": ["mcp:connect"]}, **{"X-CSRF-Token": theirs.csrf})
        assert refused.status_code == 403


def test_signing_in_from_another_site_is_refused(browser: Browser):
    answer = browser.sign_in(browser.gateway.admin_key, Origin="https://evil.example")
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_a_session_that_somebody_else_has_set_is_not_taken_over(browser: Browser):
    """Signing in makes another cookie, whatever there was."""
    browser.sign_in(browser.gateway.admin_key)
    first = browser.http.cookies["trunkline-console"]
    browser.sign_in(browser.gateway.admin_key)
    assert browser.http.cookies["trunkline-console"] != first
    answer = httpx2.get(
        browser.gateway.url + "/console", headers={"Cookie": f"trunkline-console={first}; trunkline-console={first}"}
    )
    assert answer.status_code == 303


def test_after_signing_out_the_cookie_is_of_no_use(browser: Browser):
    browser.sign_in(browser.gateway.admin_key)
    stolen = browser.http.cookies["trunkline-console"]
    gone = browser.http.post("/console/sign-out", data={"csrf": browser.csrf}, headers=browser.from_here)
    assert gone.status_code == 303
    with Browser(browser.gateway) as thief:
        thief.http.cookies.set("trunkline-console", stolen)
        assert thief.page().status_code == 303
        assert thief.http.get("/console/-/api/v1/me").status_code == 401


async def test_a_session_ends_with_its_key(browser: Browser, echo: Endpoint):
    made = browser.gateway.api("POST", f"/tenants/{echo.tenant}/keys", {"scopes": ["tenant:admin"]})
    browser.sign_in(made["key"])
    assert browser.page().status_code == 200
    browser.gateway.api("DELETE", f"/tenants/{echo.tenant}/keys/{made['id']}")
    await until(lambda: browser.page().status_code == 303, 20)
    assert browser.http.get("/console/-/api/v1/me").status_code == 401


@pytest.mark.parametrize("path", ["/metrics", "/livez", "/internal/x", "/api/docs", "/console", "//t/x/y/mcp"])
def test_only_rest_and_mcp_are_behind_the_passage(browser: Browser, path: str):
    browser.sign_in(browser.gateway.admin_key)
    assert browser.http.get("/console/-" + path).status_code in (404, 400)


def test_a_cookie_that_was_made_up_is_nothing(browser: Browser):
    for made_up in ("", "x", "A" * 64, "A" * 5000, "%00", "ä".encode().decode("latin-1")):
        answer = httpx2.get(
            browser.gateway.url + "/console", headers=[(b"cookie", b"trunkline-console=" + made_up.encode("latin-1"))]
        )
        assert answer.status_code == 303


def test_hostile_words_are_only_words(browser: Browser):
    tenant, words = browser.gateway.add_tenant(), "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    browser.gateway.api("POST", f"/tenants/{tenant}/keys", {"name": words, "scopes": ["mcp:connect"]})
    browser.gateway.api(
        "POST", f"/tenants/{tenant}/backends", {"name": "odd", "command": "/bin/false", "args": [words]}
    )
    browser.sign_in(browser.gateway.admin_key)
    for path in ("keys", "backends", "backends/odd", "audit"):
        text = browser.page(f"/tenants/{tenant}/{path}").text
        assert "&lt;script&gt;" in text or "\\u003cscript" in text
        assert "<script>alert" not in text
        assert "<img src=x" not in text


def test_scripts_and_styles_are_kept_by_browsers(browser: Browser):
    form = browser.http.get("/console/sign-in").text
    (style,) = re.findall(r'href="(/console/assets/[0-9a-f]{16}/console.css)"', form)
    answer = browser.http.get(style)
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert "immutable" in answer.headers["cache-control"]
    older = browser.http.get(re.sub(r"[0-9a-f]{16}", "0" * 16, style))
    assert (older.status_code, older.headers["cache-control"]) == (200, "no-store")
    assert browser.http.get(style.replace("console.css", "..%2fsite.py")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/sign-in", 405), ("GET", "/sign-out", 404), ("POST", "/assets/0/console.css", 405),
        ("GET", "/assets/0/none", 404), ("GET", "/assets/0/mark.svg", 200), ("GET", "/none", 404),
        ("TRACE", "/none", 405), ("DELETE", "", 405), ("GET", "", 304),
    ],
)  # fmt: skip
def test_every_other_answer_is_locked_down_too(browser: Browser, method: str, path: str, status: int):
    browser.sign_in(browser.gateway.admin_key)
    renew = {"X-Renew": "now"} if status == 304 else {}
    for _ in range(5):  # on a busy machine the second request may be too late for what the first was answered with
        tag = {"If-None-Match": browser.page(**renew).headers["etag"]} if renew else {}
        answer = browser.http.request(method, "/console" + path, headers={**browser.from_here, **renew, **tag})
        if answer.status_code == status:
            break
    assert answer.status_code == status
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_session_is_one_on_every_node(nodes: Nodes):
    first, second, *_ = nodes.all
    with Browser(first) as here, Browser(second) as there:
        here.sign_in(first.admin_key)
        there.http.cookies.set("trunkline-console", here.http.cookies["trunkline-console"])
        assert there.page("/nodes").status_code == 200
        here.http.post("/console/sign-out", data={"csrf": here.csrf}, headers=here.from_here)
        assert here.page("/nodes").status_code == 303
        await until(lambda: there.page("/nodes").status_code == 303, 15.0)
