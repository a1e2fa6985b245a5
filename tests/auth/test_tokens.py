"""JWTs: which are believed, for which target, and how far (security.md, "Authentication details"; A1)."""

import sys

import pytest

from app.auth.issuer_rules import capped
from app.domain import Principal
from tests.auth.test_jwks import document, jwk
from tests.auth.tokens import HS, ISS, KEYS, TARGET, Record, T, token


async def test_a_new_issuer_brings_the_ciphers_for_its_first_token(rig, monkeypatch):
    monkeypatch.delitem(sys.modules, "app.auth._ciphers", raising=False)
    rig.tokens.forget("acme")
    assert "app.auth._ciphers" not in sys.modules
    rig.tokens.forget("acme", ISS)
    assert "app.auth._ciphers" in sys.modules


# --- good ones


@pytest.mark.parametrize("algorithm", list(KEYS))
async def test_a_good_token_of_every_algorithm_is_believed(rig, algorithm):
    rig.set(HS if algorithm == "HS256" else Record(algorithms=(algorithm,)))
    if algorithm != "HS256":
        rig.host.document = document(jwk(KEYS[algorithm], "a"))
    principal = await rig.tokens.verify(token(algorithm), TARGET)
    assert principal == Principal("acme", ISS, "alice", frozenset({"mcp:connect"}), T + 600)


async def test_a_token_in_its_leeway_expires_with_the_leeway(rig):
    principal = await rig.tokens.verify(token(iat=T - 600, exp=T - 10), TARGET)
    assert principal.expires_at == T - 10 + 30


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
    principal = await rig.tokens.verify(token(**sent), TARGET)
    assert (principal.tenant, principal.subject, principal.scopes) == ("acme", subject, scopes)


@pytest.mark.parametrize("sent", [{"org": "zenith"}, {"org": ["acme"]}, {"org": ...}, {"org": None}])
async def test_a_tenant_claim_is_compared_and_never_believed(rig, sent):
    rig.set(Record(claims={"tenant": "org"}))
    assert await rig.refuse(token(**sent)) == "tenant"


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
