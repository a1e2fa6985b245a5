"""JWTs: which are believed, for which target, how far, and for how long (security.md, "Authentication details"; A1)."""

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from prometheus_client import CollectorRegistry, Counter

from app.auth.api_keys import ApiKeys, KeyMaker
from app.auth.authenticator import Authenticator
from app.auth.jwks import KeySets
from app.auth.sealing import SealBroken, Sealer
from app.auth.tokens import MAX_TOKEN_BYTES, Target, TokenRefused, Tokens, capped, is_issuer, is_secret, place_of
from app.domain import Principal
from app.errors import StorageUnavailable, Unauthenticated
from tests.auth import fakes
from tests.auth.test_jwks import OTHER, RSA, SHORT, Host, document, jwk

NOW = datetime(2026, 1, 1, tzinfo=UTC)
T = int(NOW.timestamp())
ISS = "https://idp.example.com"
BASE = "https://gw.example.com"
TARGET = Target("acme", "echo", BASE)
SECRET = "correct horse battery staple, all 32 bytes of it"
KEYS: dict[str, Any] = {
    "RS256": RSA, "PS384": RSA, "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES512": ec.generate_private_key(ec.SECP521R1()), "EdDSA": ed25519.Ed25519PrivateKey.generate(), "HS256": SECRET,
}  # fmt: skip
sealer = Sealer(b"s" * 32)


@dataclass(frozen=True)
class Record:
    tenant: str = "acme"
    issuer: str = ISS
    algorithms: tuple[str, ...] = ("RS256",)
    sealed_secret: bytes | None = None
    jwks_url: str | None = "https://idp.example.com/jwks"
    discovery_url: str | None = None
    audience: tuple[str, ...] = ()
    claims: Mapping[str, str | None] = field(default_factory=dict)
    max_scopes: frozenset[str] = frozenset({"mcp:connect"})
    id: str = "issuer1"


HS = Record(
    algorithms=("HS256",), jwks_url=None, sealed_secret=sealer.seal(SECRET.encode(), place_of("acme", ISS, "issuer1"))
)


@dataclass
class Rig:
    """Tokens of one issuer, with hands on its clock, its keys and its row."""

    host: Host = field(default_factory=Host)
    records: dict[tuple[str, str], Record] = field(default_factory=lambda: {("acme", ISS): Record()})
    tokens: Any = None
    lookups: int = 0
    is_down: bool = False
    elapsed_s: float = 0.0

    async def find(self, tenant: str, issuer: str) -> Record | None:
        self.lookups += 1
        if self.is_down:
            raise StorageUnavailable
        return self.records.get((tenant, issuer))

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.elapsed_s)

    def set(self, record: Record) -> None:
        self.records = {(record.tenant, record.issuer): record}

    async def refuse(self, token: str, target: Target = TARGET) -> str:
        with pytest.raises(TokenRefused) as caught:
            await self.tokens.verify(token, target)
        return caught.value.reason


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    async with KeySets(rig.host.fetch, rig.host.clock) as sets:
        rig.tokens = Tokens(rig, sealer, sets, rig.now)
        yield rig


def claims(**changes: Any) -> dict[str, Any]:
    """Good ones; a change to ... leaves the claim out."""
    good = {"iss": ISS, "sub": "alice", "aud": TARGET.resource, "iat": T, "exp": T + 600, "scope": "mcp:connect"}
    return {name: value for name, value in {**good, **changes}.items() if value is not ...}


def b64(data: bytes | dict[str, Any]) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def raw_token(header: bytes | dict[str, Any], payload: bytes | dict[str, Any], algorithm: str = "RS256") -> str:
    """Signed by the right key, whatever the header says and the payload is."""
    signed = f"{b64(header)}.{b64(payload)}"
    maker = jwt.get_algorithm_by_name(algorithm)
    return f"{signed}.{b64(maker.sign(signed.encode(), maker.prepare_key(KEYS[algorithm])))}"


def token(algorithm: str = "RS256", header: dict[str, Any] | None = None, **changes: Any) -> str:
    named = {"alg": algorithm, "typ": "JWT", **({} if algorithm == "HS256" else {"kid": "a"}), **(header or {})}
    return raw_token(named, claims(**changes), algorithm)


def hmac_token(header: dict[str, Any], payload: dict[str, Any], secret: bytes, digest: str = "sha256") -> str:
    signed = f"{b64(header)}.{b64(payload)}"
    return f"{signed}.{b64(hmac.digest(secret, signed.encode(), digest))}"


# --- good ones


@pytest.mark.parametrize("algorithm", list(KEYS))
async def test_a_good_token_of_every_algorithm_is_believed(rig, algorithm):
    rig.set(HS if algorithm == "HS256" else Record(algorithms=(algorithm,)))
    if algorithm != "HS256":
        rig.host.document = document(jwk(KEYS[algorithm], "a"))
    principal, expires_at = await rig.tokens.verify(token(algorithm), TARGET)
    assert principal == Principal("acme", ISS, "alice", frozenset({"mcp:connect"}))
    assert expires_at == NOW + timedelta(seconds=600)


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": ["https://other.example.com", TARGET.resource]},
        {"nbf": T + 30},
        {"iat": T + 30, "exp": T + 600},
        {"iat": T - 86000, "exp": T - 29},
        {"exp": T + 86400},
        {"jti": "x", "azp": "y", "extra": {"deep": [1, 2.5, None]}},
    ],
)
async def test_what_the_rules_allow_is_believed(rig, changes):
    assert await rig.tokens.verify(token(**changes), TARGET)


# --- bad ones: each of these, for a configuration with a public key and for one with a secret

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
        with pytest.raises(TokenRefused):
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
    [("https://a", True), ("a|b", True), ("key", False), ("", False), ("a b", False), ("é", False), ("a" * 513, False)],
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


# --- claims


@pytest.mark.parametrize(
    ("names", "sent", "subject", "scopes"),
    [
        ({}, {"scope": "mcp:connect other"}, "alice", {"mcp:connect"}),
        ({}, {"scope": ["mcp:connect"]}, "alice", {"mcp:connect"}),
        ({}, {"scope": ...}, "alice", set()),
        ({}, {"scope": ""}, "alice", set()),
        ({"scopes": "scp"}, {"scp": "mcp:connect"}, "alice", {"mcp:connect"}),
        ({"scopes": "realm.access.roles"}, {"realm": {"access": {"roles": ["mcp:connect"]}}}, "alice", {"mcp:connect"}),
        ({"scopes": "https://a.example/s"}, {"https://a.example/s": ["mcp:connect"]}, "alice", {"mcp:connect"}),
        ({"scopes": "realm.roles"}, {"realm": "text"}, "alice", set()),
        ({"scopes": "a..b"}, {"a": {"": {"b": "mcp:connect"}}}, "alice", {"mcp:connect"}),
        ({"subject": "email"}, {"email": "a@b.c"}, "a@b.c", {"mcp:connect"}),
        ({"subject": "user.id"}, {"user": {"id": "u1"}}, "u1", {"mcp:connect"}),
        ({"tenant": "org"}, {"org": "acme"}, "alice", {"mcp:connect"}),
    ],
)
async def test_claims_are_found_where_the_issuer_puts_them(rig, names, sent, subject, scopes):
    rig.set(Record(claims={"subject": "sub", "scopes": "scope", "tenant": None, **names}))
    principal, _ = await rig.tokens.verify(token(**sent), TARGET)
    assert (principal.tenant, principal.subject, principal.scopes) == ("acme", subject, scopes)


@pytest.mark.parametrize("sent", [{"org": "zenith"}, {"org": ["acme"]}, {"org": ...}, {"org": None}])
async def test_a_tenant_claim_is_compared_and_never_believed(rig, sent):
    rig.set(Record(claims={"tenant": "org"}))
    assert await rig.refuse(token(**sent)) == "claims"


async def test_a_subject_that_the_issuer_does_not_give_is_a_refusal(rig):
    rig.set(Record(claims={"subject": "email"}))
    assert await rig.refuse(token()) == "claims"


@pytest.mark.parametrize(
    ("tenant", "cap", "asked", "expected"),
    [
        ("acme", {"mcp:connect"}, {"mcp:connect"}, {"mcp:connect"}),
        ("acme", {"mcp:connect"}, {"mcp:connect:echo"}, {"mcp:connect:echo"}),
        ("acme", {"mcp:connect"}, {"tenant:admin"}, set()),
        ("acme", {"mcp:connect"}, {"tenant:admin", "mcp:connect"}, {"mcp:connect"}),
        ("acme", {"mcp:connect"}, {"platform:admin", "metrics:read", "audit:read", "tenant:read"}, set()),
        ("acme", {"mcp:connect:echo"}, {"mcp:connect"}, {"mcp:connect:echo"}),
        ("acme", {"mcp:connect:echo"}, {"mcp:connect:echo", "mcp:connect:time"}, {"mcp:connect:echo"}),
        ("acme", {"tenant:admin"}, {"tenant:read", "mcp:connect"}, {"tenant:read", "mcp:connect"}),
        ("acme", {"tenant:admin"}, {"tenant:admin"}, {"tenant:admin"}),
        ("acme", {"tenant:admin"}, {"metrics:read", "platform:admin"}, set()),
        ("acme", {"metrics:read"}, {"metrics:read", "tenant:read"}, {"metrics:read"}),
        ("acme", {"platform:admin"}, {"platform:admin", "mcp:connect"}, set()),
        ("default", {"platform:admin"}, {"platform:admin"}, {"platform:admin"}),
        ("default", {"tenant:admin"}, {"platform:admin"}, set()),
        ("default", {"mcp:connect"}, {"platform:admin", "platform:*", "*", "mcp:*", "MCP:CONNECT"}, set()),
        ("acme", set(), {"mcp:connect"}, set()),
    ],
)
def test_an_issuer_confers_no_more_than_its_cap(tenant, cap, asked, expected):
    assert capped(asked, tenant, frozenset(cap)) == expected


async def test_an_audience_of_the_issuers_own_replaces_the_endpoint(rig):
    rig.set(Record(audience=("api://gw", "other")))
    assert await rig.refuse(token()) == "audience"
    assert await rig.tokens.verify(token(aud="api://gw"), TARGET)
    assert await rig.tokens.verify(token(aud="api://gw"), TARGET._replace(backend=""))


# --- remembered


@dataclass
class Door:
    """An authenticator that knows keys and tokens."""

    rig: Rig
    authenticator: Authenticator
    registry: CollectorRegistry
    keys: fakes.FakeStore

    def remembered(self, header: bytes, target: Target | None) -> Principal | None:
        return self.authenticator.remembered(header, target and (lambda: target))

    async def refuse(self, header: bytes, target: Target | None = TARGET) -> None:
        with pytest.raises(Unauthenticated):
            await self.authenticator.authenticate(header, target)


maker = KeyMaker(b"k" * 32)


@pytest.fixture
def door(rig: Rig) -> Door:
    registry, keys = CollectorRegistry(), fakes.FakeStore()
    failures = Counter("failures", "", ["reason"], registry=registry)
    held = ApiKeys(keys, maker, rig.now)
    return Door(rig, Authenticator(held, failures, lambda: rig.elapsed_s, rig.now, tokens=rig.tokens), registry, keys)


def bearer(text: str) -> bytes:
    return b"Bearer " + text.encode()


async def test_a_token_is_remembered_for_its_target_only(door):
    header = bearer(token(aud=[TARGET.resource, f"{BASE}/t/acme/time/mcp"]))
    principal = await door.authenticator.authenticate(header, TARGET)
    assert door.remembered(header, TARGET) is principal
    others = [
        TARGET._replace(backend="time"), TARGET._replace(tenant="zenith"), TARGET._replace(backend=""),
        TARGET._replace(base_url="https://evil.example.com"), None,
    ]  # fmt: skip
    for other in others:
        assert door.remembered(header, other) is None
    assert await door.authenticator.authenticate(header, others[0]) == principal
    assert door.rig.lookups == 2
    for other in others[1:]:
        await door.refuse(header, other)
    assert door.remembered(header, TARGET) is principal


async def test_a_key_is_remembered_for_every_target_and_pays_for_none(door):
    header = bearer(door.keys.add(maker))
    principal = await door.authenticator.authenticate(header, TARGET)
    for target in (TARGET, TARGET._replace(tenant="zenith"), None):
        assert door.remembered(header, target) is principal
    assert door.authenticator.remembered(header, lambda: pytest.fail("asked for the target")) is principal


async def test_a_token_is_remembered_for_thirty_seconds_and_never_beyond_its_exp(door):
    header = bearer(token())
    await door.authenticator.authenticate(header, TARGET)
    door.rig.elapsed_s = 29.9
    assert door.remembered(header, TARGET)
    door.rig.elapsed_s = 30
    assert door.remembered(header, TARGET) is None
    door.rig.elapsed_s = 590
    assert await door.authenticator.authenticate(header, TARGET)
    door.rig.elapsed_s = 600
    assert door.remembered(header, TARGET) is None
    assert await door.authenticator.authenticate(header, TARGET)  # within the leeway, but not remembered
    assert door.remembered(header, TARGET) is None
    door.rig.elapsed_s = 630
    await door.refuse(header)


async def test_a_token_that_was_refused_is_not_looked_at_again_for_five_seconds(door):
    header = bearer(token(iss="https://evil.example.com"))
    for _ in range(100):
        await door.refuse(header)
    assert door.rig.lookups == 1
    assert door.registry.get_sample_value("failures_total", {"reason": "unknown_issuer"}) == 100
    door.rig.elapsed_s = 5
    await door.refuse(header)
    assert door.rig.lookups == 2


async def test_a_changed_issuer_makes_its_tokens_be_looked_at_again_refused_ones_included(door):
    mine, theirs = bearer(token()), bearer(door.keys.add(maker))
    await door.authenticator.authenticate(mine, TARGET)
    await door.authenticator.authenticate(theirs, TARGET)
    door.authenticator.forget_issuer("zenith", ISS)
    door.authenticator.forget_issuer("acme", "https://other.example.com")
    assert door.remembered(mine, TARGET)
    door.rig.records.clear()
    door.authenticator.forget_issuer("acme", ISS)
    assert door.remembered(mine, TARGET) is None
    assert door.remembered(theirs, TARGET)
    await door.refuse(mine)
    door.rig.set(Record())
    door.authenticator.forget_issuer("acme", ISS)
    assert await door.authenticator.authenticate(mine, TARGET)
    door.authenticator.forget(("acme", ISS, "alice"))
    assert door.remembered(mine, TARGET) is None
    await door.authenticator.authenticate(mine, TARGET)
    door.authenticator.forget_tenant("acme")
    assert door.remembered(mine, TARGET) is None


async def test_what_was_verified_with_keys_of_before_a_change_is_not_remembered(door):
    header, door.rig.host.gate = bearer(token()), anyio.Event()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(door.authenticator.authenticate, header, TARGET)
            await anyio.wait_all_tasks_blocked()
            door.authenticator.forget_issuer("acme", ISS)
            door.rig.host.gate.set()
    assert door.remembered(header, TARGET) is None


async def test_a_store_that_is_away_is_neither_a_refusal_nor_remembered(door):
    header, door.rig.is_down = bearer(token()), True
    with pytest.raises(StorageUnavailable):
        await door.authenticator.authenticate(header, TARGET)
    door.rig.is_down = False
    assert await door.authenticator.authenticate(header, TARGET)


async def test_a_token_of_the_largest_size_fits_and_one_more_byte_does_not(door):
    room = MAX_TOKEN_BYTES - len(token(pad=""))
    pad = next("a" * n for n in range(room * 3 // 4 - 4, room) if len(token(pad="a" * n)) >= MAX_TOKEN_BYTES - 1)
    fitting = token(pad=pad)
    if len(fitting) > MAX_TOKEN_BYTES:
        fitting = token(pad=pad[:-1])
    assert await door.authenticator.authenticate(bearer(fitting), TARGET)
    await door.refuse(bearer(token(pad=pad + "aaaa")))
