"""Connecting by the address alone: a tenant's own authorization server, over a real gateway and real clients."""

import json
import ssl
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import jwt
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.certificates import self_signed
from tests.console.browser import Browser
from tests.console.provider import CLIENT, Provider, provider
from tests.integration.gateway import ECHO, Endpoint, Gateway, running_gateway, until
from tests.integration.person import HERE, Kept, Person, Program, sdk_client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sign-in")


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator["Site"]:
    """Where a program has its metadata document, by https."""
    certificate, key = self_signed(folder, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with Site(context) as site:
        yield site


@pytest.fixture(scope="module")
def gateway(folder: Path, site: "Site") -> Iterator[Gateway]:
    outward = {"OUTBOUND_ALLOW": "127.0.0.0/8", "OUTBOUND_CA": str(folder / "certificate.pem")}
    with running_gateway(folder / "data", **outward) as gateway:
        yield gateway


class Site:
    """A web server with one document, which says what it is told."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.document: dict[str, Any] = {}
        self.asked = 0
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked += 1
                body = json.dumps(site.document).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.base = f"https://localhost:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> "Site":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def endpoint(gateway: Gateway) -> Endpoint:
    """A backend of a tenant that has an authorization server."""
    endpoint = gateway.endpoint(ECHO)
    gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"sign_in": {}})
    return endpoint


@pytest.fixture
def browser(gateway: Gateway) -> Iterator[Browser]:
    with Browser(gateway) as browser:
        yield browser


@pytest.fixture
def person(browser: Browser, endpoint: Endpoint) -> Person:
    return Person(browser, endpoint.key)


@pytest.fixture
def program(gateway: Gateway, endpoint: Endpoint) -> Iterator[Program]:
    with httpx2.Client(timeout=30) as http:
        yield Program(http, f"{gateway.url}/oauth/{endpoint.tenant}", endpoint.mcp)


def asked(endpoint: Endpoint, token: str, path: str = "/mcp") -> httpx2.Response:
    """`tools/list` of 2026-07-28 with this token."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "by hand", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    headers = {
        "Authorization": f"Bearer {token}",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/list",
    }
    return httpx2.post(endpoint.base + path, json=body, headers=headers, timeout=30)


def connections(endpoint: Endpoint) -> list[dict[str, str]]:
    found: list[dict[str, str]] = endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/connections")["items"]
    return found


async def test_the_official_client_needs_the_address_alone(endpoint: Endpoint, person: Person):
    kept = Kept()
    for _ in range(2):  # the second start goes on with what the program has kept
        auth = sdk_client(endpoint.mcp, person, kept)
        async with (
            httpx2.AsyncClient(auth=auth, timeout=30) as http,
            Client(streamable_http_client(endpoint.mcp, http_client=http)) as client,
        ):
            assert (await client.list_tools()).tools
    assert len(person.pages) == 1
    assert "A program on your machine" in person.pages[0]
    assert "A test" in person.pages[0]
    assert [each["client_title"] for each in connections(endpoint)] == ["A test"]


async def test_a_program_with_a_metadata_document_needs_no_registration(
    gateway: Gateway, endpoint: Endpoint, person: Person, site: Site
):
    client_id = f"{site.base}/client.json"
    site.document = {"client_id": client_id, "client_name": "Documented", "redirect_uris": [HERE]}
    auth = sdk_client(endpoint.mcp, person, Kept(), client_metadata_url=client_id)
    async with (
        httpx2.AsyncClient(auth=auth, timeout=30) as http,
        Client(streamable_http_client(endpoint.mcp, http_client=http)) as client,
    ):
        assert (await client.list_tools()).tools
    assert site.asked == 1
    assert "Connect localhost?" in person.pages[0]
    assert [each["client_id"] for each in connections(endpoint)] == [client_id]
    assert gateway.api("GET", f"/tenants/{endpoint.tenant}/clients")["items"] == []


def test_consent_is_remembered_for_https_addresses_only(program: Program, person: Person):
    program.redirect_uri = "https://program.example/callback"  # nobody goes there: the test reads where a browser would
    program.register()
    for _ in range(2):
        assert program.redeem(program.answer(person)["code"]).status_code == 200
    assert len(person.pages) == 1
    program.redirect_uri = HERE
    program.register()
    for _ in range(2):
        assert program.redeem(program.answer(person)["code"]).status_code == 200
    assert len(person.pages) == 3


def test_what_a_person_refuses_is_told_to_the_program(program: Program, person: Person):
    program.register()
    person.allows = False
    answer = program.answer(person)
    assert (answer["error"], answer["state"], answer["iss"]) == ("access_denied", program.state, program.issuer)


def test_a_form_that_no_page_of_this_person_has_made_allows_nothing(
    gateway: Gateway, endpoint: Endpoint, program: Program, browser: Browser
):
    """The cookie is there in each case: whether another site's form has it depends on the browser."""
    program.register()
    url, here = program.address(), browser.from_here
    assert browser.sign_in(endpoint.key).status_code == 303
    with Browser(gateway) as theirs:
        theirs.sign_in(endpoint.key)
        of_another = theirs.csrf
    good = {"csrf": browser.csrf, "decision": "allow"}
    forged: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"decision": "allow"}, here),
        ({**good, "csrf": ""}, here),
        ({**good, "csrf": of_another}, here),
        (good, {}),
        (good, {**here, "Origin": "null"}),
        (good, {**here, "Origin": "https://evil.example"}),
        (good, {**here, "Sec-Fetch-Site": "cross-site"}),
        (good, {**here, "Sec-Fetch-Site": "same-site"}),
        ({"decision": "refuse"}, here),
    ]
    for form, headers in forged:
        answer = browser.http.post(url, data=form, headers=headers)
        assert (answer.status_code, "location" in answer.headers) == (403, False), (form, headers)
    assert browser.http.post(url, data=good, headers=here).status_code == 303


def test_a_token_is_for_its_endpoint_and_never_for_rest(
    gateway: Gateway, endpoint: Endpoint, program: Program, person: Person
):
    other = gateway.endpoint(ECHO, tenant=endpoint.tenant)
    token = program.connected(person)["access_token"]
    assert asked(endpoint, token).status_code == 200
    refused = asked(other, token)
    assert refused.status_code == 403
    assert 'error="insufficient_scope"' in refused.headers["www-authenticate"]
    elsewhere = gateway.endpoint(ECHO)
    assert asked(elsewhere, token).status_code == 404
    for path in ("/me", f"/tenants/{endpoint.tenant}/me", f"/tenants/{endpoint.tenant}/connections"):
        answer = httpx2.get(f"{gateway.url}/api/v1{path}", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 401, path


def test_a_refresh_token_is_used_once_and_what_uses_it_again_ends_all(
    endpoint: Endpoint, program: Program, person: Person
):
    first = program.connected(person)
    second = program.refresh(first["refresh_token"]).json()
    again = program.refresh(first["refresh_token"]).json()  # the first answer may have been lost
    assert again["refresh_token"] == second["refresh_token"]
    third = program.refresh(second["refresh_token"]).json()
    assert asked(endpoint, third["access_token"]).status_code == 200
    reused = program.refresh(first["refresh_token"])
    assert (reused.status_code, reused.json()["error"]) == (400, "invalid_grant")
    assert program.refresh(third["refresh_token"]).json()["error"] == "invalid_grant"
    assert asked(endpoint, third["access_token"]).status_code == 401
    assert connections(endpoint) == []


def test_a_code_that_is_used_twice_ends_what_came_from_it(endpoint: Endpoint, program: Program, person: Person):
    program.register()
    code = program.answer(person)["code"]
    tokens = program.redeem(code).json()
    assert program.redeem(code).json()["error"] == "invalid_grant"
    assert asked(endpoint, tokens["access_token"]).status_code == 401


async def test_who_ends_a_connection_ends_its_sessions(
    gateway: Gateway, endpoint: Endpoint, program: Program, person: Person
):
    token = program.connected(person)["access_token"]
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        Client(streamable_http_client(endpoint.mcp, http_client=http), mode="legacy") as client,
    ):
        assert (await client.list_tools()).tools
        sessions = f"/tenants/{endpoint.tenant}/sessions"
        assert len(gateway.api("GET", sessions)["items"]) == 1
        (connection,) = connections(endpoint)
        page = person.browser.page("/connections")
        assert connection["client_title"] in page.text
        ended = person.browser.rest("DELETE", f"/api/v1/tenants/{endpoint.tenant}/connections/{connection['id']}")
        assert ended.status_code == 204
        await until(lambda: not gateway.api("GET", sessions)["items"])
    assert asked(endpoint, token).status_code == 401
    trail = gateway.api("GET", f"/tenants/{endpoint.tenant}/audit?limit=50")["items"]
    assert {"connection.create", "connection.end"} <= {each["action"] for each in trail}


@pytest.mark.parametrize("how", ["the key is revoked", "the tenant has no authorization server any more"])
async def test_what_a_connection_stands_on_ends_it(
    gateway: Gateway, endpoint: Endpoint, program: Program, person: Person, how: str
):
    tokens = program.connected(person)
    assert asked(endpoint, tokens["access_token"]).status_code == 200
    if how == "the key is revoked":
        gateway.api("DELETE", f"/tenants/{endpoint.tenant}/keys/{endpoint.key[4:12]}")
        refused = program.refresh(tokens["refresh_token"])
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid_grant")
    else:
        gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"sign_in": None})
        await until(lambda: program.refresh(tokens["refresh_token"]).status_code == 404)
    await until(lambda: asked(endpoint, tokens["access_token"]).status_code == 401)


def test_a_tenant_without_it_is_answered_like_one_that_does_not_exist(gateway: Gateway):
    tenant = gateway.add_tenant()
    for path in (
        "/.well-known/oauth-authorization-server/oauth/{}",
        "/oauth/{}/jwks",
        "/oauth/{}/authorize?client_id=x",
    ):
        answers = [httpx2.get(gateway.url + path.format(name)) for name in (tenant, "nobody")]
        assert [each.status_code for each in answers] == [404, 404]
        assert answers[0].text == answers[1].text.replace("nobody", tenant)


def test_a_program_acts_by_itself_with_a_secret(gateway: Gateway, endpoint: Endpoint, program: Program):
    body = {"name": "batch", "authentication": "secret", "scopes": [f"mcp:connect:{endpoint.name}"]}
    made = gateway.api("POST", f"/tenants/{endpoint.tenant}/clients", body)
    form = {"grant_type": "client_credentials", "client_id": "batch", "client_secret": made["secret"]}
    answer = program.token({**form, "resource": endpoint.mcp})
    assert answer.status_code == 200, answer.text
    token = answer.json()["access_token"]
    assert "refresh_token" not in answer.json()
    assert asked(endpoint, token).status_code == 200
    assert program.token({**form, "client_secret": "tls_wrong"}).json()["error"] == "invalid_client"
    path = f"/tenants/{endpoint.tenant}/clients"
    gateway.api("PATCH", f"{path}/batch", {"scopes": ["mcp:connect:other"]})
    assert asked(endpoint, token).status_code == 401
    token = program.token(form).json()["access_token"]
    gateway.api("DELETE", f"{path}/batch")
    assert asked(endpoint, token).status_code == 401
    assert program.token(form).json()["error"] == "invalid_client"
    gateway.api("POST", path, body)
    assert asked(endpoint, token).status_code == 401  # another client of the same name


def test_clients_find_the_server_wherever_they_look(gateway: Gateway, endpoint: Endpoint, program: Program):
    """RFC 9728, RFC 8414 and the OpenID forms of it, for each spelling of an address."""
    for path in ("/mcp", "/mcp/", "/sse"):
        refused = httpx2.get(endpoint.base + path)
        assert refused.status_code == 401
        address = f"{gateway.url}/.well-known/oauth-protected-resource{endpoint.base.removeprefix(gateway.url)}{path}"
        assert f'resource_metadata="{address}"' in refused.headers["www-authenticate"]
        metadata = httpx2.get(address).json()
        assert (metadata["resource"], metadata["authorization_servers"]) == (endpoint.base + path, [program.issuer])
    well_known, path = f"{gateway.url}/.well-known", f"/oauth/{endpoint.tenant}"
    places = [
        f"{well_known}/oauth-authorization-server{path}",
        f"{well_known}/openid-configuration{path}",
        f"{program.issuer}/.well-known/openid-configuration",
        f"{program.issuer}/.well-known/oauth-authorization-server",
    ]
    found = [httpx2.get(each) for each in places]
    assert {each.text for each in found} == {found[0].text}
    metadata = found[0].json()
    assert metadata["issuer"] == program.issuer
    assert metadata["code_challenge_methods_supported"] == ["S256"]
    assert metadata["client_id_metadata_document_supported"] is True
    assert len(httpx2.get(metadata["jwks_uri"]).json()["keys"]) == 3
    for each in (f"{well_known}/oauth-authorization-server", f"{well_known}/oauth-protected-resource/t/a/b/other"):
        assert httpx2.get(each).status_code == 404


def test_what_is_wrong_is_told_in_the_words_of_the_protocol(program: Program):
    forms: list[tuple[dict[str, str | list[str]], int, str]] = [
        ({}, 400, "invalid_request"),
        ({"grant_type": "password", "username": "a", "password": "b"}, 400, "unsupported_grant_type"),
        ({"grant_type": "authorization_code", "code": "x", "client_id": "nobody"}, 401, "invalid_client"),
        ({"grant_type": "authorization_code", "client_id": '\x00\u2028"\\'}, 401, "invalid_client"),
        ({"grant_type": "refresh_token", "refresh_token": "tlr_x"}, 401, "invalid_client"),
        ({"grant_type": ["refresh_token", "refresh_token"]}, 400, "invalid_request"),
        ({"grant_type": '\u2028"\\'}, 400, "unsupported_grant_type"),
    ]
    for form, status, error in forms:
        answer = program.http.post(program.issuer + "/token", data=form)
        assert (answer.status_code, answer.json()["error"]) == (status, error), form
        assert answer.headers["cache-control"] == "no-store"
    assert program.http.post(program.issuer + "/token", content=b"\xff\xfe").json()["error"] == "invalid_request"
    for body, error in ((b"[]", "invalid_client_metadata"), (b"{", "invalid_client_metadata")):
        answer = program.http.post(program.issuer + "/register", content=body)
        assert (answer.status_code, answer.json()["error"]) == (400, error)
    refused = program.register(redirect_uris=["http://evil.example/callback"])
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_redirect_uri")
    preflight = program.http.options(program.issuer + "/token")
    assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (204, "*")


def test_a_request_that_is_not_right_is_told_to_the_program_only_where_it_may_be(program: Program, browser: Browser):
    program.register()
    wrong: list[dict[str, str | None]] = [
        {"redirect_uri": "https://evil.example/callback"},
        {"client_id": "nobody"},
        {"redirect_uri": None},
    ]
    for changed in wrong:
        assert browser.http.get(program.address(**changed)).status_code == 400, changed
    told: list[tuple[dict[str, str | None], str]] = [
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"response_type": '\u2028"'}, "invalid_request"),
        ({"resource": "https://elsewhere.example/t/a/b/mcp"}, "invalid_target"),
    ]
    for changed, error in told:
        answer = browser.http.get(program.address(**changed))
        assert answer.status_code == 303, changed
        found = {name: values[0] for name, values in parse_qs(urlsplit(answer.headers["location"]).query).items()}
        assert (found["error"], found["state"], found["iss"]) == (error, program.state, program.issuer), changed


@pytest.fixture
def idp() -> Iterator[Provider]:
    with provider() as idp:
        yield idp


def test_the_provider_knows_the_people(gateway: Gateway, endpoint: Endpoint, program: Program, idp: Provider):
    """Somebody signs in with the tenant's provider on the way; groups become scopes."""
    issuer = {
        "issuer": idp.url,
        "algorithms": ["RS256"],
        "discovery_url": idp.url + "/.well-known/openid-configuration",
        "audience": [idp.audience],
        "max_scopes": ["mcp:connect"],
        "claims": {"groups": "groups", "map": {"people": ["mcp:connect"]}},
        "sign_in": {"client_id": CLIENT},
    }
    made = gateway.api("POST", f"/tenants/{endpoint.tenant}/issuers", issuer)
    idp.claims = {"groups": [*(str(uuid.uuid4()) for _ in range(200)), "people"]}  # as large as they are: 12 KiB
    program.register()
    with Browser(gateway) as browser:
        first = browser.http.get(program.address())
        to = first.headers["location"]
        assert "/console/sign-in/with" in browser.http.get(to).text
        asked_for = {"tenant": endpoint.tenant, "issuer": made["id"], "to": program.address().removeprefix(gateway.url)}
        url = browser.http.get("/console/sign-in/with", params=asked_for).headers["location"]
        back = browser.http.get(httpx2.get(url).headers["location"])
        assert back.status_code == 200
        answer = program.answer(Person(browser, ""))
    tokens = program.redeem(answer["code"]).json()
    assert asked(endpoint, tokens["access_token"]).status_code == 200
    said = jwt.decode(tokens["access_token"], options={"verify_signature": False})
    assert said["groups"] == ["people"]
    assert connections(endpoint)[0]["subject"] == "alice"
