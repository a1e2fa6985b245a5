"""An issuer of the platform: which of its tenants a token opens, and every way into another one that must be shut."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from app.auth._refusal import CredentialRefused
from app.auth.api_keys import ApiKeys, KeyMaker
from app.auth.authenticator import Authenticator
from app.auth.tokens import Target, place_of
from app.domain import ServedTenants, TenantGrant
from app.errors import Unauthenticated
from tests.auth import fakes
from tests.auth.test_jwks import OTHER, document, jwk
from tests.auth.test_tokens_refused import BAD_CLAIMS, BAD_HEADERS, forged
from tests.auth.tokens import BASE, HS, ISS, SECRET, TARGET, Record, Rig, sealer, token

SERVED = ServedTenants(
    "groups",
    {
        "guid-acme": TenantGrant("acme"),
        "guid-acme-admins": TenantGrant("acme", ("tenant:admin",)),
        "guid-zenith": TenantGrant("zenith"),
        "guid-root": TenantGrant("default", ("platform:admin",)),
    },
)
CAP = frozenset({"mcp:connect", "tenant:admin", "platform:admin"})
AUDIENCE = ("api://gw",)
Serve = Callable[..., None]


def at(tenant: str, backend: str = "echo") -> Target:
    return Target(tenant, backend, BASE)


def sent(algorithm: str = "RS256", header: dict[str, Any] | None = None, **changes: Any) -> str:
    return token(algorithm, header, **{"aud": "api://gw", "groups": ["guid-acme"], **changes})


@pytest.fixture
def serve(rig: Rig) -> Serve:
    """Puts the platform's issuer where the store would find it: in each tenant of its list. With the whole list: the
    rules do not rely on a store that keeps back what speaks of others."""

    def serve(algorithm: str = "RS256", served: ServedTenants = SERVED, **more: Any) -> None:
        record = Record(tenant="default", audience=AUDIENCE, max_scopes=CAP, **more)
        if algorithm == "HS256":
            secret = sealer.seal(SECRET.encode(), place_of("default", ISS, HS.id))
            record = replace(record, algorithms=("HS256",), jwks_url=None, sealed_secret=secret)
        rig.records = {(name, ISS): replace(record, tenants=served) for name in served.names()}

    return serve


@pytest.mark.parametrize("algorithm", ["RS256", "HS256"])
async def test_a_token_opens_the_listed_tenants_that_it_names_and_no_other(rig, serve, algorithm):
    serve(algorithm)
    for groups, opened in (
        (["guid-acme"], {"acme"}),
        (["guid-acme", "guid-zenith", "guid-else"], {"acme", "zenith"}),
        ("guid-zenith", {"zenith"}),
        (["guid-root"], {"default"}),
        (["guid-else"], set()),
        (["acme", "zenith", "default"], set()),
        (["GUID-ACME", "guid-acme ", ""], set()),
        ([], set()),
        (None, set()),
        (..., set()),
    ):
        for tenant in ("acme", "zenith", "default"):
            text = sent(algorithm, groups=groups)
            if tenant in opened:
                principal = await rig.tokens.verify(text, at(tenant))
                assert principal.identity == (tenant, ISS, "alice")
            else:
                assert await rig.refuse(text, at(tenant)) == "tenant", (groups, tenant)
        assert await rig.refuse(sent(algorithm, groups=groups), at("nobody")) == "unknown_issuer"


@pytest.mark.parametrize("algorithm", ["RS256", "HS256"])
@pytest.mark.parametrize(
    "groups",
    [7, True, {"guid-acme": 1}, ["guid-acme", 7], ["guid-acme", None], [["guid-acme"]], ["guid-acme"] + ["t"] * 1000],
    ids=str,
)
async def test_a_claim_of_a_wrong_kind_opens_no_tenant(rig, serve, algorithm, groups):
    serve(algorithm)
    assert await rig.refuse(sent(algorithm, groups=groups)) == "claims"
    assert await rig.tokens.verify(sent(algorithm), TARGET)


@pytest.mark.parametrize("algorithm", ["RS256", "HS256"])
@pytest.mark.parametrize("name", [*BAD_CLAIMS, *BAD_HEADERS])
async def test_one_thing_that_is_wrong_is_enough_here_as_well(rig, serve, algorithm, name):
    serve(algorithm)
    bad = sent(algorithm, BAD_HEADERS.get(name), **BAD_CLAIMS.get(name, {}))
    assert await rig.refuse(bad)
    assert await rig.tokens.verify(sent(algorithm), TARGET)


@pytest.mark.parametrize("algorithm", ["RS256", "HS256"])
async def test_forged_tokens_open_no_tenant_of_the_list(rig, serve, algorithm):
    serve(algorithm)
    for name, attempt in forged(algorithm).items():
        for tenant in ("acme", "zenith", "default"):
            with pytest.raises(CredentialRefused):
                pytest.fail(f"{name}: {await rig.tokens.verify(attempt, at(tenant))}")


@pytest.mark.parametrize(
    ("tenant", "groups", "scope", "expected"),
    [
        ("acme", ["guid-acme"], "mcp:connect", {"mcp:connect"}),
        ("acme", ["guid-acme"], ..., set()),
        ("acme", ["guid-acme-admins"], ..., {"tenant:admin"}),
        # Who administers one tenant and may enter another is nobody's administrator there.
        ("zenith", ["guid-acme-admins", "guid-zenith"], "mcp:connect", {"mcp:connect"}),
        ("acme", ["guid-acme", "guid-root"], "mcp:connect platform:admin", {"mcp:connect"}),
        ("default", ["guid-acme-admins", "guid-root"], ..., {"platform:admin"}),
    ],
)
async def test_what_a_value_confers_it_confers_in_its_own_tenant(rig, serve, tenant, groups, scope, expected):
    serve()
    principal = await rig.tokens.verify(sent(groups=groups, scope=scope), at(tenant))
    assert (principal.tenant, principal.scopes) == (tenant, expected)


async def test_without_an_audience_of_its_own_a_token_is_for_one_endpoint_of_one_tenant(rig, serve):
    serve()
    rig.records = {key: replace(record, audience=()) for key, record in rig.records.items()}
    both: dict[str, Any] = {"groups": ["guid-acme", "guid-zenith"]}
    assert await rig.tokens.verify(sent(aud=TARGET.resource, **both), TARGET)
    assert await rig.refuse(sent(aud=TARGET.resource, **both), at("zenith")) == "audience"
    assert await rig.refuse(sent(aud=TARGET.resource, **both), at("acme", "other")) == "audience"


async def test_keys_are_fetched_once_for_all_tenants_and_those_of_a_tenants_own_issuer_are_others(rig, serve):
    serve()
    groups = ["guid-acme", "guid-zenith"]
    await rig.tokens.verify(sent(groups=groups), at("acme"))
    await rig.tokens.verify(sent(groups=groups), at("zenith"))
    assert len(rig.host.fetched) == 1
    # A tenant names the same `iss` with keys of its own: they open its own door, and nobody else's.
    rig.records["orbit", ISS] = Record(tenant="orbit", audience=AUDIENCE, jwks_url="https://evil.example.com/jwks")
    rig.host.others["https://evil.example.com/jwks"] = document(jwk(OTHER, "evil"))
    assert await rig.refuse(sent(groups=groups), at("orbit")) == "unknown_key"
    rig.tokens.forget("orbit", ISS)
    await rig.tokens.verify(sent(groups=groups), at("acme"))
    assert len(rig.host.fetched) == 2
    rig.tokens.forget("default", ISS)
    await rig.tokens.verify(sent(groups=groups), at("acme"))
    assert len(rig.host.fetched) == 3


# --- what is remembered


@pytest.fixture
def door(rig: Rig) -> Authenticator:
    failures = Counter("failures", "", ["reason"], registry=CollectorRegistry())
    keys = ApiKeys(fakes.FakeStore(), KeyMaker(b"k" * 32), rig.now)
    return Authenticator(keys, failures, lambda: rig.elapsed_s, lambda: rig.now().timestamp(), tokens=rig.tokens)


async def refuse(door: Authenticator, header: bytes, target: Target) -> None:
    with pytest.raises(Unauthenticated):
        await door.authenticate(header, target)


async def test_what_is_remembered_for_one_tenant_is_worth_nothing_in_another(rig, serve, door):
    serve()
    header = b"Bearer " + sent().encode()
    for _ in range(2):
        principal = await door.authenticate(header, at("acme"))
        assert principal.tenant == "acme"
        await refuse(door, header, at("zenith"))
        await refuse(door, header, at("default", ""))
        assert door.remembered(header, lambda: at("zenith")) is None
    both = b"Bearer " + sent(groups=["guid-acme", "guid-zenith"]).encode()
    found = [await door.authenticate(both, at(tenant)) for tenant in ("acme", "zenith", "acme", "zenith")]
    assert [each.identity for each in found] == [(name, ISS, "alice") for name in ("acme", "zenith")] * 2
    assert found[0] != found[1]


async def test_a_change_in_one_tenant_forgets_what_was_let_in_there_and_nothing_else(rig, serve, door):
    serve()
    both = b"Bearer " + sent(groups=["guid-acme", "guid-zenith"]).encode()
    for tenant in ("acme", "zenith"):
        await door.authenticate(both, at(tenant))
    serve(served=SERVED.within("zenith"))
    door.forget_issuer("acme", ISS)
    await refuse(door, both, at("acme"))
    assert door.remembered(both, lambda: at("zenith"))
    assert await door.authenticate(both, at("zenith"))


async def test_a_principal_that_another_node_let_in_is_good_in_listed_tenants_only(rig, serve, door):
    serve()
    principal = await door.authenticate(b"Bearer " + sent().encode(), at("acme"))
    await door.confirm(principal)
    with pytest.raises(Unauthenticated):
        await door.confirm(replace(principal, tenant="orbit"))
    serve(served=SERVED.within("zenith"))
    door.forget_issuer("acme", ISS)
    with pytest.raises(Unauthenticated):
        await door.confirm(principal)


async def test_facts_of_a_refusal_name_the_values_of_this_tenant_only(rig, serve):
    serve()
    with pytest.raises(CredentialRefused) as caught:
        await rig.tokens.verify(sent(groups=["guid-zenith"]), TARGET)
    facts = caught.value.facts
    assert facts["expected"] == {"groups": ["guid-acme", "guid-acme-admins"]}
    assert (facts["failure"], facts["actual"], facts["issuer_id"]) == ("tenant", ["guid-zenith"], "issuer1")
