"""The rules that a token must pass, one function each. Pure.

A sign-in (`tokens.py`) stops at the first that fails, the check of an issuer shows all of them. The rules for the form
of a token are in `token_form.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from app.auth._refusal import Finding
from app.auth._token_form import MAX_NAMES, MAX_SCOPES, Sent, claim, named_in, scopes_in, shown
from app.domain import Issuer, ServedTenants, is_own_mark

MAX_KID = 128
MAX_SUBJECT = 255
MAX_LIFE_S = 24 * 3600
LEEWAY_S = 30.0

LAST_MOMENT = 253_402_300_799  # of the year 9999

# Headers that bring a key along, or change how the token is to be read.
_REFUSED_HEADERS = frozenset({"crit", "b64", "jku", "x5u", "x5c", "jwk"})
_NAMES_FORM = f"it must be a text or a list of texts, {MAX_NAMES} at most"
_REQUIRED = ("exp", "iat", "iss", "aud", "sub")


class Target(NamedTuple):
    """What a request is for. A token is good for one target, a key for all."""

    tenant: str
    backend: str  # "" for the REST API
    base_url: str  # under which the client reaches the gateway, without a slash at the end

    @property
    def resource(self) -> str:
        """The canonical URL (RFC 8707): the audience that a token must have unless its issuer names another."""
        if self.backend:
            return f"{self.base_url}/t/{self.tenant}/{self.backend}/mcp"
        return f"{self.base_url}/api/v1/tenants/{self.tenant}"


@dataclass(frozen=True, slots=True)
class Case:
    """A token and the issuer that it names. Its audience must be one of `resources`, unless the issuer has its own."""

    sent: Sent
    issuer: Issuer
    tenant: str
    resources: Sequence[str]
    now: float


Rule = Callable[[Case], Finding]


# --- in the order in which they are checked


def header(sent: Sent) -> Finding:
    """No header brings a key along, and `kid` is a short text."""
    expected = f"none of {', '.join(sorted(_REFUSED_HEADERS))}; `kid` a text of {MAX_KID} characters at most"
    refused = sorted(_REFUSED_HEADERS.intersection(sent.header))
    if refused:
        return Finding("header", expected, refused, "header")
    kid = sent.header.get("kid", "")
    if not isinstance(kid, str) or len(kid) > MAX_KID:
        return Finding("header", expected, {"kid": shown(kid)}, "header")
    return Finding("header", expected, shown(list(sent.header)))


def issuer(case: Case) -> Finding:
    """`iss` is exactly the issuer's name."""
    name = case.sent.claims.get("iss")
    is_right = isinstance(name, str) and name == case.issuer.issuer
    hint = None if is_right else "`iss` is compared character for character, a slash at the end included"
    return Finding("issuer", case.issuer.issuer, shown(name), None if is_right else "unknown_issuer", hint)


def algorithm(case: Case) -> Finding:
    """`alg` is one that the issuer was registered with."""
    name, known = case.sent.header.get("alg"), case.issuer.algorithms
    is_right = isinstance(name, str) and name in known
    return Finding("algorithm", list(known), shown(name), None if is_right else "algorithm")


def required(case: Case) -> Finding:
    """All required claims are there; `sub` and `jti` are texts."""
    claims = case.sent.claims
    missing = [name for name in _REQUIRED if claims.get(name) in (None, [], "")]
    wrong = [name for name in ("sub", "jti") if name in claims and not isinstance(claims[name], str)]
    expected = f"{', '.join(_REQUIRED)}; `sub` and `jti` texts"
    if missing or wrong:
        return Finding("required", expected, {"missing": missing, "no text": wrong}, "claims")
    return Finding("required", expected, "all of them")


def audience(case: Case) -> Finding:
    """`aud` has an audience of the issuer; if the issuer has none, the endpoint itself."""
    named = case.sent.claims.get("aud")
    listed = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    expected = list(case.issuer.audience or case.resources)
    # Clients of HTTP+SSE know an endpoint by another address.
    accepted = case.issuer.audience or [*expected, *(each.removesuffix("/mcp") + "/sse" for each in expected)]
    is_right = all(isinstance(each, str) for each in listed) and not set(accepted).isdisjoint(listed)
    if is_right:
        return Finding("audience", shown(expected), shown(named))
    hint = "have the issuer put an expected value into `aud`; a value that is used for nothing else may join `audience`"
    return Finding("audience", shown(expected), shown(named), "audience", hint)


def lifetime(case: Case) -> Finding:
    """`iat`, `exp` and `nbf` are whole numbers, and the token does not live too long."""
    claims = case.sent.claims
    times = {name: claims[name] for name in ("iat", "exp", "nbf") if name in claims}
    expected = f"whole seconds since 1970, from `iat` to `exp` {MAX_LIFE_S} s at most"
    exp, iat = times.get("exp"), times.get("iat")
    if not all(_is_date(value) for value in times.values()) or exp is None or iat is None:
        return Finding("lifetime", expected, {name: shown(value) for name, value in times.items()}, "claims")
    is_right = 0 < exp - iat <= MAX_LIFE_S
    return Finding("lifetime", expected, f"{exp - iat} s", None if is_right else "claims")


def _is_date(value: object) -> bool:
    """An integer, although RFC 7519 allows fractions."""
    return type(value) is int and 0 <= value < 2**40


def expiry(case: Case) -> Finding:
    """`exp` has not passed, give or take the leeway."""
    exp, now = case.sent.claims.get("exp"), case.now
    expected = f"after {_moment(now - LEEWAY_S)}"
    if not _is_date(exp):
        return Finding("expiry", expected, shown(exp), "claims")
    assert isinstance(exp, int)
    if now >= exp + LEEWAY_S:
        hint = f"it expired {now - exp:.0f} s ago by this machine's clock"
        return Finding("expiry", expected, _moment(exp), "expired", hint)
    return Finding("expiry", expected, _moment(exp))


def start(case: Case) -> Finding:
    """`nbf` and `iat` have passed, give or take the leeway."""
    claims, now = case.sent.claims, case.now
    times = {name: claims[name] for name in ("iat", "nbf") if name in claims}
    expected = f"before {_moment(now + LEEWAY_S)}"
    if not all(_is_date(value) for value in times.values()):
        return Finding("not before", expected, {name: shown(value) for name, value in times.items()}, "claims")
    moments = {name: _moment(value) for name, value in times.items()}
    if any(now < value - LEEWAY_S for value in times.values()):
        hint = "compare the clocks of the issuer and of this machine"
        return Finding("not before", expected, moments, "not_yet_valid", hint)
    return Finding("not before", expected, moments)


def _moment(seconds: float) -> object:
    """A numeric date in ISO form, if its year has four digits."""
    if seconds > LAST_MOMENT:
        return seconds
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")


def subject(case: Case) -> Finding:
    """The subject is printable, and cannot be confused with the gateway's own names for principals."""
    path = case.issuer.claims.get("subject") or "sub"
    name = claim(case.sent.claims, path)
    expected = f"`{path}`: a printable text of {MAX_SUBJECT} characters at most"
    if not isinstance(name, str) or not 0 < len(name) <= MAX_SUBJECT or not name.isprintable():
        return Finding("subject", expected, shown(name), "claims")
    if is_own_mark(name):
        return Finding("subject", expected + ", not a name that the gateway uses itself", shown(name), "reserved")
    return Finding("subject", expected, shown(name))


def tenant(case: Case) -> Finding:
    """The token names the tenant.

    Two cases: a token of an issuer of the platform must name a tenant of the issuer's list; a token of a tenant's own
    issuer must name the tenant only if the issuer has a claim for it.
    """
    if case.issuer.tenants is not None:
        return _listed_tenant(case, case.issuer.tenants)
    path = case.issuer.claims.get("tenant")
    if path is None:
        return Finding("tenant", "any: the issuer is the tenant's own", None)
    named = claim(case.sent.claims, path)
    return Finding("tenant", {path: case.tenant}, shown(named), None if named == case.tenant else "tenant")


def _listed_tenant(case: Case, served: ServedTenants) -> Finding:
    value, here = claim(case.sent.claims, served.claim), served.within(case.tenant).map
    named, expected = named_in(value), {served.claim: shown(list(here))}
    if named is None:
        return Finding("tenant", expected, shown(value), "claims", _NAMES_FORM)
    if here.keys().isdisjoint(named):
        hint = _left_out(case) if value is None else f"none of its values belongs to {case.tenant}"
        return Finding("tenant", expected, shown(value), "tenant", hint)
    return Finding("tenant", expected, shown(value))


def _left_out(case: Case) -> str | None:
    """A hint if Entra has left out the groups because there are too many."""
    if "_claim_names" in case.sent.claims or "hasgroups" in case.sent.claims:
        return "the issuer left the groups out because they are too many: have it send those of this application only"
    return None


def groups(case: Case) -> Finding:
    """The groups are a list of texts, if the issuer gives scopes to groups. A token without groups is valid."""
    path = case.issuer.claims.get("groups")
    if path is None:
        return Finding("groups", "none: the issuer gives no scopes to groups", None)
    value = claim(case.sent.claims, path)
    named, known = named_in(value), case.issuer.claims.get("map") or {}
    expected = {path: shown(list(known))}
    if named is None:
        return Finding("groups", expected, shown(value), "claims", _NAMES_FORM)
    hint = _left_out(case) if value is None else None
    if hint is None and known.keys().isdisjoint(named):
        hint = "no group of the token is in `map`, so it gets no scopes by them"
    return Finding("groups", expected, shown(value), hint=hint)


def scopes(case: Case) -> Finding:
    """The scopes are a list of texts. A token without scopes is valid, and allows nothing by itself."""
    path = case.issuer.claims.get("scopes") or "scope"
    value = claim(case.sent.claims, path)
    expected = f"`{path}`: a text with spaces or a list of texts, {MAX_SCOPES} at most"
    return Finding("scopes", expected, shown(value), "claims" if scopes_in(value) is None else None)


CLAIM_RULES: Sequence[Rule] = (required, audience, lifetime, expiry, start, subject, tenant, groups, scopes)
"""The rules for claims; `header`, `issuer` and `algorithm` are checked before the key is looked up."""
