"""What claude.ai and ChatGPT document that they do, replayed in front of a real gateway. Their addresses are only read
in answers: nobody asks them anything."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.certificates import self_signed
from tests.console.browser import Browser
from tests.integration.gateway import ECHO, Endpoint, Gateway, running_gateway
from tests.integration.person import HERE, Person, Program
from tests.integration.test_sign_in import asked, connections

CLAUDE, CHATGPT = "https://claude.ai/api/mcp/auth_callback", "https://chatgpt.com/connector_platform_oauth_redirect"
HOSTED = pytest.mark.parametrize("redirect_uri", [CLAUDE, CHATGPT], ids=["claude", "chatgpt"])
# What they send besides `redirect_uris`.
METADATA = {
    CLAUDE: {
        "client_name": "Claude",
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "scope": "mcp:connect",
    },
    CHATGPT: {
        "client_name": "ChatGPT",
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "client_secret_post",
    },
}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("hosted") / "data"
    given = {"OUTBOUND_ALLOW": "127.0.0.0/8", "OUTBOUND_CA": str(certificate[0])}
    with running_gateway(directory, **given) as gateway:
        yield gateway


@pytest.fixture
def endpoint(gateway: Gateway) -> Endpoint:
    endpoint = gateway.endpoint(ECHO)
    gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"sign_in": {}})
    return endpoint


@pytest.fixture
def person(gateway: Gateway, endpoint: Endpoint) -> Iterator[Person]:
    with Browser(gateway) as browser:
        yield Person(browser, endpoint.key)


@pytest.fixture
def http() -> Iterator[httpx2.Client]:
    with httpx2.Client(timeout=30) as http:
        yield http


def discovered(http: httpx2.Client, address: str) -> Program:
    """Who knows the address alone, in the order of MCP 2025-11-25: the 401 says where the metadata of the resource is,
    that names the server, and its metadata stands at the first of three places that answers."""
    refused = http.post(address, json={"jsonrpc": "2.0", "id": 1, "method": "initialize"})
    assert refused.status_code == 401
    challenge = dict(
        each.split("=", 1) for each in refused.headers["www-authenticate"].removeprefix("Bearer ").split(", ")
    )
    resource = http.get(challenge["resource_metadata"].strip('"')).json()
    assert address.startswith(resource["resource"])
    issuer = urlsplit(resource["authorization_servers"][0])
    root = f"{issuer.scheme}://{issuer.netloc}"
    places = [
        f"{root}/.well-known/oauth-authorization-server{issuer.path}",
        f"{root}/.well-known/openid-configuration{issuer.path}",
        f"{issuer.geturl()}/.well-known/openid-configuration",
    ]
    (metadata, *others) = [http.get(each).json() for each in places]
    assert others == [metadata] * 2
    assert metadata["issuer"] == issuer.geturl()
    assert "S256" in metadata["code_challenge_methods_supported"]
    assert {"none", "client_secret_post"} <= set(metadata["token_endpoint_auth_methods_supported"])
    program = Program(http, issuer.geturl(), resource["resource"])
    for name in ("authorize", "token", "register"):
        key = {"authorize": "authorization_endpoint", "token": "token_endpoint", "register": "registration_endpoint"}
        assert metadata[key[name]] == f"{program.issuer}/{name}"
    return program


def registered(http: httpx2.Client, endpoint: Endpoint, redirect_uri: str) -> Program:
    program = discovered(http, endpoint.mcp)
    program.redirect_uri = redirect_uri
    assert program.register(**METADATA[redirect_uri]).status_code == 201
    return program


@HOSTED
def test_from_the_address_to_tools(http: httpx2.Client, endpoint: Endpoint, person: Person, redirect_uri: str) -> None:
    program = discovered(http, endpoint.mcp)
    program.redirect_uri, program.state = redirect_uri, "s" * 2000  # ChatGPT's are long
    answer = program.register(**METADATA[redirect_uri]).json()
    assert answer["token_endpoint_auth_method"] == "none"
    assert "client_secret" not in answer
    assert answer["redirect_uris"] == [redirect_uri]
    assert answer["client_name"] == METADATA[redirect_uri]["client_name"]
    assert set(answer["grant_types"]) == {"authorization_code", "refresh_token"}
    back = program.answer(person)
    assert (back["state"], back["iss"]) == (program.state, program.issuer)
    tokens = program.redeem(back["code"]).json()
    assert (tokens["token_type"], tokens["scope"]) == ("Bearer", f"mcp:connect:{endpoint.name}")
    assert asked(endpoint, tokens["access_token"]).status_code == 200
    fresh = program.refresh(tokens["refresh_token"], resource=program.resource).json()
    assert asked(endpoint, fresh["access_token"]).status_code == 200
    assert urlsplit(redirect_uri).netloc in person.pages[0]


@HOSTED
def test_whatever_scope_is_asked_for_the_person_gives_what_they_have(
    http: httpx2.Client, endpoint: Endpoint, person: Person, redirect_uri: str
) -> None:
    program = registered(http, endpoint, redirect_uri)
    for scope in (None, "", "mcp:connect", "openid offline_access", "mcp:connect platform:admin"):
        tokens = program.redeem(program.answer(person, scope=scope)["code"]).json()
        assert tokens["scope"] == f"mcp:connect:{endpoint.name}", scope
        again = program.refresh(tokens["refresh_token"], scope=scope).json()
        assert again["scope"] == tokens["scope"], scope


@HOSTED
def test_without_resource_it_is_for_all_that_the_person_may_use(
    http: httpx2.Client, endpoint: Endpoint, person: Person, redirect_uri: str
) -> None:
    program = registered(http, endpoint, redirect_uri)
    code = program.answer(person, resource=None)["code"]
    tokens = program.redeem(code, resource=None).json()
    assert tokens["scope"] == "mcp:connect"
    assert asked(endpoint, tokens["access_token"]).status_code == 200


def test_each_registration_of_one_program_is_the_same_client(http: httpx2.Client, endpoint: Endpoint) -> None:
    program = discovered(http, endpoint.mcp)
    found = set()
    for redirect_uri in (CLAUDE, CHATGPT):
        program.redirect_uri = redirect_uri
        for method in ("none", "client_secret_post", "none"):
            answer = program.register(**{**METADATA[redirect_uri], "token_endpoint_auth_method": method})
            assert answer.status_code == 201
            found.add(answer.json()["client_id"])
    assert len(found) == 2
    listed = endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/clients")["items"]
    assert {each["name"] for each in listed} == found


def test_consent_is_remembered_where_nobody_else_can_be_the_client(
    http: httpx2.Client, endpoint: Endpoint, person: Person
) -> None:
    hosted = registered(http, endpoint, CLAUDE)
    for _ in range(3):
        hosted.connected(person)
    assert len(person.pages) == 1
    assert hosted.redeem(hosted.answer(person, resource=None)["code"], resource=None).status_code == 200
    assert len(person.pages) == 2  # for all backends is more than was allowed before
    here = Program(http, hosted.issuer, hosted.resource)
    for _ in range(3):
        here.connected(person)
    assert len(person.pages) == 5
    assert here.redirect_uri == HERE


@HOSTED
def test_a_client_that_was_removed_registers_again_and_has_nothing_of_before(
    http: httpx2.Client, endpoint: Endpoint, person: Person, redirect_uri: str
) -> None:
    program = registered(http, endpoint, redirect_uri)
    tokens, before = program.connected(person), program.client_id
    endpoint.gateway.api("DELETE", f"/tenants/{endpoint.tenant}/clients/{before}")
    refused = program.refresh(tokens["refresh_token"])
    assert (refused.status_code, refused.json()["error"]) == (401, "invalid_client")
    assert person.browser.http.get(program.address()).status_code == 400
    assert program.register(**METADATA[redirect_uri]).json()["client_id"] == before
    assert program.refresh(tokens["refresh_token"]).json()["error"] == "invalid_grant"
    assert asked(endpoint, tokens["access_token"]).status_code == 401
    assert connections(endpoint) == []
    program.connected(person)
    assert len(person.pages) == 2  # it is asked for anew


@contextmanager
def document_at(certificate: tuple[Path, Path], metadata: dict[str, Any]) -> Iterator[str]:
    """A client's metadata document over https: its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"client_id": url, **metadata}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = f"https://127.0.0.1:{server.server_port}/oauth/client.json"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@HOSTED
def test_a_metadata_document_needs_no_registration(
    http: httpx2.Client, endpoint: Endpoint, person: Person, certificate: tuple[Path, Path], redirect_uri: str
) -> None:
    endpoint.gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"sign_in": {"registration": False}})
    metadata = {**METADATA[redirect_uri], "redirect_uris": [redirect_uri], "token_endpoint_auth_method": "none"}
    with document_at(certificate, metadata) as url:
        program = Program(http, f"{endpoint.gateway.url}/oauth/{endpoint.tenant}", endpoint.mcp, url, redirect_uri)
        for _ in range(2):
            tokens = program.connected(person)
            assert asked(endpoint, tokens["access_token"]).status_code == 200
        assert program.refresh(tokens["refresh_token"]).status_code == 200
    assert len(person.pages) == 1
    assert "127.0.0.1" in person.pages[0]
    assert {each["client_id"] for each in connections(endpoint)} == {url}


def test_a_metadata_document_that_says_it_is_another_is_no_client(
    http: httpx2.Client, endpoint: Endpoint, person: Person, certificate: tuple[Path, Path]
) -> None:
    metadata = {"client_id": "https://claude.ai/oauth/client.json", "redirect_uris": [CLAUDE]}
    with document_at(certificate, metadata) as url:
        program = Program(http, f"{endpoint.gateway.url}/oauth/{endpoint.tenant}", endpoint.mcp, url, CLAUDE)
        answer = person.browser.http.get(program.address())
    assert answer.status_code == 400
    assert "its `client_id` is not its URL" in answer.text
