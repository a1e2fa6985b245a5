"""A real OpenID provider behind a tenant's authorization server: who is switched off there is out here."""

import json
import re
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from app.console.issuer_sign_in import DONE
from tests.auth.test_client_keys import ED, P256, pem, public
from tests.auth.test_jwks import RSA
from tests.console.browser import Browser
from tests.integration.clocks import Clock
from tests.integration.gateway import ECHO, ROOT, Endpoint, Gateway
from tests.integration.person import Person, Program
from tests.integration.test_sign_in import asked, connections

pytestmark = pytest.mark.node
CLIENT = "trunkline"
PEOPLE = "app.auth.authorization.people"  # by whose clock a provider is asked again


class Clocked(Gateway):
    """A gateway whose clock for asking providers again can be moved."""

    def __init__(self, directory: Path) -> None:
        self._clock = Clock(directory / "seconds", [PEOPLE])
        self.FIRST = self._clock.first
        super().__init__(directory / "data", OUTBOUND_ALLOW="127.0.0.0/8")

    def is_later(self, minutes: int) -> None:
        self._clock.is_ahead(60 * minutes)


@pytest.fixture(scope="module")
def clocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clocked]:
    gateway = Clocked(tmp_path_factory.mktemp("provider"))
    try:
        yield gateway
        gateway.stop()
    finally:
        gateway.close()


class Provider:
    """`tests/npm/provider.mjs`, which runs."""

    def __init__(self, url: str, secret: str) -> None:
        self.url, self.secret = url, secret
        self.has(alice=["people"])

    def has(self, **accounts: list[str]) -> None:
        """These people with their groups, and nobody else."""
        assert httpx2.post(self.url + "/test/accounts", content=json.dumps(accounts)).status_code == 200

    def asked(self) -> list[tuple[str, int]]:
        """What it was asked for tokens, and the status that it has answered with."""
        return [(kind, status) for kind, status in httpx2.post(self.url + "/test/tokens").json()]

    def issuer(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "algorithms": ["RS256"],
            "discovery_url": self.url + "/.well-known/openid-configuration",
            "audience": [CLIENT],
            "max_scopes": ["mcp:connect"],
            "claims": {"groups": "groups", "map": {"people": ["mcp:connect"]}},
            "sign_in": {
                "client_id": CLIENT,
                "client_secret": self.secret,
                "scope": "openid offline_access",
                "token": "id_token",
            },
        }


@contextmanager
def provider(gateway: Gateway, key: Any = None) -> Iterator[Provider]:
    """With a key the client of the gateway signs who it is."""
    secret = secrets.token_urlsafe(32) if key is None else pem(key)
    command = ["node", str(ROOT / "tests/npm/provider.mjs"), CLIENT, secret, gateway.url + DONE]
    if key is not None:
        command[3:] = ["", gateway.url + DONE, public(key)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Provider(process.stdout.readline().strip(), secret)
        finally:
            process.kill()


class AtTheProvider(Person):
    """Signs in there with a name, on the way of a program."""

    def __init__(self, browser: Browser, endpoint: Endpoint, issuer_id: str, name: str = "alice") -> None:
        super().__init__(browser, "")
        self._endpoint, self._issuer_id, self._name = endpoint, issuer_id, name

    def _signed_in(self, form: str) -> httpx2.Response:
        assert "/console/sign-in/with" in self.browser.http.get(form).text
        to = httpx2.URL(form).params["to"]
        asked_for = {"tenant": self._endpoint.tenant, "issuer": self._issuer_id, "to": to}
        url = self.browser.http.get("/console/sign-in/with", params=asked_for).headers["location"]
        with httpx2.Client(timeout=30) as there:
            page = there.get(url, follow_redirects=True)
            assert 'name="login"' in page.text, page.text
            answer = there.post(str(page.url), data={"login": self._name})
            while urlsplit(location := answer.headers["location"]).path != DONE:
                answer = there.get(location)
        back = self.browser.http.get(location)  # a page that goes on by itself: cookies of SameSite=Strict
        assert back.status_code == 200, back.text
        return self.browser.http.get(to)


@pytest.fixture
def idp(clocked: Clocked) -> Iterator[Provider]:
    clocked.is_later(0)
    with provider(clocked) as idp:
        yield idp


@pytest.fixture
def endpoint(clocked: Clocked) -> Endpoint:
    endpoint = clocked.endpoint(ECHO)
    clocked.api("PATCH", f"/tenants/{endpoint.tenant}", {"sign_in": {}})
    return endpoint


@pytest.fixture
def program(clocked: Clocked, endpoint: Endpoint) -> Iterator[Program]:
    with httpx2.Client(timeout=30) as http:
        yield Program(http, f"{clocked.url}/oauth/{endpoint.tenant}", endpoint.mcp)


@pytest.fixture
def person(clocked: Clocked, endpoint: Endpoint, idp: Provider) -> Iterator[Person]:
    made = clocked.api("POST", f"/tenants/{endpoint.tenant}/issuers", idp.issuer())
    with Browser(clocked) as browser:
        yield AtTheProvider(browser, endpoint, made["id"])


def test_who_is_switched_off_at_the_provider_has_no_connection_ten_minutes_later(
    clocked: Clocked, endpoint: Endpoint, program: Program, person: Person, idp: Provider
) -> None:
    tokens = program.connected(person)
    assert asked(endpoint, tokens["access_token"]).status_code == 200
    for minutes in (11, 22):  # the provider's refresh token is another one each time
        clocked.is_later(minutes)
        for _ in range(2):
            tokens = program.refresh(tokens["refresh_token"]).json()
    assert idp.asked() == [("authorization_code", 200), ("refresh_token", 200), ("refresh_token", 200)]
    idp.has(bob=["people"])
    clocked.is_later(31)
    answer = program.refresh(tokens["refresh_token"])
    assert answer.status_code == 200, answer.text
    clocked.is_later(33)
    refused = program.refresh(answer.json()["refresh_token"])
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_grant")
    assert idp.asked()[3:] == [("refresh_token", 400)]
    assert connections(endpoint) == []
    assert asked(endpoint, answer.json()["access_token"]).status_code == 401


def test_who_is_in_no_group_any_more_gets_no_token_until_they_are_again(
    clocked: Clocked, endpoint: Endpoint, program: Program, person: Person, idp: Provider
) -> None:
    tokens = program.connected(person)
    idp.has(alice=["others"])
    clocked.is_later(11)
    refused = program.refresh(tokens["refresh_token"])
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_grant")
    idp.has(alice=["people"])
    clocked.is_later(22)
    again = program.refresh(tokens["refresh_token"])
    assert again.status_code == 200, again.text
    assert asked(endpoint, again.json()["access_token"]).status_code == 200


def test_a_provider_that_does_not_answer_is_trusted_for_an_hour(
    clocked: Clocked, endpoint: Endpoint, program: Program
) -> None:
    clocked.is_later(0)
    with provider(clocked) as idp, Browser(clocked) as browser:
        made = clocked.api("POST", f"/tenants/{endpoint.tenant}/issuers", idp.issuer())
        tokens = program.connected(AtTheProvider(browser, endpoint, made["id"]))
    clocked.is_later(50)
    kept = program.refresh(tokens["refresh_token"])
    assert kept.status_code == 200, kept.text
    clocked.is_later(61)
    refused = program.refresh(kept.json()["refresh_token"])
    assert (refused.status_code, refused.json()["reason"]) == (503, "provider_unavailable")
    assert int(refused.headers["retry-after"]) >= 30
    assert [each["subject"] for each in connections(endpoint)] == ["alice"]  # it may answer again


@pytest.mark.parametrize("key", [RSA, P256, ED], ids=["RSA", "P-256", "Ed25519"])
def test_a_key_in_the_place_of_the_secret_signs_people_in_and_asks_for_them_again(
    clocked: Clocked, endpoint: Endpoint, program: Program, key: Any
) -> None:
    clocked.is_later(0)
    with provider(clocked, key) as idp, Browser(clocked) as browser:
        made = clocked.api("POST", f"/tenants/{endpoint.tenant}/issuers", idp.issuer())
        tokens = program.connected(AtTheProvider(browser, endpoint, made["id"]))
        for minutes in (11, 22):
            clocked.is_later(minutes)
            tokens = program.refresh(tokens["refresh_token"]).json()
            assert asked(endpoint, tokens["access_token"]).status_code == 200
        assert idp.asked() == [("authorization_code", 200), ("refresh_token", 200), ("refresh_token", 200)]
        other = {"sign_in": {"client_secret": pem(ec.generate_private_key(ec.SECP256R1()))}}
        clocked.api("PATCH", f"/tenants/{endpoint.tenant}/issuers/{made['id']}", other)
        with pytest.raises(AssertionError, match="has not let you in"):
            AtTheProvider(browser, endpoint, made["id"])._signed_in(
                f"/console/sign-in?to=/console&tenant={endpoint.tenant}"
            )
        assert idp.asked()[3:] == [("authorization_code", 401)]


def test_who_is_not_let_in_there_is_told_so(clocked: Clocked, endpoint: Endpoint, idp: Provider) -> None:
    wrong = {**idp.issuer(), "sign_in": {**idp.issuer()["sign_in"], "client_secret": "of-another"}}
    made = clocked.api("POST", f"/tenants/{endpoint.tenant}/issuers", wrong)
    with Browser(clocked) as browser, pytest.raises(AssertionError, match="has not let you in"):
        AtTheProvider(browser, endpoint, made["id"])._signed_in(
            "/console/sign-in?to=/console&tenant=" + endpoint.tenant
        )
    assert re.search("authorization_code.*401", str(idp.asked()))
