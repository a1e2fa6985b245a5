"""Through the console everybody may what REST allows them: every route and page, for every role, here and elsewhere."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx2
import pytest

from app.console.views import PAGES
from tests.console.browser import Browser
from tests.integration.gateway import ECHO, ROOT, Endpoint, Gateway, running_gateway

UNKNOWN = {
    "backend": "unknown", "toolset": "unknown", "guide": "unknown", "recipe": "unknown", "key": "AAAAAAAA",
    "issuer": "0123456789abcdef", "session": "0123456789ab", "process": "0123456789abcdef",
    "inspection": "0123456789abcdef",
    "message": "1", "client": "unknown", "connection": "0123456789abcdef",
}  # fmt: skip
ROLES: dict[str, list[str]] = {
    "caller": ["mcp:connect"],
    "reader": ["tenant:read"],
    "auditor": ["audit:read"],
    "administrator": ["tenant:admin"],
    "platform": ["platform:admin"],
}
DELETES_ALL = {("DELETE", "/api/v1/tenants/{tenant}")}


@dataclass(frozen=True)
class Two:
    """Somebody who asks REST with a key, and somebody of the same rights at the console."""

    rest: httpx2.Client
    console: Browser


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for these tests: some of their requests change it."""
    with running_gateway(tmp_path_factory.mktemp("permissions") / "data") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def echo(gateway: Gateway) -> Endpoint:
    return gateway.endpoint(ECHO)


@pytest.fixture(params=ROLES)
def two(request: pytest.FixtureRequest, gateway: Gateway, echo: Endpoint) -> Iterator[Two]:
    scopes = ROLES[request.param]
    tenant = "default" if "platform:admin" in scopes else echo.tenant
    first, second = gateway.key(tenant, scopes), gateway.key(tenant, scopes)
    headers = {"Authorization": f"Bearer {first}"}
    with Browser(gateway) as browser, httpx2.Client(base_url=gateway.url, headers=headers, timeout=30) as rest:
        assert browser.sign_in(second).status_code == 303
        yield Two(rest, browser)


def routes() -> list[tuple[str, str]]:
    document = json.loads((ROOT / "docs/openapi.json").read_text())
    return [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]


@pytest.mark.parametrize("where", ["own", "other", "unknown"])
def test_every_route_answers_the_same_through_the_console(two: Two, echo: Endpoint, gateway: Gateway, where: str):
    tenant = {"own": echo.tenant, "other": gateway.add_tenant(), "unknown": "unknown"}[where]
    sent = {**two.console.from_here, "X-CSRF-Token": two.console.csrf}
    for method, path in routes():
        if (method, path) in DELETES_ALL and where != "unknown":
            continue
        url = path.format(**UNKNOWN, tenant=tenant)
        body: object = None if method in ("GET", "DELETE") else {}
        direct = two.rest.request(method, url, json=body)
        through = two.console.http.request(method, "/console/-" + url, json=body, headers=sent)
        assert through.status_code == direct.status_code, (method, url, through.text)
        if direct.status_code >= 400:
            assert through.json()["reason"] == direct.json()["reason"], (method, url)


def test_a_page_shows_nothing_of_what_rest_refuses(two: Two, gateway: Gateway):
    """A page is refused with what REST says, or says in the place of each part that it is refused."""
    other = gateway.add_tenant()
    gateway.add_backend(other, "theirs", "/bin/their-secret-command")
    names = {**UNKNOWN, "backend": "theirs", "tenant": other}
    if two.rest.get(f"/api/v1/tenants/{other}/backends").status_code == 200:
        return
    for path, _ in PAGES:
        if "{tenant}" in path:
            answer = two.console.page(path.format(**names))
            assert answer.status_code in (403, 404) or "Tenant not found" in answer.text, path
            assert "their-secret-command" not in answer.text, path


def test_without_rights_there_are_no_buttons(two: Two, echo: Endpoint):
    """What is offered is what REST would allow: nothing is offered to those who may only look."""
    me = two.rest.get(f"/api/v1/tenants/{echo.tenant}/me").json()
    manages = me["is_platform_admin"] or "tenant:admin" in me["may"]
    text = two.console.page(f"/tenants/{echo.tenant}/backends/{echo.name}").text
    assert bool(re.search(r'data-method="(POST|PATCH|DELETE)"', text)) == manages


@pytest.mark.parametrize("more", [["mcp:connect:time"], ["audit:read"]])
def test_whoever_may_read_is_led_to_no_page_that_is_refused(gateway: Gateway, echo: Endpoint, more: list[str]):
    """The key of the demo, for one."""
    with Browser(gateway) as browser:
        browser.sign_in(gateway.key(echo.tenant, ["tenant:read", *more]))
        text = browser.page(f"/tenants/{echo.tenant}/backends/{echo.name}").text
        pages = re.findall(r'<li><a href="([^"]*)"', text)
        assert len(pages) >= 10
        assert {browser.http.get(page).status_code for page in pages} == {200}
    assert any(page.endswith("/audit") for page in pages) == ("audit:read" in more)


@pytest.mark.parametrize(
    ("scopes", "tries"),
    [
        (["tenant:read"], False),
        (["tenant:read", "mcp:connect:another"], False),
        (["tenant:read", "mcp:connect:{name}"], True),
        (["tenant:read", "mcp:connect"], True),
        (["tenant:admin"], True),
    ],
)
def test_whoever_may_connect_is_led_to_the_page_that_tries_tools(
    gateway: Gateway, echo: Endpoint, scopes: list[str], tries: bool
):
    key = gateway.key(echo.tenant, [scope.format(name=echo.name) for scope in scopes])
    with Browser(gateway) as browser:
        browser.sign_in(key)
        text = browser.page(f"/tenants/{echo.tenant}/backends/{echo.name}").text
    assert (f"/backends/{echo.name}/try" in text) == tries
