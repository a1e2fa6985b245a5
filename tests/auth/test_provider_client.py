"""The gateway as a client of an identity provider: what it sends, what it takes, and what a refusal means."""

import json
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from app.auth.authenticator import MAX_CREDENTIAL_BYTES
from app.auth.outbound_urls import FetchFailed, FetchRefused
from app.auth.provider_client import (
    ASSERTION_TYPE,
    MAX_REFRESH_TOKEN,
    ProviderClient,
    ProviderRefused,
    ProviderTokens,
    client_secret_place,
)
from app.domain import SignInClient
from tests.auth.test_client_keys import P256, pem, verified, with_certificate
from tests.auth.test_jwks import RSA
from tests.auth.tokens import ISS, Record, T, sealer

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
    return ProviderClient(outbound, sealer, lambda: T)


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


def holding(secret: str) -> Record:
    """The provider, with this secret or key of the gateway's."""
    return replace(ISSUER, sealed_client_secret=sealer.seal(secret.encode(), client_secret_place(ISSUER)))


@pytest.mark.parametrize(("key", "listed"), [(RSA, ["PS256"]), (RSA, None), (P256, ["RS256", "ES256"])])
async def test_a_key_signs_who_the_client_is_and_is_not_sent(host, client, key, listed):
    host.found["token_endpoint_auth_signing_alg_values_supported"] = listed
    await client.redeemed(holding(pem(key)), CLIENT, code="c", verifier="v", redirect_uri="https://gw/back")
    await client.refreshed(holding(pem(key)), CLIENT, "r")
    forms = [form for _, form in host.posted]
    for form in forms:
        assert form.keys().isdisjoint({"client_secret"})
        assert (form["client_id"], form["client_assertion_type"]) == ("gateway", ASSERTION_TYPE)
        algorithm = jwt.get_unverified_header(form["client_assertion"])["alg"]
        assert algorithm in (listed or ["RS256"])
        claims = verified(form["client_assertion"], key, algorithm, host.posted[0][0])
        assert {**claims, "jti": ""} == {
            "iss": "gateway", "sub": "gateway", "aud": ISS + "/token", "iat": T, "exp": T + 60, "jti": "",
        }  # fmt: skip
    assert forms[0]["client_assertion"] != forms[1]["client_assertion"]
    assert {name: each for name, each in forms[1].items() if not name.startswith("client_")} == {
        "grant_type": "refresh_token",
        "refresh_token": "r",
    }


async def test_a_key_with_its_certificate_is_found_by_that(host, client):
    await client.refreshed(holding(with_certificate(RSA)), CLIENT, "r")
    header = jwt.get_unverified_header(host.posted[0][1]["client_assertion"])
    assert (set(header), header["alg"]) == ({"alg", "typ", "x5t#S256"}, "PS256")


async def test_a_key_that_the_provider_does_not_take_asks_it_for_nothing(host, client):
    for text, words in (
        (pem(ed25519.Ed25519PrivateKey.generate()), "the provider does not say that it takes EdDSA"),
        ("-----BEGIN PRIVATE KEY-----", "it cannot be read: PKCS#8 in PEM form is expected"),
    ):
        error = await refused(client, holding(text))
        assert (str(error), error.is_final) == (f"our key for it cannot be used: {words}", False)
    assert host.posted == []


async def test_parameters_of_an_issuer_are_sent_with_the_browser_and_replace_none_of_the_gateways(client):
    more = replace(CLIENT, parameters={"access_type": "offline", "prompt": "consent", "state": "s", "scope": "all"})
    address = await client.address(ISSUER, more, verifier="v", redirect_uri="https://gw/back", state="ours")
    asked = parse_qs(urlsplit(address).query, strict_parsing=True)
    assert (asked["access_type"], asked["prompt"]) == (["offline"], ["consent"])
    assert (asked["state"], asked["scope"]) == (["ours"], ["openid offline_access"])


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
