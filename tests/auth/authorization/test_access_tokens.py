"""Access tokens of a tenant's own authorization server (RFC 9068): made, verified, and what is none."""

import json
from base64 import urlsafe_b64decode
from dataclasses import replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.auth._refusal import CredentialRefused
from app.auth.authorization.access_tokens import LEEWAY_S, LIFE_S, PERIOD_S, Holder, OwnTokens, SigningKeys, narrowed
from app.auth.authorization.addresses import Addresses
from app.domain import CLIENT_GRANT, CLIENT_ISSUER, Principal
from tests.auth.authorization.rig import ALL, OTHERS, SECRET_KEY, TO, Rig
from tests.auth.tokens import BASE, ISS, T, b64


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    header, claims = (json.loads(urlsafe_b64decode(each + "==")) for each in token.split(".")[:2])
    return header, claims


def signed(rig: Rig, header: dict[str, Any], claims: dict[str, Any], key: Any = None, tenant: str = "acme") -> str:
    kid, current = rig.signing.current(tenant, rig.now().timestamp())
    named = {"typ": "at+jwt", "kid": kid, **header}
    text = f"{b64({'alg': 'EdDSA', **named})}.{b64(claims)}"
    return f"{text}.{b64((key or current).sign(text.encode()))}"


async def refuse(rig: Rig, token: str) -> str:
    with pytest.raises(CredentialRefused) as caught:
        await rig.own.verify(token)
    return str(caught.value.facts["failure"])


async def test_a_token_says_who_for_what_and_by_which_client(rig):
    token = (await rig.connected(resource=f"{ALL}/echo"))["access_token"]
    header, claims = parts(token)
    assert header == {"alg": "EdDSA", "typ": "at+jwt", "kid": f"trunkline-{T // PERIOD_S}"}
    assert len(claims.pop("jti")) >= 16  # RFC 9068, 2.2
    assert claims == {
        "iss": f"{BASE}/oauth/acme", "sub": rig.person.subject, "aud": f"{ALL}/echo/mcp", "iat": T, "exp": T + LIFE_S,
        "client_id": "cli", "scope": "mcp:connect:echo", "idp": "key", "grant": rig.only.id,
    }  # fmt: skip
    assert OwnTokens.is_own(token)
    (key,) = (each for each in rig.signing.published("acme", T) if each["kid"] == header["kid"])
    assert jwt.decode(token, jwt.PyJWK(key), ["EdDSA"], audience=f"{ALL}/echo/mcp", options={"verify_exp": False})


async def test_what_is_changed_in_a_token_makes_it_none(rig):
    token = (await rig.connected())["access_token"]
    claims = parts(token)[1]
    assert (await rig.own.verify(signed(rig, {}, claims))).identity == rig.person.identity
    other, past = Ed25519PrivateKey.generate(), f"trunkline-{T // PERIOD_S - 1}"
    _, theirs = rig.signing.current("zenith", T)
    wrong = {
        "another key": signed(rig, {}, claims, other),
        "another tenant's key": signed(rig, {}, claims, theirs),
        "another tenant's name": signed(rig, {}, {**claims, "iss": OTHERS.issuer}),
        "no tenant's name": signed(rig, {}, {**claims, "iss": f"{BASE}/oauth/"}),
        "no name at all": signed(rig, {}, {**claims, "iss": None}),
        "an old kid": signed(rig, {"kid": past}, claims),
        "a new kid": signed(rig, {"kid": f"trunkline-{T // PERIOD_S + 1}"}, claims),
        "no kid": signed(rig, {"kid": None}, claims),
        "no type": signed(rig, {"typ": None}, claims),
        "the type of others": signed(rig, {"typ": "JWT"}, claims),
        "no algorithm": signed(rig, {"alg": "none"}, claims),
        "another algorithm": signed(rig, {"alg": "HS256"}, claims),
        "no end": signed(rig, {}, {**claims, "exp": None}),
        "an end in words": signed(rig, {}, {**claims, "exp": str(claims["exp"])}),
        "no fraction": signed(rig, {}, {**claims, "exp": claims["exp"] + 0.5}),
        "now": signed(rig, {}, {**claims, "exp": T}),
        "the audience of others": signed(rig, {}, {**claims, "aud": f"{BASE}/t/zenith"}),
        "many audiences": signed(rig, {}, {**claims, "aud": [ALL]}),
        "no scopes": signed(rig, {}, {**claims, "scope": 1}),
        "no grant": signed(rig, {}, {**claims, "grant": ""}),
        "another grant": signed(rig, {}, {**claims, "grant": "f" * 16}),
        "claims": f"{token.split('.')[0]}.{b64({**claims, 'sub': 'x'})}.{token.split('.')[2]}",
        "no signature": token.rpartition(".")[0] + ".AA",
        "something more": token + ".AA",
        "nothing": "",
    }
    rig.client("job", "zenith", scopes=("mcp:connect",), authentication="secret")
    of_client = {**claims, "grant": CLIENT_GRANT + "job", "idp": CLIENT_ISSUER, "aud": f"{BASE}/t/zenith"}
    wrong["for a client of another tenant"] = signed(rig, {}, {**of_client, "iss": OTHERS.issuer})
    for what, each in wrong.items():
        with pytest.raises(CredentialRefused):
            assert await rig.own.verify(each) is None, what


@pytest.mark.parametrize("header", [
    "", "x", b64(b"[1]"), b64(b"1"), b64(b'"x"'), b64({}), b64({"kid": 1}), b64({"kid": "a"}), b64(b"\xff"),
    b64(b"[" * 6000), b64(b'{"kid":' * 2000), "=", "A",
])  # fmt: skip
def test_what_is_no_token_of_ours_is_none_of_ours(header):
    for text in (header, f"{header}.b.c", f"{header}." * 3):
        assert OwnTokens.is_own(text) is False


async def test_a_token_is_good_for_ten_minutes(rig):
    token = (await rig.connected())["access_token"]
    rig.elapsed_s = LIFE_S - 0.5
    await rig.own.verify(token)
    rig.elapsed_s = LIFE_S
    assert await refuse(rig, token) == "expired"


async def test_a_token_outlives_the_month_of_its_key_and_the_next_key_is_known_before(rig):
    rig.elapsed_s = PERIOD_S - T % PERIOD_S - 10
    old = (await rig.connected())["access_token"]
    assert len(rig.signing.published("acme", rig.now().timestamp())) == 3
    known = {each["kid"] for each in rig.signing.published("acme", rig.now().timestamp())}
    rig.elapsed_s += 20
    new = (await rig.connected())["access_token"]
    assert parts(old)[0]["kid"] != parts(new)[0]["kid"]
    assert parts(new)[0]["kid"] in known
    for each in (old, new):
        await rig.own.verify(each)
    rig.elapsed_s += LIFE_S
    old_key = Rig.now(rig).timestamp()
    assert rig.signing.of("acme", parts(old)[0]["kid"], old_key) is not None  # its last tokens are just over
    rig.elapsed_s += LEEWAY_S
    assert rig.signing.of("acme", parts(old)[0]["kid"], rig.now().timestamp()) is None
    assert rig.signing.of("acme", parts(new)[0]["kid"], rig.now().timestamp()) is not None


def test_keys_are_of_one_tenant_one_month_and_one_secret_key():
    keys = [SigningKeys(secret).published(tenant, now)[1]["x"]
            for secret in (SECRET_KEY, b"o" * 32) for tenant in ("acme", "zenith")
            for now in (T, T + PERIOD_S)]  # fmt: skip
    assert len(set(keys)) == 8
    assert SigningKeys(SECRET_KEY).published("acme", T)[1]["x"] == keys[0]
    assert all("d" not in each for each in SigningKeys(SECRET_KEY).published("acme", T))


async def test_a_token_stands_on_its_connection_and_its_person(rig):
    for end, failure in (
        (rig.connections.rows.clear, "revoked"),
        (lambda: rig.keys.records.update(
            {rig.person.subject: replace(rig.keys.records[rig.person.subject], revoked_at=rig.now())}), "revoked"),
        (rig.keys.records.clear, "unknown"),
    ):  # fmt: skip
        rig.person = rig.key()
        token = (await rig.connected())["access_token"]
        assert await rig.own.verify(token)
        end()
        assert await refuse(rig, token) == failure
    person = replace(rig.key(), issuer="https://idp.example.com", subject="alice")
    token = (await rig.connected(person))["access_token"]
    assert (await rig.own.verify(token)).identity == ("acme", "https://idp.example.com", "alice")
    rig.idp.records.clear()
    assert await refuse(rig, token) == "unknown_issuer"


async def test_a_token_of_a_program_stands_on_the_client(rig):
    rig.client("job", scopes=("mcp:connect",), authentication="secret")
    holder = Holder(CLIENT_ISSUER, "job", {"mcp:connect"}, CLIENT_GRANT + "job", "job")
    token = rig.own.make(TO, "", holder)
    assert (await rig.own.verify(token)).issuer == CLIENT_ISSUER
    del rig.clients["acme", "job"]
    assert await refuse(rig, token) == "revoked"


async def test_the_audience_of_a_token_becomes_its_scopes(rig):
    rig.client("job", scopes=("mcp:connect",), authentication="secret")
    for scopes, backend, found in (
        ({"mcp:connect"}, "", {"mcp:connect"}),
        ({"mcp:connect"}, "echo", {"mcp:connect:echo"}),
        ({"mcp:connect:echo", "mcp:connect:files"}, "echo", {"mcp:connect:echo"}),
        ({"mcp:connect:files"}, "echo", set()),
        ({"tenant:admin", "platform:admin"}, "", set()),
    ):
        token = rig.own.make(TO, backend, Holder(CLIENT_ISSUER, "job", scopes, CLIENT_GRANT + "job", "job"))
        assert (await rig.own.verify(token)).scopes == found == narrowed(scopes, backend)
    elsewhere = Addresses("https://other.example", "acme")
    token = rig.own.make(elsewhere, "echo", Holder(CLIENT_ISSUER, "job", {"mcp:connect"}, CLIENT_GRANT + "job", "job"))
    assert (await rig.own.verify(token)).scopes == {"mcp:connect:echo"}  # by another name of the gateway


async def test_a_token_says_the_groups_of_its_person_and_no_claim_where_there_are_none(rig):
    alice = Principal("acme", ISS, "alice", frozenset({"mcp:connect"}), groups=frozenset({"staff", "analysts"}))
    await rig.people.signed_in(alice, None)
    token = (await rig.connected(alice))["access_token"]
    assert parts(token)[1]["groups"] == ["analysts", "staff"]
    principal = await rig.own.verify(token)
    assert (principal.identity, principal.groups) == (alice.identity, alice.groups)
    rig.connections.rows.clear()
    token = (await rig.connected())["access_token"]
    assert "groups" not in parts(token)[1]
    assert (await rig.own.verify(token)).groups == frozenset()
