"""Groups and roles of a token: which scopes they confer, and what is refused."""

import uuid
from dataclasses import replace
from typing import Any

import pytest

from app.auth.tokens import place_of
from tests.auth.tokens import HS, TARGET, Record, sealer, token

MAP = {
    "team": ["mcp:connect"],
    "ops": ["tenant:read", "mcp:connect:echo"],
    "boss": ["tenant:admin"],
    "two words": ["mcp:connect"],
}
CAP = frozenset({"mcp:connect", "tenant:read"})


def issuer(algorithm: str = "RS256", path: str = "groups", **more: Any) -> Record:
    base = HS if algorithm == "HS256" else Record()
    return replace(base, claims={"groups": path, "map": MAP}, max_scopes=CAP, **more)


@pytest.mark.parametrize(
    ("path", "sent", "scopes"),
    [
        ("groups", {"groups": ["team"]}, {"mcp:connect"}),
        ("groups", {"groups": ["team", "ops", "unknown"]}, {"mcp:connect", "tenant:read", "mcp:connect:echo"}),
        ("groups", {"groups": []}, set()),
        ("groups", {"groups": None}, set()),
        ("groups", {}, set()),
        ("groups", {"groups": "team"}, {"mcp:connect"}),
        ("groups", {"groups": "two words"}, {"mcp:connect"}),
        ("groups", {"groups": "team ops"}, set()),
        ("groups", {"groups": ["TEAM", "team ", " team", "tea", ""]}, set()),
        ("groups", {"groups": ["boss"]}, set()),
        ("groups", {"groups": ["map", "__class__", "get"]}, set()),
        ("groups", {"groups": ["mcp:connect"]}, set()),
        ("groups", {"groups": [], "scope": "tenant:read"}, {"tenant:read"}),
        ("groups", {"groups": ["team"], "scope": "tenant:read tenant:admin"}, {"mcp:connect", "tenant:read"}),
        # Keycloak: roles of the realm, and of a client whose id is a URL.
        ("realm_access.roles", {"realm_access": {"roles": ["offline_access", "team"]}}, {"mcp:connect"}),
        (
            "resource_access.https://gw.example.com/mcp.roles",
            {"resource_access": {"account": {"roles": ["boss"]}, "https://gw.example.com/mcp": {"roles": ["team"]}}},
            {"mcp:connect"},
        ),
        ("resource_access.gw.roles", {"resource_access": {"gw.x": {"roles": ["team"]}}}, set()),
        ("https://example.com/groups", {"https://example.com/groups": ["team"]}, {"mcp:connect"}),
        ("a.b", {"a": {"b": ["ops"]}, "a.b": ["team"]}, {"mcp:connect"}),
    ],
)
async def test_groups_confer_what_the_map_says_and_no_more_than_the_cap(rig, path, sent, scopes):
    rig.set(issuer(path=path))
    principal = await rig.tokens.verify(token(**{"scope": ..., **sent}), TARGET)
    assert principal.scopes == scopes


async def test_two_hundred_groups_as_entra_id_names_them_fit_into_a_token(rig):
    rig.set(issuer())
    text = token(scope=..., groups=[str(uuid.UUID(int=number << 64 | 0x8000)) for number in range(200)] + ["team"])
    assert 10_000 < len(text) < 13_000
    assert (await rig.tokens.verify(text, TARGET)).scopes == {"mcp:connect"}


WRONG: dict[str, Any] = {
    "a number": 7,
    "true": True,
    "an object": {"team": True},
    "a list with a number": ["team", 7],
    "a list with null": ["team", None],
    "a list in a list": [["team"]],
    "too many": ["t"] * 1001,
}


@pytest.mark.parametrize("algorithm", ["RS256", "HS256"])
@pytest.mark.parametrize("name", WRONG)
async def test_groups_of_a_wrong_kind_open_nothing_whatever_else_the_token_says(rig, algorithm, name):
    rig.set(issuer(algorithm))
    assert await rig.refuse(token(algorithm, groups=WRONG[name])) == "claims"
    assert await rig.tokens.verify(token(algorithm, groups=["team"]), TARGET)


@pytest.mark.parametrize(
    "sent", [{"realm_access": "team"}, {"realm_access": ["team"]}, {"realm_access": {"roles.x": ["team"]}}]
)
async def test_a_path_that_leads_nowhere_is_no_group(rig, sent):
    rig.set(issuer(path="realm_access.roles"))
    assert (await rig.tokens.verify(token(scope=..., **sent), TARGET)).scopes == set()


async def test_without_a_map_groups_confer_nothing(rig):
    rig.set(Record(claims={"groups": None, "map": None}))
    assert (await rig.tokens.verify(token(scope=..., groups=["team"]), TARGET)).scopes == set()


async def test_platform_scopes_of_a_group_are_worth_nothing_outside_the_default_tenant(rig):
    everything = frozenset({"platform:admin", "tenant:admin"})
    claims = {"groups": "groups", "map": {"root": ["platform:admin"]}}
    rig.set(replace(HS, claims=claims, max_scopes=everything))
    assert (await rig.tokens.verify(token("HS256", scope=..., groups=["root"]), TARGET)).scopes == set()
    secret = sealer.seal(b"correct horse battery staple, all 32 bytes of it", place_of("default", HS.issuer, HS.id))
    rig.set(replace(HS, tenant="default", sealed_secret=secret, claims=claims, max_scopes=everything))
    target = TARGET._replace(tenant="default")
    principal = await rig.tokens.verify(token("HS256", scope=..., groups=["root"], aud=target.resource), target)
    assert principal.scopes == {"platform:admin"}


@pytest.mark.parametrize(
    ("path", "sent", "groups"),
    [
        ("groups", {"groups": ["team", "unknown", "ops"]}, {"team", "ops"}),
        ("groups", {"groups": "two words"}, {"two words"}),
        ("groups", {"groups": ["TEAM", "map", "__class__"]}, set()),
        ("groups", {"groups": ["boss"]}, {"boss"}),  # though it confers nothing: its scope is above the issuer's
        ("groups", {"groups": None}, set()),
        ("groups", {}, set()),
        ("realm_access.roles", {"realm_access": {"roles": ["team", "uma"]}, "groups": ["ops"]}, {"team"}),
        ("https://example.com/groups", {"https://example.com/groups": ["team"]}, {"team"}),
        # Entra ID, of somebody in too many groups: it names where to ask for them instead.
        ("groups", {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "https://x"}}}, set()),
    ],
)
async def test_a_principal_is_in_the_groups_that_the_issuer_maps(rig, path, sent, groups):
    rig.set(issuer(path=path))
    assert (await rig.tokens.verify(token(**sent), TARGET)).groups == groups


async def test_without_a_map_nobody_is_in_a_group(rig):
    for claims in ({}, {"groups": None, "map": None}, {"groups": "groups", "map": None}):
        rig.set(Record(claims=claims))
        assert (await rig.tokens.verify(token(groups=["team"]), TARGET)).groups == set()


async def test_groups_are_no_part_of_who_somebody_is(rig):
    rig.set(issuer())
    one, other = [await rig.tokens.verify(token(groups=each), TARGET) for each in (["team"], ["ops"])]
    assert one.identity == other.identity
