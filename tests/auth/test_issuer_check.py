"""The check of an issuer says of a token what a sign-in does, whatever the token is."""

import json
import random
from dataclasses import replace
from typing import Any

from app.admin.resources.issuer_checks import IssuerCheckAnswer
from app.auth._refusal import CredentialRefused
from app.auth.issuer_check import Asked, Checked, IssuerCheck
from app.auth.tokens import place_of
from app.domain import ServedTenants, TenantGrant
from tests.auth.tokens import HS, ISS, SECRET, TARGET, Rig, T, claims, raw_token, sealer

CASES = 2000
SERVED = ServedTenants("groups", {"team": TenantGrant("acme", ("mcp:connect",)), "z": TenantGrant("zenith")})
PLATFORMS = replace(
    HS, tenant="default", sealed_secret=sealer.seal(SECRET.encode(), place_of("default", ISS, HS.id)), tenants=SERVED
)
ISSUERS = (
    HS,
    replace(HS, claims={"groups": "groups", "map": {"team": ["mcp:connect"]}, "tenant": "org"}),
    PLATFORMS,
    replace(PLATFORMS, audience=("api://gw", TARGET.resource)),
)
NAMES = ("exp", "iat", "nbf", "iss", "aud", "sub", "jti", "scope", "groups", "org", "_claim_names", "hasgroups")
NUMBERS = (0, -1, 2**39, 2**40, 2**53, 10**30, T, T + 600, T - 600, 1, 1.5, 1e300)
TEXTS = ("", "\ud800", "\0", "a" * 300, "mcp:connect", "key", "alice", "acme", "é\u2028", "\x1b[2J", "groups", "team")


def anything(draw: random.Random, depth: int = 0) -> Any:
    """A value of JSON; more often than not one that could be right."""
    kind = draw.randrange(10)
    if kind < 2:
        return draw.choice([None, True, False])
    if kind < 4:
        return draw.choice(NUMBERS)
    if kind == 4:
        return draw.choice(TEXTS)
    if kind == 5 and depth < 4:
        return [anything(draw, depth + 1) for _ in range(draw.randrange(5))]
    if kind == 6 and depth < 4:
        return {name: anything(draw, depth + 1) for name in draw.sample(["roles", "a", "b", "", "x.y"], 2)}
    return draw.choice([["team"], T, T + 600, TARGET.resource, ISS, "mcp:connect"])


async def nobody(_: object) -> None:
    """Is switched off."""


async def lets_in(rig: Rig, text: str, checked: Checked) -> bool:
    """Whether a sign-in takes the token, and if it does, with what the check says that it confers."""
    try:
        principal = await rig.tokens.verify(text, TARGET)
    except CredentialRefused as refusal:
        return len(json.dumps(refusal.facts)) > 4000
    return principal.scopes == checked.granted


async def test_of_any_token_the_check_says_what_a_sign_in_does_in_an_answer_that_is_short(rig):
    draw, check, accepted = random.Random(5), IssuerCheck(rig.tokens, rig.host.fetch, nobody), 0
    for _ in range(CASES):
        changes = {name: anything(draw) for name in draw.sample(NAMES, draw.randrange(1, 3))}
        header = {draw.choice(["kid", "typ", "crit", "x"]): anything(draw)} if draw.random() < 0.2 else {}
        text = raw_token({"alg": "HS256", **header}, {**claims(groups=["team"], org="acme"), **changes}, "HS256")
        issuer = draw.choice(ISSUERS)
        rig.records = {("acme", ISS): issuer}
        for tenant in ("acme", None) if issuer.tenants else ("acme",):
            checked = await check.run(issuer, Asked(text, tenant, [TARGET.resource], T))
            assert len(IssuerCheckAnswer.of(checked).model_dump_json()) < 20_000
            if tenant is None:
                continue
            assert checked.ok is await lets_in(rig, text, checked), (changes, header)
            accepted += checked.ok
    assert CASES / 20 < accepted < CASES / 2
