"""Issuers' keys: when they are fetched, how long they are kept, and which are usable at all (goal A3)."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from app.auth.jwks import Fetch, KeyNotFound, KeySets, KeySource, listed_keys
from app.auth.outbound import Outbound
from app.auth.outbound_urls import FetchFailed
from tests.auth.test_outbound import answering

RSA = rsa.generate_private_key(65537, 2048)
OTHER = rsa.generate_private_key(65537, 2048)
SHORT = rsa.generate_private_key(65537, 1024)
P256, P384 = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP384R1())
ED = ed25519.Ed25519PrivateKey.generate()
URL = "https://idp.example.com/jwks"
SOURCE = KeySource("acme", "https://idp.example.com", URL, None)


def jwk(key: Any, kid: str | None = None, **members: object) -> dict[str, Any]:
    kind: Any = OKPAlgorithm
    if isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        kind = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    named = {} if kid is None else {"kid": kid}
    return {**kind.to_jwk(key.public_key(), as_dict=True), **named, **members}


def document(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


@dataclass
class Host:
    """An issuer's host, with hands on the clock."""

    document: bytes = field(default_factory=lambda: document(jwk(RSA, "a")))
    fetched: list[str] = field(default_factory=list)
    now_s: float = 5000.0
    is_down: bool = False
    gate: anyio.Event | None = None
    others: dict[str, bytes] = field(default_factory=dict)

    async def fetch(self, url: str) -> bytes:
        self.fetched.append(url)
        if self.gate is not None:
            await self.gate.wait()
        if self.is_down:
            raise FetchFailed("down")
        return self.others.get(url, self.document)

    def clock(self) -> float:
        return self.now_s


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
async def sets(host: Host) -> AsyncIterator[KeySets]:
    async with KeySets(host.fetch, host.clock) as sets:
        yield sets


async def not_found(sets: KeySets, kid: str | None, algorithm: str = "RS256") -> KeyNotFound:
    with pytest.raises(KeyNotFound) as caught:
        await sets.find(SOURCE, kid, algorithm)
    return caught.value


def same(key: Any, private: Any) -> bool:
    return bool(key.public_numbers() == private.public_key().public_numbers())


async def settled() -> None:
    await anyio.wait_all_tasks_blocked()


# --- when


async def test_keys_are_fetched_when_the_first_token_comes_and_then_remembered(sets, host):
    assert host.fetched == []
    for _ in range(100):
        assert same(await sets.find(SOURCE, "a", "RS256"), RSA)
    assert host.fetched == [URL]


async def test_many_at_once_wait_for_one_fetch(sets, host):
    host.gate = anyio.Event()
    found: list[Any] = []

    async def find() -> None:
        found.append(await sets.find(SOURCE, "a", "RS256"))

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(find)
        await settled()
        host.gate.set()
    assert (len(found), len(host.fetched)) == (50, 1)


async def test_who_waits_and_is_cancelled_does_not_end_the_fetch_of_the_others(sets, host):
    host.gate = anyio.Event()
    with anyio.move_on_after(0.01):
        await sets.find(SOURCE, "a", "RS256")
    host.gate.set()
    await settled()
    assert same(await sets.find(SOURCE, "a", "RS256"), RSA)
    assert len(host.fetched) == 1


async def test_after_a_rotation_the_new_key_works_within_thirty_seconds_and_the_old_one_goes(sets, host):
    await sets.find(SOURCE, "a", "RS256")
    host.document = document(jwk(OTHER, "b"))
    host.now_s += 29.9
    assert (await not_found(sets, "b")).problem is None
    host.now_s += 0.1
    assert same(await sets.find(SOURCE, "b", "RS256"), OTHER)
    await not_found(sets, "a")
    assert len(host.fetched) == 2


async def test_a_key_that_was_taken_away_is_good_for_five_minutes_without_anybody_waiting(sets, host):
    await sets.find(SOURCE, "a", "RS256")
    host.document, host.gate = document(jwk(OTHER, "b")), anyio.Event()
    host.now_s += 300
    assert same(await sets.find(SOURCE, "a", "RS256"), RSA)  # at once, although the fetch hangs
    host.gate.set()
    await settled()
    await not_found(sets, "a")


async def test_ten_thousand_made_up_key_ids_cost_two_fetches_a_minute(sets, host):
    await sets.find(SOURCE, "a", "RS256")
    started = host.now_s
    for number in range(10_000):
        await not_found(sets, f"random-{number}")
        host.now_s += 0.012
    assert host.now_s - started > 119
    assert len(host.fetched) - 1 <= 4
    assert same(await sets.find(SOURCE, "a", "RS256"), RSA)


async def test_a_host_that_is_down_keeps_known_keys_for_an_hour_and_nobody_waiting(sets, host):
    await sets.find(SOURCE, "a", "RS256")
    host.is_down = True
    host.now_s += 60
    await not_found(sets, "new")
    host.gate = anyio.Event()  # from now on it does not even refuse
    for _ in range(58):
        host.now_s += 60
        with anyio.fail_after(20):
            assert same(await sets.find(SOURCE, "a", "RS256"), RSA)
            assert (await not_found(sets, "new")).problem is not None
    host.now_s += 61
    with anyio.fail_after(20):
        assert (await not_found(sets, "a")).problem is not None
    host.is_down = False
    host.gate.set()
    await settled()
    assert same(await sets.find(SOURCE, "a", "RS256"), RSA)


async def test_a_host_that_was_never_up_is_asked_once_in_thirty_seconds(sets, host):
    host.is_down = True
    for _ in range(100):
        assert (await not_found(sets, "a")).problem is not None
    assert len(host.fetched) == 1
    host.is_down = False
    host.now_s += 30
    await not_found(sets, "a")  # nobody waits for a host that did not answer
    await settled()
    assert await sets.find(SOURCE, "a", "RS256")


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b"{}", b'{"keys":{}}', b'"keys"', b"[" * 100_000, b"\xff"])
async def test_a_broken_document_does_not_replace_good_keys(sets, host, broken):
    await sets.find(SOURCE, "a", "RS256")
    host.document = broken
    host.now_s += 60
    await not_found(sets, "b")
    assert same(await sets.find(SOURCE, "a", "RS256"), RSA)


async def test_a_bug_in_the_fetcher_ends_neither_the_waiting_nor_the_others(host):
    async def explode(_: str) -> bytes:
        raise RuntimeError("bug")

    broken: Fetch = explode
    async with KeySets(broken, host.clock) as sets:
        with anyio.fail_after(20):
            assert (await not_found(sets, "a")).problem is not None
            assert (await not_found(sets, "a")).problem is not None


async def test_a_changed_issuer_is_fetched_anew_and_others_are_not(sets, host):
    other = SOURCE._replace(tenant="zenith")
    await sets.find(SOURCE, "a", "RS256")
    await sets.find(other, "a", "RS256")
    sets.forget("acme", SOURCE.issuer)
    await sets.find(SOURCE, "a", "RS256")
    await sets.find(other, "a", "RS256")
    assert len(host.fetched) == 3
    sets.forget("zenith")
    await sets.find(other, "a", "RS256")
    assert len(host.fetched) == 4


async def test_what_was_fetched_for_an_issuer_before_it_changed_is_not_used_after(sets, host):
    host.gate = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sets.find, SOURCE, "a", "RS256")
        await settled()
        sets.forget("acme", SOURCE.issuer)
        host.gate.set()
    host.document = document(jwk(OTHER, "b"))
    assert same(await sets.find(SOURCE, "b", "RS256"), OTHER)


async def test_closing_ends_fetches_under_way_and_may_be_done_twice(host):
    host.gate = anyio.Event()
    sets = KeySets(host.fetch, host.clock)
    waiting: list[KeyNotFound] = []

    async def wait() -> None:
        waiting.append(await not_found(sets, "a"))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            await sets.__aenter__()
            tasks.start_soon(wait)
            await settled()
            await sets.__aexit__(None, None, None)
        await sets.__aexit__(None, None, None)
    assert len(waiting) == 1
    await not_found(sets, "a")  # closed: nothing is fetched any more
    assert len(host.fetched) == 1


# --- from where

DISCOVERY = "https://idp.example.com/.well-known/openid-configuration"
BY_DISCOVERY = KeySource("acme", "https://idp.example.com", None, DISCOVERY)


async def test_discovery_leads_to_the_keys(sets, host):
    host.others[DISCOVERY] = json.dumps({"issuer": BY_DISCOVERY.issuer, "jwks_uri": URL}).encode()
    assert same(await sets.find(BY_DISCOVERY, "a", "RS256"), RSA)
    assert host.fetched == [DISCOVERY, URL]


@pytest.mark.parametrize(
    "found",
    [
        {"issuer": "https://idp.example.com/", "jwks_uri": URL},
        {"issuer": "https://evil.example.com", "jwks_uri": URL},
        {"jwks_uri": URL},
        {"issuer": ["https://idp.example.com"], "jwks_uri": URL},
        {"issuer": "https://idp.example.com"},
        {"issuer": "https://idp.example.com", "jwks_uri": [URL]},
        [],
    ],
)
async def test_a_discovery_document_of_another_issuer_or_without_keys_is_refused(sets, host, found):
    host.others[DISCOVERY] = json.dumps(found).encode()
    with pytest.raises(KeyNotFound):
        await sets.find(BY_DISCOVERY, "a", "RS256")
    assert host.fetched == [DISCOVERY]


@pytest.mark.real
async def test_a_jwks_uri_passes_the_same_guard():
    inside = {"issuer": BY_DISCOVERY.issuer, "jwks_uri": "http://127.0.0.2:1/"}
    body = json.dumps(inside).encode()
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)) as (port, heads):
        out = Outbound([ip_network("127.0.0.1/32")])
        async with KeySets(out.get) as sets:
            source = BY_DISCOVERY._replace(discovery_url=f"http://127.0.0.1:{port}/")
            with pytest.raises(KeyNotFound) as caught:
                await sets.find(source, "a", "RS256")
    assert caught.value.problem is not None
    assert len(heads) == 1


@pytest.mark.real
async def test_keys_come_over_a_real_connection():
    body = document(jwk(RSA, "a"))
    out = Outbound([ip_network("127.0.0.0/8")])
    response = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    async with answering(response) as (port, heads), KeySets(out.get) as sets:
        source = SOURCE._replace(jwks_url=f"http://127.0.0.1:{port}/keys")
        assert same(await sets.find(source, "a", "RS256"), RSA)
    assert heads[0].startswith(b"GET /keys ")


# --- which


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        (RSA, ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"], ["ES256", "EdDSA", "HS256", "none"]),
        (P256, ["ES256"], ["ES384", "ES512", "RS256", "HS256", "ES256K"]),
        (P384, ["ES384"], ["ES256", "ES512"]),
        (ED, ["EdDSA"], ["ES256", "RS256", "HS256"]),
    ],
)
async def test_a_key_verifies_only_what_its_type_and_curve_can(sets, host, key, good, bad):
    host.document = document(jwk(key, "k"))
    for algorithm in good:
        assert await sets.find(SOURCE, "k", algorithm)
    for algorithm in bad:
        await not_found(sets, "k", algorithm)


@pytest.mark.parametrize(
    "key",
    [
        jwk(SHORT, "k"),
        jwk(RSA, "k", use="enc"),
        jwk(RSA, "k", key_ops=["sign"]),
        jwk(RSA, "k", key_ops="verify me"),
        jwk(RSA, "k", alg="HS256"),
        jwk(RSA, "k", alg="ES256"),
        jwk(RSA, "k", alg=["RS256"]),
        jwk(RSA, "k", d="AQAB"),
        jwk(RSA, "k", n=7),
        jwk(RSA, "k", n="!!"),
        jwk(RSA, "k", kty="oct", k="c2VjcmV0" * 8),
        {"kty": "oct", "kid": "k", "k": "c2VjcmV0" * 8, "alg": "HS256"},
        jwk(RSA, "k", kty=None),
        jwk(RSA, "k", kty=["RSA"]),
        jwk(P256, "k", crv="secp256k1"),
        jwk(P256, "k", x="AAAA"),
        jwk(P256, "k", y=jwk(P256)["x"]),
        jwk(ED, "k", x="AAAA"),
        jwk(ED, "k", crv="X25519"),
        {**jwk(RSA), "kid": None},
        {**jwk(RSA), "kid": ["k"]},
    ],
)
def test_keys_that_are_no_public_signature_keys_with_this_id_are_left_out(key):
    good = jwk(OTHER, "good")
    found = listed_keys(json.dumps({"keys": [key, "nonsense", None, [], good]}).encode())
    usable = [each.kid for each in found if each.algorithms]
    assert "k" not in usable
    assert usable.count("good") == 1


def test_a_huge_set_is_cut_off():
    assert len(listed_keys(document(*(jwk(P256, str(number)) for number in range(150))))) == 100


async def test_an_algorithm_in_the_key_narrows_it(sets, host):
    host.document = document(jwk(RSA, "k", alg="RS512"))
    assert await sets.find(SOURCE, "k", "RS512")
    await not_found(sets, "k", "RS256")


async def test_without_a_key_id_there_must_be_no_choice(sets, host):
    host.document = document(jwk(RSA, "a"), jwk(P256, "b"))
    assert same(await sets.find(SOURCE, None, "RS256"), RSA)
    assert same(await sets.find(SOURCE, None, "ES256"), P256)
    host.document = document(jwk(RSA, "a"), jwk(OTHER))
    sets.forget(*SOURCE[:2])
    await not_found(sets, None)


async def test_two_keys_of_one_id_are_told_apart_by_type_and_else_refused(sets, host):
    host.document = document(jwk(RSA, "a"), jwk(P256, "a"))
    assert same(await sets.find(SOURCE, "a", "ES256"), P256)
    host.document = document(jwk(RSA, "a"), jwk(OTHER, "a"))
    sets.forget(*SOURCE[:2])
    await not_found(sets, "a")
