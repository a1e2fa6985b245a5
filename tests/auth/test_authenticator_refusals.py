"""What the log is told of a credential that was refused, and what nobody is told."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from app.auth._refusal import CredentialRefused
from app.auth._token_form import MAX_SHOWN, shown
from app.auth.api_keys import ApiKeys, KeyMaker
from app.auth.authenticator import REASONS, Authenticator
from app.errors import Unauthenticated
from tests.auth import fakes
from tests.auth.test_jwks import RSA, document, jwk
from tests.auth.test_tokens_refused import BAD_CLAIMS, BAD_HEADERS, forged
from tests.auth.tokens import HS, ISS, KEYS, NOW, SECRET, TARGET, Record, Rig, T, token

maker = KeyMaker(b"k" * 32)


async def facts_of(rig: Rig, text: str) -> dict[str, Any]:
    with pytest.raises(CredentialRefused) as caught:
        await rig.tokens.verify(text, TARGET)
    return dict(caught.value.facts)


@pytest.mark.parametrize(
    ("changes", "failure", "rule", "expected", "actual"),
    [
        ({"iss": ISS + "/"}, "unknown_issuer", "issuer", "an issuer of the tenant acme", ISS + "/"),
        ({"aud": ["a", "b"]}, "audience", "audience", [TARGET.resource], ["a", "b"]),
        ({"iat": T - 600, "exp": T - 31}, "expired", "expiry", "after 2025-12-31T23:59:30Z", "2025-12-31T23:59:29Z"),
        (
            {"nbf": T + 31}, "not_yet_valid", "not before", "before 2026-01-01T00:00:30Z",
            {"iat": "2026-01-01T00:00:00Z", "nbf": "2026-01-01T00:00:31Z"},
        ),
        ({"exp": T + 86401}, "claims", "lifetime", ..., "86401 s"),
        ({"exp": ...}, "claims", "required", ..., {"missing": ["exp"], "no text": []}),
        ({"sub": "cli"}, "reserved", "subject", ..., "cli"),
        ({"scope": 7}, "claims", "scopes", ..., 7),
    ],
)  # fmt: skip
async def test_a_refused_token_leaves_the_rule_with_what_was_expected_and_what_was_there(
    rig, changes, failure, rule, expected, actual
):
    facts = await facts_of(rig, token(**changes))
    assert (facts["failure"], facts["rule"], facts["actual"]) == (failure, rule, actual)
    assert expected in (..., facts["expected"])
    assert facts["kid"] == "a"
    assert facts["issuer"] == changes.get("iss", ISS)
    assert facts.get("issuer_id") == (None if "iss" in changes else "issuer1")


async def test_a_key_that_the_issuer_does_not_have_leaves_those_that_it_has(rig):
    rig.host.document = document(jwk(RSA, "b"), jwk(KEYS["ES256"], "c"))
    facts = await facts_of(rig, token())
    assert (facts["failure"], facts["expected"]) == ("unknown_key", {"kid": ["b", "c"]})
    assert facts["actual"] == {"kid": "a", "alg": "RS256"}


async def test_keys_that_cannot_be_fetched_leave_why(rig):
    rig.host.is_down = True
    facts = await facts_of(rig, token())
    assert (facts["failure"], facts["rule"], facts["actual"]) == ("keys_unavailable", "key", "down")


async def test_an_algorithm_that_is_not_registered_leaves_those_that_are(rig):
    rig.set(Record(algorithms=("ES256",)))
    facts = await facts_of(rig, token())
    assert (facts["failure"], facts["expected"], facts["actual"]) == ("algorithm", ["ES256"], "RS256")


async def test_a_tenant_claim_leaves_which_tenant_was_meant(rig):
    rig.set(Record(claims={"tenant": "org"}))
    facts = await facts_of(rig, token(org="zenith"))
    assert (facts["failure"], facts["expected"], facts["actual"]) == ("tenant", {"org": "acme"}, "zenith")


@pytest.mark.parametrize("algorithm", ["RS256", "HS256"])
async def test_facts_are_short_printable_json_and_hold_neither_token_nor_secret(rig, algorithm):
    if algorithm == "HS256":
        rig.set(HS)
    sent = [*forged(algorithm).values(), *(token(algorithm, header) for header in BAD_HEADERS.values())]
    sent += [token(algorithm, **claims) for claims in BAD_CLAIMS.values()]
    sent += [token(algorithm, aud=["a" * 100] * 50), token(algorithm, iss="\x1b[31m" * 100)]
    for text in sent:
        facts = await facts_of(rig, text)
        written = json.dumps(facts, ensure_ascii=False)
        assert written.isprintable(), facts
        assert len(written.encode()) < 2500
        assert SECRET not in written
        # Whole parts of a token are in no fact: an id that is shown is no more than a word of it.
        assert not [part for part in text.split(".") if len(part) > 20 and part in written], facts


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("é\n\x1b[2J", "é\\n\\x1b[2J"),
        ("\ud800", "\\ud800"),
        ("a" * 300, "a" * MAX_SHOWN + "…"),
        (["a"] * 30, ["a"] * 20 + ["…"]),
        (["a" * 190] * 10, ["a" * 190] * 3 + ["…"]),
        ([["a", ["b\n"]], 7, None], ['["a", ["b\\n"]]', 7, None]),
        ([], []),
        ({"a": "\n"}, '{"a": "\\n"}'),
        (10**30, "1" + "0" * 30),
        (1.5, "1.5"),
        (None, None),
        (True, True),
        (7, 7),
    ],
)
def test_what_a_stranger_wrote_is_cut_and_made_printable(value, expected):
    assert shown(value) == expected


# --- as the front hears it


def door(rig: Rig, keys: fakes.FakeStore) -> tuple[Authenticator, CollectorRegistry]:
    registry = CollectorRegistry()
    failures = Counter("failures", "", ["reason"], registry=registry)
    held = ApiKeys(keys, maker, rig.now)
    return Authenticator(held, failures, lambda: rig.elapsed_s, NOW.timestamp, tokens=rig.tokens), registry


async def refused(authenticator: Authenticator, header: bytes | None) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as caught:
        await authenticator.authenticate(header, TARGET)
    return caught.value


async def test_every_refusal_has_facts_with_a_reason_of_the_metric_and_says_the_same_to_its_client(rig):
    keys = fakes.FakeStore()
    expired, revoked = keys.add(maker, expires_at=NOW), keys.add(maker, revoked_at=NOW - timedelta(hours=1))
    good = keys.add(maker)
    authenticator, registry = door(rig, keys)
    wrong = good.split("_")[1]
    keys.records[wrong] = replace(keys.records[wrong], digest=bytes(32))
    sent = {
        None: "missing", b"Basic eDp5": "scheme", b"Bearer a b": "malformed", b"Bearer hunter2": "malformed",
        b"Bearer " + maker.make().text.encode(): "unknown", b"Bearer " + good.encode(): "wrong_secret",
        b"Bearer " + expired.encode(): "expired", b"Bearer " + revoked.encode(): "revoked",
        b"Bearer " + token(aud="other").encode(): "audience",
    }  # fmt: skip
    for header, failure in sent.items():
        for _ in range(2):  # the second one is remembered
            error = await refused(authenticator, header)
            assert error.facts["failure"] == failure
            assert failure in REASONS
            assert (str(error), error.reason, error.hint) == (
                "No credential, or not a valid one", "unauthenticated", Unauthenticated.hint,
            )  # fmt: skip
            assert b"hunter2" not in json.dumps(error.facts).encode()
        assert registry.get_sample_value("failures_total", {"reason": failure})


async def test_a_refused_key_is_named_by_its_id_and_never_by_its_secret(rig):
    keys = fakes.FakeStore()
    text = keys.add(maker, revoked_at=NOW)
    authenticator, _ = door(rig, keys)
    error = await refused(authenticator, b"Bearer " + text.encode())
    _, key_id, secret = text.split("_")
    assert error.facts["key_id"] == key_id
    assert error.facts["actual"] == "revoked at 2026-01-01T00:00:00+00:00"
    assert secret[:12] not in json.dumps(error.facts)
    mistyped = await refused(authenticator, b"Bearer " + text[:-1].encode() + b"-")
    assert "key_id" not in mistyped.facts
