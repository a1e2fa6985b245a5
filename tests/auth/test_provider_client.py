"""The gateway as a client of an identity provider: what it sends, what it takes, and what a refusal means."""

import json
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from app.auth.authenticator import MAX_CREDENTIAL_BYTES
from app.auth.outbound_urls import FetchFailed, FetchRefused
from app.auth.provider_client import (
    MAX_REFRESH_TOKEN,
    ProviderClient,
    ProviderRefused,
    ProviderTokens,
    client_secret_place,
)
from app.domain import SignInClient
from tests.auth.tokens import ISS, Record, sealer

CLIENT = SignInClient("gateway", "openid offline_access", "access_token")
ISSUER = Record(jwks_url=None, discovery_url=ISS + "/.well-known/openid-configuration", sign_in=CLIENT)


@dataclass
class Host:
    """The provider, as Outbound reaches it."""

    found: dict[str, Any] = field(default_factory=lambda: {
        "issuer": ISS, "authorization_endpoint": ISS + "/authorize?x=1", "token_endpoint": ISS + "/token"})  # fmt: skip
    answer: Any = field(default_factory=lambda: {"access_token": "a.b.c", "id_token": "i.j.k", "refresh_token": "r"})
    posted: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    async def get(self, url: str) -> bytes:
        assert url == ISSUER.discovery_url
        return json.dumps(self.found).encode()

    async def post(self, url: str, form: dict[str, str]) -> bytes:
        self.posted.append((url, dict(form)))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def client(host: Host) -> ProviderClient:
    outbound: Any = host
    return ProviderClient(outbound, sealer)


async def refused(client: ProviderClient, issuer: Record = ISSUER) -> ProviderRefused:
    with pytest.raises(ProviderRefused) as caught:
        await client.refreshed(issuer, CLIENT, "r")
    return caught.value


async def test_a_browser_is_sent_to_sign_in_with_a_challenge_of_the_verifier(client):
    address = await client.address(ISSUER, CLIENT, verifier="v" * 43, redirect_uri="https://gw/back", state="s&t")
    asked = {name: value for name, (value,) in parse_qs(urlsplit(address).query, strict_parsing=True).items()}
    challenge = urlsafe_b64encode(sha256(b"v" * 43).digest()).rstrip(b"=").decode()
    assert address.startswith(ISS + "/authorize?x=1&")
    assert asked == {
        "x": "1", "response_type": "code", "client_id": "gateway", "scope": "openid offline_access", "state": "s&t",
        "code_challenge": challenge, "code_challenge_method": "S256", "redirect_uri": "https://gw/back",
    }  # fmt: skip


async def test_a_code_and_a_refresh_token_are_sent_to_the_token_endpoint_in_a_form(host, client):
    found = await client.redeemed(ISSUER, CLIENT, code="c", verifier="v", redirect_uri="https://gw/back")
    assert found == ProviderTokens("a.b.c", "r")
    place = client_secret_place(ISSUER)
    confidential = replace(ISSUER, sealed_client_secret=sealer.seal(b"secret", place))
    assert await client.refreshed(confidential, replace(CLIENT, token="id_token"), "old") == ("i.j.k", "r")
    code = {"grant_type": "authorization_code", "code": "c", "redirect_uri": "https://gw/back", "code_verifier": "v"}
    assert host.posted == [
        (ISS + "/token", {**code, "client_id": "gateway"}),
        (ISS + "/token", {"grant_type": "refresh_token", "refresh_token": "old", "client_id": "gateway",
                          "client_secret": "secret"}),
    ]  # fmt: skip


async def test_a_secret_of_another_place_is_not_sent(host, client):
    for place in ("client secret|zenith|issuer1", "people|x"):
        error = await refused(client, replace(ISSUER, sealed_client_secret=sealer.seal(b"secret", place)))
        assert not error.is_final
    assert host.posted == []


@pytest.mark.parametrize(("answer", "words", "is_final"), [
    ({"error": "invalid_grant", "error_description": "The token is over."}, "The token is over.", True),
    ({"error": "invalid_grant"}, "invalid_grant", True), ({"error": "invalid_client"}, "invalid_client", False),
    ({"error": "temporarily_unavailable"}, "temporarily_unavailable", False), ({"error": 1}, "1", False),
    ({}, "refused", False),
    ({"error": "invalid_grant", "error_description": "a\0b\n\ud800c" + "d" * 999}, "a b  c" + "d" * 294, True),
    ([], "refused", False), (None, "refused", False),
    ({"error": {"x": 1}, "error_description": ["\0"]}, "['\\x00']", False),
])  # fmt: skip
async def test_a_refusal_is_final_only_where_it_is_about_the_person(host, client, answer, words, is_final):
    host.answer = FetchRefused("refused", json.dumps(answer).encode())
    error = await refused(client)
    assert (str(error), error.is_final) == (words, is_final)


@pytest.mark.parametrize("body", [b"", b"x", b"\xff", b"[" * 6000])
async def test_a_body_that_is_no_json_is_no_answer(host, client, body):
    for host.answer in (FetchRefused("refused", body), body):
        assert not (await refused(client)).is_final


@pytest.mark.parametrize("token", [None, 1, "", "\u00e9", ["a"], "a" * MAX_CREDENTIAL_BYTES])
async def test_a_token_that_cannot_be_used_is_none(host, client, token):
    host.answer = {"access_token": token, "refresh_token": "r"}
    assert str(await refused(client)) == "it has sent no access token that can be used"


@pytest.mark.parametrize("token", [None, 1, "", "\u00e9", ["a"], "a" * (MAX_REFRESH_TOKEN + 1)])
async def test_a_refresh_token_that_cannot_be_kept_is_left_out(host, client, token):
    host.answer = {"access_token": "a.b.c", "refresh_token": token}
    assert await client.refreshed(ISSUER, CLIENT, "r") == ("a.b.c", None)


@pytest.mark.parametrize("change", [
    {"issuer": ISS + "/"}, {"issuer": None}, {"token_endpoint": None}, {"token_endpoint": 1}, {"token_endpoint": "x"},
    {"token_endpoint": "javascript:alert(1)"}, {"token_endpoint": ISS + "\\@evil.example"}, {"token_endpoint": "https://a@b/"},
])  # fmt: skip
async def test_a_document_of_another_issuer_or_with_no_url_is_not_followed(host, client, change):
    host.found |= change
    with pytest.raises(FetchFailed):
        await client.refreshed(ISSUER, CLIENT, "r")
    assert host.posted == []
