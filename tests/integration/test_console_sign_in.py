"""Signing in to the console with an identity provider: a real one, over HTTP, and what does not get in."""

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from tests.console.browser import Browser
from tests.console.provider import CLIENT, Provider, provider
from tests.integration.gateway import Gateway, running_gateway, until


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One that may ask this machine for keys."""
    with running_gateway(tmp_path_factory.mktemp("console") / "data", OUTBOUND_ALLOW="127.0.0.0/8") as gateway:
        yield gateway


@pytest.fixture
def idp() -> Iterator[Provider]:
    with provider() as idp:
        yield idp


@pytest.fixture
def tenant(gateway: Gateway, idp: Provider) -> str:
    """A tenant that trusts the provider, whose people are its administrators."""
    tenant = gateway.add_tenant()
    issuer = {
        "issuer": idp.url,
        "algorithms": ["RS256"],
        "discovery_url": idp.url + "/.well-known/openid-configuration",
        "audience": [idp.audience],
        "max_scopes": ["mcp:connect", "tenant:admin"],
        "sign_in": {"client_id": CLIENT},
    }
    gateway.api("POST", f"/tenants/{tenant}/issuers", issuer)
    idp.claims = {"scope": "tenant:admin"}
    return tenant


@pytest.fixture
def browser(gateway: Gateway) -> Iterator[Browser]:
    with Browser(gateway) as browser:
        yield browser


def issuer_of(gateway: Gateway, tenant: str) -> str:
    return str(gateway.api("GET", f"/tenants/{tenant}/issuers")["items"][0]["id"])


def sent_to(browser: Browser, tenant: str) -> str:
    """Where the provider is, for a sign-in that this browser has begun."""
    asked = {"tenant": tenant, "issuer": issuer_of(browser.gateway, tenant), "to": f"/console/tenants/{tenant}/keys"}
    answer = browser.http.get("/console/sign-in/with", params=asked)
    assert answer.status_code == 303
    return answer.headers["location"]


def sent_back(url: str) -> str:
    return httpx2.get(url).headers["location"]


def test_a_person_signs_in(browser: Browser, tenant: str, idp: Provider):
    form = browser.http.get("/console/sign-in", params={"tenant": tenant})
    assert f"/console/sign-in/with?tenant={tenant}" in form.text
    url = sent_to(browser, tenant)
    assert url.startswith(idp.url + "/authorize?")
    back = browser.http.get(sent_back(url))
    assert back.status_code == 200
    assert f"/console/tenants/{tenant}/keys" in back.text
    page = browser.page(f"/tenants/{tenant}/keys")
    assert page.status_code == 200
    assert "alice" in page.text
    made = browser.rest("POST", f"/api/v1/tenants/{tenant}/keys", {"scopes": ["mcp:connect"]})
    assert made.status_code == 201


def test_what_the_token_may_not_the_person_may_not(browser: Browser, tenant: str, idp: Provider):
    idp.claims = {"scope": "mcp:connect"}
    browser.http.get(sent_back(sent_to(browser, tenant)))
    assert browser.page(f"/tenants/{tenant}/keys").status_code == 200
    assert browser.rest("GET", f"/api/v1/tenants/{tenant}/keys").status_code == 403


async def test_the_session_ends_with_the_token(browser: Browser, tenant: str, idp: Provider):
    idp.lifetime_s = 10  # on a busy machine it takes some seconds to get in with it
    browser.http.get(sent_back(sent_to(browser, tenant)))
    assert browser.page(f"/tenants/{tenant}/backends").status_code == 200
    await until(lambda: browser.page(f"/tenants/{tenant}/backends").status_code == 303, 90.0)


def test_an_answer_to_another_browsers_sign_in_is_nothing(browser: Browser, tenant: str):
    """An attacker's code, or one that was stolen, in somebody else's browser."""
    back = sent_back(sent_to(browser, tenant))
    with Browser(browser.gateway) as other:
        refused = other.http.get(back)
        assert refused.status_code == 403
        assert "set-cookie" not in refused.headers
        sent_to(other, tenant)
        assert other.http.get(back).status_code == 403


def test_a_code_is_good_once_and_only_with_its_state(browser: Browser, tenant: str):
    back = sent_back(sent_to(browser, tenant))
    state = parse_qs(urlsplit(back).query)["state"][0]
    assert browser.http.get(back.replace(state, "A" * len(state))).status_code == 403
    assert browser.http.get(back).status_code == 200
    assert browser.http.get(back).status_code == 403


def test_what_the_provider_says_is_shown_as_text(browser: Browser, tenant: str):
    state = parse_qs(urlsplit(sent_to(browser, tenant)).query)["state"][0]
    said = {"state": state, "error": "access_denied", "error_description": "<script>no</script>"}
    answer = browser.http.get("/console/sign-in/done", params=said)
    assert answer.status_code == 403
    assert "&lt;script&gt;no" in answer.text


def test_an_answer_of_another_provider_is_refused(browser: Browser, tenant: str):
    back = sent_back(sent_to(browser, tenant))
    changed = str(httpx2.URL(back).copy_set_param("iss", "https://evil.example"))
    assert browser.http.get(changed).status_code == 403


def test_a_tenant_without_a_provider_and_one_that_does_not_exist_look_alike(browser: Browser):
    words = [
        browser.http.get("/console/sign-in", params={"tenant": each}).text.replace(each, "X")
        for each in (browser.gateway.add_tenant(), "nobody-there")
    ]
    assert words[0] == words[1]


def test_an_issuer_without_sign_in_is_no_way_in(browser: Browser, tenant: str):
    issuer = issuer_of(browser.gateway, tenant)
    browser.gateway.api("PATCH", f"/tenants/{tenant}/issuers/{issuer}", {"sign_in": None})
    answer = browser.http.get("/console/sign-in/with", params={"tenant": tenant, "issuer": issuer})
    assert answer.status_code == 422


def test_beginning_is_limited_by_address(browser: Browser, tenant: str):
    asked = {"tenant": tenant, "issuer": "0123456789abcdef"}
    found = {browser.http.get("/console/sign-in/with", params=asked).status_code for _ in range(80)}
    assert found == {422, 429}
