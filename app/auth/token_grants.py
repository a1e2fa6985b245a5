"""What a token confers that has passed every rule: who its holder is, and the scopes. Pure."""

from collections.abc import Iterable

from app.auth.policy import CONNECT_ONE, has_scope, is_scope
from app.auth.token_claims import claim, named_in, scopes_in
from app.auth.token_rules import LEEWAY_S, Case
from app.domain import Principal, Scope


def principal(case: Case) -> Principal:
    """The holder of a token that every rule has let pass."""
    claims, record = case.sent.claims, case.issuer
    exp: int = claims["exp"]
    expires_at = exp if case.now < exp else exp + LEEWAY_S  # in its leeway it expires with the leeway
    named = claim(claims, record.claims.get("subject") or "sub")
    return Principal(case.tenant, record.issuer, str(named), granted(case), expires_at)


def granted(case: Case) -> frozenset[str]:
    """The scopes that the token confers itself, by its groups and by what names the tenant; as far as its issuer may.
    A value that stands for another tenant confers nothing here."""
    claims, names = case.sent.claims, case.issuer.claims
    asked = set(scopes_in(claim(claims, names.get("scopes") or "scope")) or ())
    if names.get("groups") is not None:
        known = names.get("map") or {}
        for group in named_in(claim(claims, names["groups"])) or ():
            asked.update(known.get(group, ()))
    if case.issuer.tenants is not None:
        here = case.issuer.tenants.within(case.tenant)
        for value in named_in(claim(claims, here.claim)) or ():
            if value in here.map:
                asked.update(here.map[value].scopes)
    return capped(asked, case.tenant, case.issuer.max_scopes)


def capped(scopes: Iterable[str], tenant: str, max_scopes: frozenset[str]) -> frozenset[str]:
    """The scopes that the token asks for, as far as its issuer may confer them.

    Two cases: what the cap implies is kept; and `mcp:connect` under a cap of single backends means those.
    """
    asked = {scope for scope in scopes if is_scope(scope)}
    cap = Principal(tenant, "", "", max_scopes)
    kept = {scope for scope in asked if has_scope(cap, tenant, scope)}
    if Scope.CONNECT in asked - kept:
        kept |= {scope for scope in max_scopes if scope.startswith(CONNECT_ONE)}
    return frozenset(kept)
