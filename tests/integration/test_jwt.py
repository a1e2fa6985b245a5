"""Tokens of real key pairs, a JWKS host of our own on loopback, and a real gateway between it and real clients."""

import json
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.auth.test_jwks import jwk
from tests.integration.gateway import ECHO, Endpoint, Gateway, running_gateway, until
from tests.integration.servers import Transport, python_client, text_of
from tests.integration.stopwatch import stopwatch
from tests.integration.wire import Wire

STORM = 100
SECRET = "correct horse battery staple, all 32 bytes of it"
KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    "HS256": SECRET,
}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


class Idp:
    """An identity provider: two documents, and how often they were asked for."""

    def __init__(self) -> None:
        self.keys = {algorithm: key for algorithm, key in KEYS.items() if algorithm != "HS256"}
        self.asked: list[str] = []
        idp = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                idp.asked.append(self.path)
                document = idp.documents().get(self.path)
                body = json.dumps(document).encode()
                self.send_response(200 if document else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def documents(self) -> dict[str, Any]:
        return {
            "/jwks": {"keys": [jwk(key, algorithm) for algorithm, key in self.keys.items()]},
            "/.well-known/openid-configuration": {"issuer": self.url, "jwks_uri": self.url + "/jwks"},
        }

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture(scope="module")
def idp() -> Iterator[Idp]:
    idp = Idp()
    yield idp
    idp.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One that may ask this machine for keys."""
    data = tmp_path_factory.mktemp("jwt") / "data"
    with running_gateway(data, OUTBOUND_ALLOW="127.0.0.0/8") as gateway:
        yield gateway


@pytest.fixture
def echo(gateway: Gateway) -> Endpoint:
    """An echo server in a tenant of its own."""
    return gateway.endpoint(ECHO)


def trust(endpoint: Endpoint, idp: Idp, algorithm: str = "RS256", **more: Any) -> str:
    """Names the identity provider an issuer of the endpoint's tenant; returns the path of the row."""
    source = {"secret": SECRET} if algorithm == "HS256" else {"jwks_url": idp.url + "/jwks"}
    body = {"issuer": idp.url, "algorithms": [algorithm], **source, **more}
    body = {name: value for name, value in body.items() if value is not ...}
    path = f"/tenants/{endpoint.tenant}/issuers"
    return f"{path}/{endpoint.gateway.api('POST', path, body)['id']}"


def token(idp: Idp, audience: str, algorithm: str = "RS256", kid: str | None = None, **claims: Any) -> str:
    now = int(time.time())
    good = {"iss": idp.url, "sub": "alice", "aud": audience, "iat": now, "exp": now + 600, "scope": "mcp:connect"}
    headers = None if algorithm == "HS256" else {"kid": kid or algorithm}
    return jwt.encode({**good, **claims}, KEYS[algorithm], algorithm, headers)


def holding(endpoint: Endpoint, credential: str) -> Endpoint:
    return Endpoint(endpoint.gateway, endpoint.tenant, endpoint.name, endpoint.base, credential)


def post(url: str, credential: str | None = None, body: Any = INITIALIZE, **headers: str) -> httpx2.Response:
    sent = {"Accept": "application/json, text/event-stream", **headers}
    if credential is not None:
        sent["Authorization"] = f"Bearer {credential}"
    return httpx2.post(url, json=body, headers=sent, timeout=30)


# --- clients


@pytest.mark.parametrize(
    ("algorithm", "transport"), [*((each, "streamable") for each in KEYS), ("ES256", "sse")], ids=str
)
@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
async def test_the_official_client_connects_with_a_token(
    gateway: Gateway, idp: Idp, algorithm: str, transport: Transport
) -> None:
    endpoint = gateway.endpoint(ECHO)
    trust(endpoint, idp, algorithm)
    async with python_client(holding(endpoint, token(idp, endpoint.mcp, algorithm)), transport) as client:
        assert text_of(await client.call_tool("echo", {"text": "with a token"})) == "with a token"


async def test_a_session_goes_on_with_a_fresh_token_of_the_same_subject_and_nobody_elses(
    echo: Endpoint, idp: Idp
) -> None:
    trust(echo, idp)
    async with httpx2.AsyncClient(timeout=30) as http:
        session = Wire(http, echo, key=token(idp, echo.mcp))
        await session.open()
        ping = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
        for subject, status in (("alice", 200), ("mallory", 404)):
            session.headers["Authorization"] = f"Bearer {token(idp, echo.mcp, sub=subject, jti=uuid.uuid4().hex)}"
            assert (await session.post(ping)).status_code == status
        session.headers["Authorization"] = f"Bearer {echo.key}"
        assert (await session.post(ping)).status_code == 404


async def test_discovery_leads_to_the_keys(echo: Endpoint, idp: Idp) -> None:
    trust(echo, idp, jwks_url=..., discovery_url=idp.url + "/.well-known/openid-configuration")
    assert post(echo.mcp, token(idp, echo.mcp)).status_code == 200


# --- for which endpoint


async def test_a_token_opens_the_endpoint_it_was_issued_for_and_no_other_however_fresh_in_memory(
    gateway: Gateway, echo: Endpoint, idp: Idp
) -> None:
    trust(echo, idp)
    neighbour = gateway.endpoint(ECHO, tenant=echo.tenant)
    stranger = gateway.endpoint(ECHO)
    trust(stranger, idp)
    mine = token(idp, echo.mcp)
    for _ in range(2):
        assert post(echo.mcp, mine).status_code == 200
        assert post(neighbour.mcp, mine).status_code == 401
        assert post(stranger.mcp, mine).status_code == 401
        assert post(echo.mcp.replace("127.0.0.1", "localhost"), mine).status_code == 401
    both = token(idp, [echo.mcp, stranger.mcp])  # type: ignore[arg-type]
    assert post(echo.mcp, both).status_code == post(stranger.mcp, both).status_code == 200


async def test_behind_a_public_url_that_is_the_audience_and_the_metadata_says_so(start_gateway: Any, idp: Idp) -> None:
    public = start_gateway(OUTBOUND_ALLOW="127.0.0.0/8", PUBLIC_URL="https://gw.example.com")
    endpoint = public.endpoint(ECHO)
    trust(endpoint, idp)
    resource = f"https://gw.example.com/t/{endpoint.tenant}/{endpoint.name}/mcp"
    assert post(endpoint.mcp, token(idp, endpoint.mcp)).status_code == 401
    assert post(endpoint.mcp, token(idp, resource)).status_code == 200
    url = f"https://gw.example.com/.well-known/oauth-protected-resource/t/{endpoint.tenant}/{endpoint.name}/mcp"
    assert f'resource_metadata="{url}"' in post(endpoint.mcp).headers["www-authenticate"]
    assert httpx2.get(url.replace("https://gw.example.com", public.url)).json()["resource"] == resource


# --- REST


async def test_a_token_administers_its_tenant_as_far_as_its_issuer_may_confer(echo: Endpoint, idp: Idp) -> None:
    gateway, here = echo.gateway, f"/tenants/{echo.tenant}"
    issuer = trust(echo, idp)
    resource = f"{gateway.url}/api/v1{here}"
    admin = token(idp, resource, scope="tenant:admin platform:admin")
    gateway.api("GET", f"{here}/keys", key=admin, expect=403)
    gateway.api("PATCH", issuer, {"max_scopes": ["tenant:admin"]})
    assert gateway.api("GET", f"{here}/issuers", key=admin)["items"]
    gateway.api("POST", f"{here}/keys", {"scopes": ["mcp:connect"]}, key=admin, expect=201)
    gateway.api("POST", "/tenants", {"name": "taken-over"}, key=admin, expect=401)
    gateway.api("GET", f"/tenants/{gateway.add_tenant()}/keys", key=admin, expect=401)
    gateway.api("GET", f"{here}/keys", key=token(idp, echo.mcp, scope="tenant:admin"), expect=401)
    assert post(echo.mcp, admin).status_code == 401


async def test_a_token_of_the_default_tenants_issuer_administers_the_platform(gateway: Gateway, idp: Idp) -> None:
    body = {"issuer": idp.url, "algorithms": ["ES256"], "jwks_url": idp.url + "/jwks", "max_scopes": ["platform:admin"]}
    made = gateway.api("POST", "/issuers", body)
    admin = token(idp, f"{gateway.url}/api/v1/tenants/default", "ES256", scope=["platform:admin"])
    assert gateway.api("GET", "/tenants", key=admin)["items"]
    assert gateway.api("GET", "/tenants/default/issuers", key=admin)["items"]
    gateway.api("DELETE", f"/issuers/{made['id']}", key=admin, expect=204)
    gateway.api("GET", "/tenants", key=admin, expect=401)


# --- changes


@pytest.mark.parametrize("how", ["delete", "change"])
async def test_a_changed_issuer_ends_its_sessions_and_streams_at_once(echo: Endpoint, idp: Idp, how: str) -> None:
    gateway = echo.gateway
    issuer = trust(echo, idp)
    before = gateway.metrics().get('trunkline_sessions_closed_total{reason="issuer_changed"}', 0)
    async with httpx2.AsyncClient(timeout=30) as http:
        keyed, session = Wire(http, echo), Wire(http, echo, key=token(idp, echo.mcp))
        await keyed.open()
        await session.open()
        ended = anyio.Event()

        async def listen() -> None:
            async with session.stream("GET") as stream:
                async for _ in stream.aiter_bytes():
                    pass
            ended.set()

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listen)
                await until(lambda: gateway.metrics().get('trunkline_streams{kind="get"}', 1), 20)
                if how == "delete":
                    gateway.api("DELETE", issuer)
                else:
                    gateway.api("PATCH", issuer, {"audience": ["api://other"]})
                async with stopwatch(gateway) as watch:
                    await ended.wait()
                    took = watch.seconds
        assert took < 1  # calm: of the stopwatch
        ping = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
        assert (await session.post(ping)).status_code == 401
        assert (await keyed.post(ping)).status_code == 200
    assert gateway.metrics()['trunkline_sessions_closed_total{reason="issuer_changed"}'] == before + 1


async def test_a_token_that_was_refused_works_as_soon_as_its_issuer_is_named(echo: Endpoint, idp: Idp) -> None:
    mine = token(idp, echo.mcp)
    assert post(echo.mcp, mine).status_code == 401
    trust(echo, idp)
    assert post(echo.mcp, mine).status_code == 200


async def test_a_storm_of_made_up_key_ids_is_refused_fast_and_not_passed_on(echo: Endpoint, idp: Idp) -> None:
    trust(echo, idp)
    assert post(echo.mcp, token(idp, echo.mcp)).status_code == 200
    before, times = len(idp.asked), []
    async with httpx2.AsyncClient(timeout=30) as http:
        for number in range(STORM):
            made_up = token(idp, echo.mcp, "ES256" if number % 2 else "RS256", kid=f"random-{number}")
            async with stopwatch(echo.gateway) as watch:
                response = await http.post(echo.mcp, json=INITIALIZE, headers={"Authorization": f"Bearer {made_up}"})
                times.append(watch.seconds)
            assert response.status_code == 401
    assert len(idp.asked) - before <= 1
    assert sorted(times)[STORM // 2] < 0.1
    assert post(echo.mcp, token(idp, echo.mcp)).status_code == 200


async def test_keys_are_not_fetched_from_this_machine_unless_that_is_allowed(start_gateway: Any, idp: Idp) -> None:
    guarded = start_gateway()
    endpoint = guarded.endpoint(ECHO)
    path = f"/tenants/{endpoint.tenant}/issuers"
    body = {"issuer": idp.url, "algorithms": ["RS256"]}
    before = len(idp.asked)
    guarded.api("POST", path, {**body, "jwks_url": idp.url + "/jwks"}, expect=422)
    port = idp.url.rpartition(":")[2]
    made = guarded.api("POST", path, {**body, "jwks_url": f"https://localhost:{port}/jwks"}, expect=201)
    assert "TRUNKLINE_OUTBOUND_ALLOW" in made["warnings"][0]
    checked = guarded.api("POST", f"{path}/{made['id']}:check")
    assert (checked["ok"], checked["keys"]["setting"]) == (False, "TRUNKLINE_OUTBOUND_ALLOW")
    assert post(endpoint.mcp, token(idp, endpoint.mcp)).status_code == 401
    assert len(idp.asked) == before


# --- why a token is refused


async def test_who_administers_the_tenant_finds_out_why_a_token_is_refused(echo: Endpoint, idp: Idp) -> None:
    issuer = trust(echo, idp, jwks_url=..., discovery_url=idp.url + "/.well-known/openid-configuration")
    gateway, admin = echo.gateway, echo.gateway.key(echo.tenant, ["tenant:admin"])
    good = token(idp, echo.mcp)
    checked = gateway.api("POST", issuer + ":check", {"token": good, "backend": echo.name}, key=admin, expect=200)
    assert (checked["ok"], checked["granted_scopes"]) == (True, ["mcp:connect"])
    assert {key["kid"] for key in checked["keys"]["found"]} == set(idp.keys)
    assert checked["keys"]["urls"] == [idp.url + "/.well-known/openid-configuration", idp.url + "/jwks"]
    for bad, rule in (
        (token(idp, "https://other.example.com"), "audience"),
        (token(idp, echo.mcp, exp=int(time.time()) - 31, iat=int(time.time()) - 100), "expiry"),
        (token(idp, echo.mcp, kid="rotated"), "key"),
        (token(idp, echo.mcp, iss=idp.url + "/"), "issuer"),
    ):
        refused = post(echo.mcp, bad)
        assert (refused.status_code, refused.json()["error"]["data"]["reason"]) == (401, "unauthenticated")
        checked = gateway.api("POST", issuer + ":check", {"token": bad}, key=admin, expect=200)
        wrong = [each for each in checked["rules"] if each["passed"] is False]
        assert [each["rule"] for each in wrong] == [rule]
        assert wrong[0]["expected"] != wrong[0]["actual"]


async def test_the_log_says_why_a_token_was_refused_also_in_a_flood_of_others(echo: Endpoint, idp: Idp) -> None:
    issuer = trust(echo, idp).rpartition("/")[2]
    jti = uuid.uuid4().hex
    bad = token(idp, f"https://other.example.com/{jti}")
    async with httpx2.AsyncClient(timeout=30) as http:

        async def nobody() -> None:
            assert (await http.post(echo.mcp, json=INITIALIZE)).status_code == 401

        async with anyio.create_task_group() as tasks:
            for _ in range(STORM):
                tasks.start_soon(nobody)
        assert post(echo.mcp, bad).status_code == 401
    gateway = echo.gateway

    def lines() -> list[dict[str, Any]]:
        text = gateway.log.read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{") and jti in line]

    await until(lambda: bool(lines()), 20)
    (line,) = lines()
    assert line["message"] == "request refused"
    told = {
        name: line[name] for name in ("reason", "failure", "rule", "issuer", "issuer_id", "kid", "expected", "actual")
    }
    assert told == {
        "reason": "unauthenticated", "failure": "audience", "rule": "audience", "issuer": idp.url, "issuer_id": issuer,
        "kid": "RS256", "expected": [echo.mcp], "actual": f"https://other.example.com/{jti}",
    }  # fmt: skip
    assert not [part for part in bad.split(".") if part in gateway.log.read_text()]


# --- challenges and metadata (RFC 9728, RFC 6750)


def metadata_url(endpoint: Endpoint, name: str | None = None, kind: str = "mcp") -> str:
    path = f"/t/{endpoint.tenant}/{name or endpoint.name}/{kind}"
    return f"{endpoint.gateway.url}/.well-known/oauth-protected-resource{path}"


async def test_a_refusal_says_where_tokens_come_from(echo: Endpoint, idp: Idp) -> None:
    trust(echo, idp)
    for url, kind in ((echo.mcp, "mcp"), (echo.mcp + "/", "mcp/")):  # as the client spells it, which compares
        where = f'resource_metadata="{metadata_url(echo, kind=kind)}"'
        assert post(url).headers["www-authenticate"] == f'Bearer {where}, scope="mcp:connect"'
        for wrong in ("x.y.z", "nonsense", token(idp, "https://other.example.com")):
            challenge = post(url, wrong).headers["www-authenticate"]
            assert challenge == f'Bearer error="invalid_token", {where}, scope="mcp:connect"'
        without = post(url, token(idp, echo.mcp, scope="openid"))
        assert without.status_code == 403
        challenge = without.headers["www-authenticate"]
        assert challenge == f'Bearer error="insufficient_scope", scope="mcp:connect", {where}'
    assert post(echo.mcp, token(idp, echo.sse)).status_code == 200
    stream, where = httpx2.get(echo.sse), f'resource_metadata="{metadata_url(echo, kind="sse")}"'
    assert (stream.status_code, stream.headers["www-authenticate"]) == (401, f'Bearer {where}, scope="mcp:connect"')


async def test_a_wrong_key_leads_nowhere_where_no_issuer_is_trusted(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO)
    challenges = {
        post(url, "tlk_wrong").headers["www-authenticate"]
        for url in (endpoint.mcp, endpoint.mcp.replace(f"/t/{endpoint.tenant}/", "/t/unknown/"))
    }
    said = 'error="invalid_token", error_description="the key is not valid", scope="mcp:connect"'
    assert challenges == {f"Bearer {said}"}


@pytest.mark.parametrize("word", ["a%0d%0aSet-Cookie:%20a=b", 'a"b', "a%22%2C%20b", "%C3%A9", "%00"])
async def test_what_stands_in_the_path_does_not_get_into_a_header(echo: Endpoint, idp: Idp, word: str) -> None:
    trust(echo, idp)
    backends = token(idp, echo.mcp, scope="openid")
    for path in (f"/t/{word}/{echo.name}/mcp", f"/t/{echo.tenant}/{word}/mcp"):
        for credential in (None, backends, echo.gateway.key(echo.tenant, ["tenant:read"])):
            response = post(echo.gateway.url + path, credential)
            assert response.status_code in (401, 403, 404)
            assert "set-cookie" not in response.headers
            challenge = response.headers.get("www-authenticate", "")
            assert "resource_metadata" not in challenge
            assert challenge.count('"') % 2 == 0
            assert "a=b" not in challenge


async def test_the_metadata_name_the_resource_and_the_tenants_issuers(echo: Endpoint, idp: Idp) -> None:
    trust(echo, idp)
    answer = httpx2.get(metadata_url(echo))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "resource": echo.mcp,
        "authorization_servers": [idp.url],
        "scopes_supported": ["mcp:connect"],
        "bearer_methods_supported": ["header"],
        "resource_name": f"{echo.name} of {echo.tenant}",
    }
    for kind in ("mcp/", "sse", "sse/"):
        resource = echo.mcp.removesuffix("mcp") + kind
        assert httpx2.get(metadata_url(echo, kind=kind)).json() == {**answer.json(), "resource": resource}


async def test_the_metadata_do_not_tell_which_backends_and_tenants_exist(echo: Endpoint, idp: Idp) -> None:
    trust(echo, idp)
    await until(lambda: "authorization_servers" in httpx2.get(metadata_url(echo)).json(), 20)  # remembered for 2 s
    there, absent = httpx2.get(metadata_url(echo)).json(), httpx2.get(metadata_url(echo, "absent")).json()
    assert set(there) == set(absent)
    assert absent["authorization_servers"] == [idp.url]
    plain = echo.gateway.endpoint(ECHO)
    unknown = Endpoint(echo.gateway, "nobody", plain.name, "", "")
    shapes = [httpx2.get(metadata_url(each)).text.replace(each.tenant, "T") for each in (plain, unknown)]
    assert shapes[0] == shapes[1]
    assert "authorization_servers" not in shapes[0]


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/oauth-protected-resource",
        "/oauth-protected-resource/t/acme/echo",
        "/oauth-protected-resource/t/acme/echo/other",
        "/oauth-protected-resource/t/UP/echo/mcp",
        "/oauth-protected-resource/t/a%0d%0ab/echo/mcp",
        "/oauth-authorization-server",
        "/openid-configuration",
    ],
)
async def test_other_well_known_addresses_are_404(gateway: Gateway, path: str) -> None:
    answer = httpx2.get(f"{gateway.url}/.well-known{path}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
