"""The endpoints that programs ask of a tenant's authorization server, as HTTP: forms, statuses, headers, and limits."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from prometheus_client import CollectorRegistry, Counter
from starlette.types import Receive, Scope, Send

from app.auth.authorization.people import People
from app.auth.jwks import KeySets
from app.domain import SignIn
from app.errors import GatewayError, NotFound, ProviderUnavailable, StorageUnavailable
from app.http.authorization import MAX_FIELDS, Authorization
from app.http.dependencies import BASE_URL
from app.limits.caller_rates import RateLimiter
from app.node.application import build_api
from tests.auth.authorization.rig import HERE, TO, WEB, Rig, basic, redemption
from tests.auth.tokens import BASE
from tests.auth.tokens import Rig as Provider

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
NOTHING = {"grant_type": "refresh_token", "refresh_token": "tlr_x", "client_id": "cli"}


class Web:
    """The routes, below this URL of the gateway, over the authorization server of the rig."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.base_url, self.address = rig, BASE, "192.0.2.1"
        self._api = build_api()
        counter = Counter("limited", "", ["limit"], registry=CollectorRegistry())
        self.refused, self.registrations, self.metadata = (
            RateLimiter(each, counter, lambda: rig.elapsed_s)
            for each in ("token_endpoint", "registrations", "resource_metadata")
        )
        self._api.state.signing_in = Authorization(rig.servers, self.refused, self.registrations, self.metadata)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._api({**scope, BASE_URL: self.base_url}, receive, send)

    async def ask(self, method: str, path: str, **more: Any) -> httpx2.Response:
        transport = httpx2.ASGITransport(self, client=(self.address, 1234))
        async with httpx2.AsyncClient(transport=transport, base_url=BASE) as http:
            return await http.request(method, path, **more)

    async def token(self, tenant: str = "acme", **form: Any) -> httpx2.Response:
        return await self.ask("POST", f"/oauth/{tenant}/token", data=form)

    async def register(self, **metadata: Any) -> httpx2.Response:
        return await self.ask("POST", "/oauth/acme/register", json={"redirect_uris": [HERE], **metadata})


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    provider = Provider()
    async with KeySets(provider.host.fetch, provider.host.clock) as sets:
        rig = Rig(provider, sets)
        rig.client()
        yield Web(rig)


def is_open(answer: httpx2.Response) -> bool:
    """Whether any program may read it, and none may keep it."""
    return (answer.headers["access-control-allow-origin"], answer.headers["cache-control"]) == ("*", "no-store")


# --- metadata and keys

PLACES = (
    "/.well-known/oauth-authorization-server{path}/oauth/acme",
    "/.well-known/openid-configuration{path}/oauth/acme",
    "/oauth/acme/.well-known/oauth-authorization-server",
    "/oauth/acme/.well-known/openid-configuration",
)


@pytest.mark.parametrize("path", ["", "/gate/way"])
async def test_the_metadata_is_the_same_at_all_four_places(web: Web, path: str) -> None:
    web.base_url = BASE + path
    answers = [await web.ask("GET", each.format(path=path)) for each in PLACES]
    assert [each.status_code for each in answers] == [200] * 4
    assert all(map(is_open, answers))
    assert all(each.json() == answers[0].json() for each in answers)
    found = answers[0].json()
    assert found["issuer"] == f"{BASE}{path}/oauth/acme"
    ours = [value for name, value in found.items() if name.endswith(("_endpoint", "_uri"))]
    assert len(ours) == 5
    assert all(each.startswith(found["issuer"] + "/") for each in ours)


@pytest.mark.parametrize("root", ["oauth-authorization-server", "openid-configuration"])
async def test_a_proxy_may_strip_the_path_of_the_url_here_too(web: Web, root: str) -> None:
    web.base_url = BASE + "/gate/way"
    answer = await web.ask("GET", f"/.well-known/{root}/oauth/acme")
    assert (answer.status_code, answer.json()["issuer"]) == (200, BASE + "/gate/way/oauth/acme")


@pytest.mark.parametrize(
    "place",
    ["", "/", "/acme", "/oauth", "/oauth/", "/oauth/UP", "/oauth/acme/more", "/other/oauth/acme", "/oauth/a%22b"],
)
@pytest.mark.parametrize("root", ["oauth-authorization-server", "openid-configuration"])
async def test_other_places_have_nothing(web: Web, root: str, place: str) -> None:
    assert (await web.ask("GET", f"/.well-known/{root}{place}")).status_code == 404


async def test_keys_may_be_kept_for_a_while(web: Web) -> None:
    answer = await web.ask("GET", "/oauth/acme/jwks")
    assert len(answer.json()["keys"]) == 3
    assert answer.headers["cache-control"] == "max-age=300"
    assert answer.headers["access-control-allow-origin"] == "*"


async def test_who_asks_for_the_metadata_of_many_tenants_is_slowed(web: Web) -> None:
    for number in range(100):
        assert (await web.ask("GET", f"/oauth/t{number}/jwks")).status_code == 404
    for path in ("/oauth/acme/jwks", *(each.format(path="") for each in PLACES)):
        assert (await web.ask("GET", path)).status_code == 429
    web.address = "192.0.2.2"
    assert (await web.ask("GET", PLACES[0].format(path=""))).status_code == 200


async def test_metadata_that_is_found_costs_nothing(web: Web) -> None:
    for _ in range(101):
        assert (await web.ask("GET", "/oauth/acme/jwks")).status_code == 200


# --- who has none

ENDPOINTS = [
    ("GET", "/.well-known/oauth-authorization-server/oauth/{}"), ("GET", "/.well-known/openid-configuration/oauth/{}"),
    ("GET", "/oauth/{}/.well-known/oauth-authorization-server"), ("GET", "/oauth/{}/.well-known/openid-configuration"),
    ("GET", "/oauth/{}/jwks"), ("POST", "/oauth/{}/token"), ("POST", "/oauth/{}/revoke"),
    ("POST", "/oauth/{}/register"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
async def test_a_tenant_that_has_none_is_answered_like_one_that_is_none(web: Web, method: str, path: str) -> None:
    web.rig.rules["closed"] = None
    answers = [
        await web.ask(method, path.format(each), json={"redirect_uris": [HERE]}) for each in ("closed", "nobody")
    ]
    answers.append(await web.ask(method, path.format("UP")))
    assert [each.status_code for each in answers] == [404] * 3
    closed, *others = (each.json() for each in answers)
    assert closed["detail"] == "There is nothing at this address"
    assert others == [closed] * 2


async def test_who_looks_for_tenants_by_their_token_endpoint_is_slowed(web: Web) -> None:
    for number in range(300):
        assert (await web.token(f"t{number}", **NOTHING)).status_code == 404
    assert (await web.token(**NOTHING)).status_code == 429


# --- other origins


@pytest.mark.parametrize("path", ["/oauth/acme/token", "/oauth/acme/register", "/oauth/nobody/jwks", "/oauth/UP/x"])
async def test_a_preflight_is_answered_alike_for_every_tenant(web: Web, path: str) -> None:
    sent = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    answer = await web.ask("OPTIONS", path, headers=sent)
    assert (answer.status_code, answer.content) == (204, b"")
    allowed = {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}
    assert allowed == {
        "access-control-allow-origin": "*",
        "access-control-allow-methods": "GET, POST, OPTIONS",
        "access-control-allow-headers": "Authorization, Content-Type, MCP-Protocol-Version",
        "access-control-max-age": "600",
    }


# --- tokens


async def test_a_code_becomes_tokens_that_nobody_keeps(web: Web) -> None:
    answer = await web.token(**redemption(await web.rig.code()))
    assert answer.status_code == 200
    assert is_open(answer)
    assert answer.headers["pragma"] == "no-cache"
    assert set(answer.json()) == {"access_token", "token_type", "expires_in", "scope", "refresh_token"}


async def test_a_client_that_is_not_let_in_is_asked_for_its_secret(web: Web) -> None:
    web.rig.client("batch", authentication="secret", scopes=frozenset({"mcp:connect"}))
    asked = {"data": {"grant_type": "client_credentials"}}
    sent = {"Authorization": basic("batch", "tls_wrong")}
    wrong = await web.ask("POST", "/oauth/acme/token", headers=sent, **asked)
    assert (wrong.status_code, wrong.json()["error"]) == (401, "invalid_client")
    assert wrong.headers["www-authenticate"].startswith("Basic")
    assert is_open(wrong)
    sent = {"Authorization": basic("batch", web.rig.secret("batch"))}
    right = await web.ask("POST", "/oauth/acme/token", headers=sent, **asked)
    assert (right.status_code, "refresh_token" in right.json()) == (200, False)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff\xfe", b"{}", b"grant_type", b"grant_type=", b"grant_type=refresh_token&grant_type=refresh_token",
        urlencode([("grant_type", "refresh_token")] + [(f"f{number}", "x") for number in range(MAX_FIELDS)]).encode(),
    ],
)  # fmt: skip
async def test_what_is_no_form_is_an_invalid_request(web: Web, content: bytes) -> None:
    answer = await web.ask("POST", "/oauth/acme/token", content=content, headers=FORM)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")
    assert is_open(answer)


async def test_a_form_is_read_whatever_it_says_that_it_is_and_a_resource_may_be_there_twice(web: Web) -> None:
    form = redemption(await web.rig.code(), resource=[TO.audience(""), TO.audience("")])
    answer = await web.ask("POST", "/oauth/acme/token", content=urlencode(form, doseq=True))
    assert answer.status_code == 200, answer.text


async def test_only_what_is_refused_counts(web: Web) -> None:
    tokens = (await web.token(**redemption(await web.rig.code()))).json()
    for _ in range(299):
        assert (await web.token(**NOTHING)).status_code == 400
    for _ in range(3):
        form = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"], "client_id": "cli"}
        answer = await web.token(**form)
        assert answer.status_code == 200, answer.text
        tokens = answer.json()
    assert (await web.token(**NOTHING)).status_code == 400
    slowed = await web.token(**NOTHING)
    assert (slowed.status_code, slowed.json()["reason"]) == (429, "rate_limited")
    assert slowed.headers["retry-after"] == "1"
    web.address = "192.0.2.2"
    assert (await web.token(**NOTHING)).status_code == 400


async def test_a_database_that_is_away_is_no_refusal_of_the_token(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> None:
        raise StorageUnavailable

    monkeypatch.setattr(web.rig.connections, "find", away)
    answer = await web.token(**redemption(await web.rig.code()))
    assert (answer.status_code, answer.json()["reason"]) == (503, "storage_unavailable")


@pytest.mark.parametrize("error", [StorageUnavailable, ProviderUnavailable])
async def test_a_fleet_that_cannot_be_answered_now_keeps_its_tokens_and_its_tries(
    web: Web, monkeypatch: pytest.MonkeyPatch, error: type[GatewayError]
) -> None:
    tokens = await web.rig.connected()

    async def away(*_: object) -> None:
        raise error

    form = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"], "client_id": "cli"}
    with monkeypatch.context() as patch:
        patch.setattr(People, "confirmed", away)
        for _ in range(301):
            answer = await web.token(**form)
            assert (answer.status_code, answer.json()["reason"]) == (503, error.reason)
            assert int(answer.headers["retry-after"]) > 0
    assert (await web.token(**form)).status_code == 200


# --- revocation


async def test_what_is_revoked_or_was_never_valid_gets_the_same_answer(web: Web) -> None:
    tokens = await web.rig.connected()
    for text in (tokens["refresh_token"], tokens["refresh_token"], "nonsense"):
        answer = await web.ask("POST", "/oauth/acme/revoke", data={"token": text, "client_id": "cli"})
        assert (answer.status_code, answer.content) == (200, b"")
        assert is_open(answer)
    assert not web.rig.connections.rows


async def test_who_revokes_has_to_be_a_client_and_is_slowed(web: Web) -> None:
    for _ in range(300):
        answer = await web.ask("POST", "/oauth/acme/revoke", data={"token": "x", "client_id": "nobody"})
        assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client")
    assert is_open(answer)
    right = {"token": "x", "client_id": "cli"}
    assert (await web.ask("POST", "/oauth/acme/revoke", data=right)).status_code == 429
    web.rig.elapsed_s += 0.1
    for _ in range(3):
        assert (await web.ask("POST", "/oauth/acme/revoke", data=right)).status_code == 200


# --- registration


async def test_a_program_registers_itself(web: Web) -> None:
    answer = await web.register(
        client_name="Desk", redirect_uris=[WEB], token_endpoint_auth_method="client_secret_basic"
    )
    assert answer.status_code == 201
    assert is_open(answer)
    made = answer.json()
    assert (made["client_name"], made["redirect_uris"]) == ("Desk", [WEB])
    assert (made["token_endpoint_auth_method"], "client_secret" in made) == ("none", False)
    assert (await web.register(client_name="Desk", redirect_uris=[WEB])).json()["client_id"] == made["client_id"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
async def test_what_is_no_object_is_not_registered(web: Web, content: bytes) -> None:
    answer = await web.ask("POST", "/oauth/acme/register", content=content)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_client_metadata")
    assert is_open(answer)


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"redirect_uris": []}, "invalid_redirect_uri"),
        ({"redirect_uris": HERE}, "invalid_redirect_uri"),
        ({"redirect_uris": ["http://evil.example/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": [WEB + "#x"]}, "invalid_redirect_uri"),
        ({"client_name": 1}, "invalid_client_metadata"),
    ],
)
async def test_metadata_that_cannot_be_used_is_named(web: Web, metadata: dict[str, Any], error: str) -> None:
    answer = await web.register(**metadata)
    assert (answer.status_code, answer.json()["error"]) == (400, error)
    words = answer.json()["error_description"]
    assert all(" " <= each <= "~" and each not in '"\\' for each in words)  # RFC 6749, 5.2
    assert is_open(answer)


async def test_who_may_not_register_is_told_so(web: Web) -> None:
    web.rig.rules["acme"] = SignIn(block_hosts=("app.example",))
    blocked = await web.register(redirect_uris=[WEB])
    web.rig.rules["acme"] = SignIn(registration=False)
    closed = await web.register()
    for answer in (blocked, closed):
        assert (answer.status_code, answer.json()["error"]) == (403, "access_denied")
        assert is_open(answer)


async def test_no_place_for_one_more_is_a_404(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object) -> None:
        raise NotFound("Every place for clients that register themselves is in use")

    monkeypatch.setattr(web.rig.connections, "register", full)
    assert (await web.register()).status_code == 404


async def test_registrations_count_unless_the_program_is_known(web: Web) -> None:
    for number in range(15):
        assert (await web.register(client_name=f"Desk {number}")).status_code == 201
        assert (await web.register(redirect_uris=[])).status_code == 400
        if number < 14:
            assert (await web.register(client_name="Desk 0")).status_code == 201
    slowed = await web.register(client_name="Desk 15")
    assert (slowed.status_code, slowed.headers["retry-after"]) == (429, "2")
    assert (await web.token(**NOTHING)).status_code == 400
    web.address = "192.0.2.2"
    assert (await web.register(client_name="Desk 15")).status_code == 201


async def test_a_tenant_takes_so_many_registrations_from_whatever_addresses(web: Web) -> None:
    statuses = []
    for number in range(310):
        web.address = f"192.0.{number // 200}.{number % 200}"
        statuses.append((await web.register(client_name=f"Desk {number}")).status_code)
    assert statuses == sorted(statuses)
    assert statuses.count(201) in (299, 300)
    assert set(statuses) == {201, 429}
