"""JWTs that are refused, each with a public key and with a secret (security.md, "Authentication details"; A1)."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from app.auth._refusal import CredentialRefused
from app.auth.issuer_rules import is_issuer, is_secret
from app.auth.sealing import SealBroken, Sealer
from app.auth.tokens import MAX_TOKEN_BYTES
from tests.auth.test_jwks import OTHER, RSA, SHORT, document, jwk
from tests.auth.tokens import (
    BASE,
    HS,
    ISS,
    KEYS,
    SECRET,
    TARGET,
    Record,
    T,
    b64,
    claims,
    hmac_token,
    raw_token,
    sealer,
    token,
)

RSA_PUBLIC_PEM = RSA.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


RSA_PUBLIC_DER = RSA.public_key().public_bytes(
    serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
)


BAD_CLAIMS: dict[str, dict[str, Any]] = {
    "no exp": {"exp": ...},
    "no iat": {"iat": ...},
    "no aud": {"aud": ...},
    "no sub": {"sub": ...},
    "no iss": {"iss": ...},
    "exp null": {"exp": None},
    "iat null": {"iat": None},
    "nbf null": {"nbf": None},
    "sub null": {"sub": None},
    "aud null": {"aud": None},
    "aud empty": {"aud": []},
    "expired": {"iat": T - 600, "exp": T - 30},
    "expired long ago": {"iat": T - 10**6, "exp": T - 10**6 + 600},
    "from the future": {"iat": T + 31, "exp": T + 600},
    "not yet": {"nbf": T + 31},
    "lives too long": {"exp": T + 86401},
    "ends before it begins": {"iat": T + 10, "exp": T + 5},
    "exp a float": {"exp": T + 600.5},
    "exp a whole float": {"exp": float(T + 600)},
    "exp a text": {"exp": str(T + 600)},
    "exp true": {"exp": True},
    "iat false": {"iat": False},
    "nbf false": {"nbf": False},
    "exp a list": {"exp": [T + 600]},
    "exp huge": {"exp": 10**30},
    "exp enormous": {"exp": 10**400},
    "iat negative": {"iat": -1, "exp": 600},
    "iat a float": {"iat": T + 0.0},
    "another issuer": {"iss": "https://evil.example.com"},
    "issuer with a slash": {"iss": ISS + "/"},
    "issuer in capitals": {"iss": ISS.upper()},
    "issuer in a list": {"iss": [ISS]},
    "issuer with NUL": {"iss": ISS + "\0"},
    "issuer a surrogate": {"iss": "\ud800"},
    "issuer of keys": {"iss": "key"},
    "issuer empty": {"iss": ""},
    "another audience": {"aud": "https://gw.example.com"},
    "audience of another backend": {"aud": f"{BASE}/t/acme/other/mcp"},
    "audience of another tenant": {"aud": f"{BASE}/t/zenith/echo/mcp"},
    "audience of the API": {"aud": f"{BASE}/api/v1/tenants/acme"},
    "audience of another host": {"aud": "https://evil.example.com/t/acme/echo/mcp"},
    "audience with a slash": {"aud": TARGET.resource + "/"},
    "audience a prefix": {"aud": TARGET.resource[:-1]},
    "audience a number": {"aud": 7},
    "audience with a number": {"aud": [TARGET.resource, 7]},
    "audience an object": {"aud": {TARGET.resource: 1}},
    "subject a number": {"sub": 7},
    "subject empty": {"sub": ""},
    "subject too long": {"sub": "a" * 256},
    "subject of two lines": {"sub": "a\nb"},
    "subject a surrogate": {"sub": "\ud800"},
    "scope a number": {"scope": 7},
    "scope an object": {"scope": {"mcp:connect": True}},
    "scope with a number": {"scope": ["mcp:connect", 7]},
    "too many scopes": {"scope": ["mcp:connect"] * 101},
    "jti a number": {"jti": 7},
}


BAD_HEADERS: dict[str, dict[str, Any]] = {
    "crit": {"crit": ["exp"]},
    "crit empty": {"crit": []},
    "b64 false": {"b64": False, "crit": ["b64"]},
    "b64 true": {"b64": True},
    "jku": {"jku": "https://evil.example.com/jwks"},
    "x5u": {"x5u": "https://evil.example.com/cert"},
    "x5c": {"x5c": ["MIIB"]},
    "jwk": {"jwk": jwk(OTHER, "a")},
    "jku null": {"jku": None},
    "kid too long": {"kid": "a" * 129},
    "kid a number": {"kid": 7},
    "kid null": {"kid": None},
    "kid a list": {"kid": ["a"]},
    "alg none": {"alg": "none"},
    "alg None": {"alg": "None"},
    "alg empty": {"alg": ""},
    "alg null": {"alg": None},
    "alg a list": {"alg": ["RS256", "HS256"]},
    "alg a number": {"alg": 7},
    "alg in small letters": {"alg": "rs256"},
    "alg of another family": {"alg": "ES256"},
    "alg of another size": {"alg": "RS512"},
    "alg PS": {"alg": "PS256"},
    "alg HS512": {"alg": "HS512"},
    "alg unknown": {"alg": "XX256"},
}


@pytest.mark.parametrize("algorithm", ["RS256", "HS256"])
@pytest.mark.parametrize("name", [*BAD_CLAIMS, *BAD_HEADERS])
async def test_a_signed_token_with_one_thing_wrong_is_refused_and_its_control_is_not(rig, algorithm, name):
    if algorithm == "HS256":
        rig.set(HS)
    bad = token(algorithm, BAD_HEADERS.get(name), **BAD_CLAIMS.get(name, {}))
    assert await rig.refuse(bad)
    assert await rig.tokens.verify(token(algorithm), TARGET)


@pytest.mark.parametrize(
    "subject",
    ["key", "cli", "uid 0", "uid 1000", "UID 0", "uid0", " cli", "C L I".replace(" ", ""), "\uff4b\uff45\uff59"],
)
async def test_a_subject_that_reads_like_the_gateways_own_marks_is_refused(rig, subject):
    assert await rig.refuse(token(sub=subject)) == "reserved"


@pytest.mark.parametrize("subject", ["keys", "client", "uid 0x", "uid=0", "0", "alice cli"])
async def test_one_that_only_has_them_in_it_is_not(rig, subject):
    assert (await rig.tokens.verify(token(sub=subject), TARGET)).subject == subject


def forged(algorithm: str) -> dict[str, str]:
    """Not signed by the issuer, or no token at all."""
    good = token(algorithm)
    head, body, signature = good.split(".")
    header = {"alg": algorithm, "kid": "a"}
    evil = claims(sub="mallory", scope="platform:admin")
    attacker = b"attacker's own secret of 32 bytes"
    n = jwk(RSA)["n"].encode()
    infinite = json.dumps(claims(exp=1)).encode().replace(b": 1,", b": 1e400,")
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    twin = next(
        each for each in last if each != signature[-1] and last.index(each) // 16 == last.index(signature[-1]) // 16
    )
    return {
        "no signature": f"{head}.{body}.",
        "two parts": f"{head}.{body}",
        "four parts": f"{good}.AAAA",
        "five parts (JWE)": f"{good}.AAAA.AAAA",
        "another body": f"{head}.{b64(evil)}.{signature}",
        "another head": f"{b64({**header, 'x': 1})}.{body}.{signature}",
        "signature cut": good[:-4],
        "signature longer": good + "AAAA",
        "signature of zeros": f"{head}.{body}.{b64(bytes(256))}",
        "signature with another spelling": good[:-1] + twin,
        "padding": good + "=",
        "none without signature": f"{b64({'alg': 'none'})}.{b64(evil)}.",
        "none with signature": f"{b64({'alg': 'none'})}.{b64(evil)}.{signature}",
        "public PEM as secret": hmac_token({"alg": "HS256", "kid": "a"}, evil, RSA_PUBLIC_PEM),
        "public PEM, stripped": hmac_token({"alg": "HS256", "kid": "a"}, evil, RSA_PUBLIC_PEM.strip()),
        "public DER as secret": hmac_token({"alg": "HS256", "kid": "a"}, evil, RSA_PUBLIC_DER),
        "modulus as secret": hmac_token({"alg": "HS256", "kid": "a"}, evil, n),
        "JWK as secret": hmac_token({"alg": "HS256", "kid": "a"}, evil, json.dumps(jwk(RSA, "a")).encode()),
        "PEM, alg left": hmac_token(header, evil, RSA_PUBLIC_PEM),
        "empty secret": hmac_token({"alg": "HS256"}, evil, b""),
        "sealed secret as secret": hmac_token({"alg": "HS256"}, evil, HS.sealed_secret or b""),
        "attacker's secret": hmac_token({"alg": "HS256"}, evil, attacker),
        "HS512 of the secret": hmac_token({"alg": "HS512"}, evil, SECRET.encode(), "sha512"),
        "HS256 by the secret's hash": hmac_token({"alg": "HS256"}, evil, hashlib.sha256(SECRET.encode()).digest()),
        "another RSA key": jwt.encode(evil, OTHER, "RS256", {"kid": "a"}),
        "another RSA key, kid a path": jwt.encode(evil, OTHER, "RS256", {"kid": "../../../dev/null"}),
        "another RSA key, kid SQL": jwt.encode(evil, OTHER, "RS256", {"kid": "' OR 1=1 --"}),
        "another RSA key, kid a URL": jwt.encode(evil, OTHER, "RS256", {"kid": "https://evil.example.com/k"}),
        "another RSA key, no kid": jwt.encode(evil, OTHER, "RS256"),
        "an EC key": jwt.encode(evil, KEYS["ES256"], "ES256", {"kid": "a"}),
        "an Ed25519 key": jwt.encode(evil, KEYS["EdDSA"], "EdDSA", {"kid": "a"}),
        "right key, PS256": jwt.encode(evil, RSA, "PS256", {"kid": "a"}),
        "right key, RS512": jwt.encode(evil, RSA, "RS512", {"kid": "a"}),
        "head no JSON": f"{b64(b'{')}.{body}.{signature}",
        "head a list": f"{b64(b'[]')}.{body}.{signature}",
        "head too deep": f"{b64(b'[' * 3000)}.{body}.{signature}",
        "body no JSON": raw_token(header, b"{", algorithm),
        "body a list": raw_token(header, b"[]", algorithm),
        "body a text": raw_token(header, b'"x"', algorithm),
        "body too deep": raw_token(header, b'{"a":' * 1000 + b"1" + b"}" * 1000, algorithm),
        "body not UTF-8": raw_token(header, b'{"sub":"\xff"}', algorithm),
        "body UTF-16": raw_token(header, json.dumps(claims()).encode("utf-16"), algorithm),
        "body with NaN": raw_token(header, json.dumps(claims(exp=float("nan"))).encode(), algorithm),
        "body with Infinity": raw_token(header, json.dumps(claims(exp=float("inf"))).encode(), algorithm),
        "body with 1e400": raw_token(header, infinite, algorithm),
        "body with a number of 5000 digits": raw_token(header, b'{"exp":' + b"9" * 5000 + b"}", algorithm),
        "two subs": raw_token(header, b'{"sub":"mallory",' + json.dumps(claims()).encode()[1:], algorithm),
        "two exps": raw_token(header, json.dumps(claims()).encode()[:-1] + b',"exp":9999999999}', algorithm),
        "two algs": raw_token(b'{"alg":"none","alg":"%s","kid":"a"}' % algorithm.encode(), claims(), algorithm),
        "two kids": raw_token(b'{"kid":"b","kid":"a","alg":"%s"}' % algorithm.encode(), claims(), algorithm),
        "too long": token(algorithm, extra="a" * MAX_TOKEN_BYTES),
        "standard base64": good.replace("-", "+").replace("_", "/") + "+",
        "space inside": f"{head}. {body}.{signature}",
        "line break at the end": good + "\n",
        "NUL at the end": good + "\0",
        "not ASCII": good + "é",
        "empty": "",
        "dots": "..",
        "more dots": "." * 5000,
    }  # fmt: skip


@pytest.mark.parametrize("algorithm", ["RS256", "HS256"])
async def test_forged_and_malformed_tokens_are_refused_and_the_control_is_not(rig, algorithm):
    if algorithm == "HS256":
        rig.set(HS)
    attempts = forged(algorithm)
    assert len(attempts) > 50
    for name, attempt in attempts.items():
        with pytest.raises(CredentialRefused):
            pytest.fail(f"{name}: {await rig.tokens.verify(attempt, TARGET)}")
    assert await rig.tokens.verify(token(algorithm), TARGET)


async def test_a_short_rsa_key_is_none(rig):
    rig.host.document = document(jwk(SHORT, "a"))
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        weak = jwt.encode(claims(), SHORT, "RS256", {"kid": "a"})
    assert await rig.refuse(weak) == "unknown_key"


async def test_a_public_key_is_never_a_secret_even_if_the_row_says_so(rig):
    rig.set(Record(algorithms=("HS256", "RS256")))
    assert await rig.refuse(hmac_token({"alg": "HS256", "kid": "a"}, claims(), RSA_PUBLIC_PEM)) == "algorithm"
    rig.set(replace(HS, algorithms=("HS256", "RS256")))
    assert await rig.refuse(token()) == "algorithm"


@pytest.mark.parametrize("tenant", ["zenith", "", "UP", "a/b", "acme\0", "a" * 64])
async def test_an_issuer_of_one_tenant_is_none_of_another(rig, tenant):
    target = TARGET._replace(tenant=tenant)
    assert await rig.refuse(token(aud=target.resource), target) == "unknown_issuer"
    assert rig.lookups == (1 if tenant == "zenith" else 0)


async def test_a_secret_opens_in_its_own_row_only(rig):
    rig.set(replace(HS, id="issuer2"))
    assert await rig.refuse(token("HS256")) == "keys_unavailable"
    sealed = sealer.seal(b"a secret", "here")
    assert sealer.open(sealed, "here") == b"a secret"
    assert b"secret" not in sealed
    for broken, place in ((sealed, "there"), (sealed[:-1], "here"), (b"\x01" + sealed[1:], "here"), (b"", "here")):
        with pytest.raises(SealBroken):
            sealer.open(broken, place)
    with pytest.raises(SealBroken):
        Sealer(b"t" * 32).open(sealed, "here")
    assert sealer.seal(b"a secret", "here") != sealed


async def test_a_host_without_keys_is_another_reason_than_an_unknown_key(rig):
    rig.host.is_down = True
    assert await rig.refuse(token()) == "keys_unavailable"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://a", True),
        ("a|b", True),
        ("key", False),
        ("cli", False),
        ("CLI", False),
        ("", False),
        ("a b", False),
        ("é", False),
        ("a" * 513, False),
    ],
)
def test_what_may_be_an_issuer(text, expected):
    assert is_issuer(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a" * 32, True),
        ("é" * 16, True),
        ("a" * 31, False),
        (RSA_PUBLIC_PEM.decode(), False),
        ("ssh-rsa " + "A" * 40, False),
    ],
)
def test_what_may_be_a_secret(text, expected):
    assert is_secret(text) is expected
