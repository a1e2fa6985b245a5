"""The rules that a token must pass, one function each, and what each has found.

Pure: `tokens.py` finds the issuer and its keys, and lets nobody in whom one of these refuses; the check of an issuer
shows all of them. What is asked of a token's form stands in `token_form.py`, what it confers in `token_grants.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from app.auth.token_claims import MAX_NAMES, MAX_SCOPES, claim, named_in, scopes_in, shown
from app.auth.token_form import Finding, Sent
from app.domain import ServedTenants, is_own_mark

MAX_KID = 128
MAX_SUBJECT = 255
MAX_LIFE_S = 24 * 3600
LEEWAY_S = 30.0

LAST_MOMENT = 253_402_300_799  # of the year 9999

# Headers that bring a key along, or say that the rest is to be read differently.
_REFUSED_HEADERS = frozenset({"crit", "b64", "jku", "x5u", "x5c", "jwk"})
_REQUIRED = ("exp", "iat", "iss", "aud", "sub")


class Target(NamedTuple):
    """What a request is for. A token is good for one target only, a key for every one."""

    tenant: str
    backend: str  # "" for the REST API
    base_url: str  # under which the client reaches us, without a slash at the end

    @property
    def resource(self) -> str:
        """The canonical URL (RFC 8707): the audience that a token must have, if its issuer names no other."""
        if self.backend:
            return f"{self.base_url}/t/{self.tenant}/{self.backend}/mcp"
        return f"{self.base_url}/api/v1/tenants/{self.tenant}"


class IssuerRecord(Protocol):
    """What the store remembers of an issuer."""

    @property
    def id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def issuer(self) -> str: ...
    @property
    def algorithms(self) -> Sequence[str]: ...
    @property
    def sealed_secret(self) -> bytes | None: ...
    @property
    def jwks_url(self) -> str | None: ...
    @property
    def discovery_url(self) -> str | None: ...
    @property
    def audience(self) -> Sequence[str]: ...
    @property
    def claims(self) -> Mapping[str, Any]: ...
    @property
    def max_scopes(self) -> frozenset[str]: ...
    @property
    def tenants(self) -> ServedTenants | None: ...


@dataclass(frozen=True, slots=True)
class Case:
    """A token before the issuer that it names. `resources`: an audience that is one of these will do."""

    sent: Sent
    issuer: IssuerRecord
    tenant: str
    resources: Sequence[str]
    now: float


Rule = Callable[[Case], Finding]


# --- in the order in which they are asked


def header(sent: Sent) -> Finding:
    """No header that brings a key along; a `kid` that can be a key of a dictionary."""
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
    """Every claim that must be there is, and those that are texts are."""
    claims = case.sent.claims
    missing = [name for name in _REQUIRED if claims.get(name) in (None, [], "")]
    wrong = [name for name in ("sub", "jti") if name in claims and not isinstance(claims[name], str)]
    expected = f"{', '.join(_REQUIRED)}; `sub` and `jti` texts"
    if missing or wrong:
        return Finding("required", expected, {"missing": missing, "no text": wrong}, "claims")
    return Finding("required", expected, "all of them")


def audience(case: Case) -> Finding:
    """`aud` names what the issuer's tokens are for; unless the issuer says that, the endpoint itself."""
    named = case.sent.claims.get("aud")
    listed = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    expected = list(case.issuer.audience or case.resources)
    is_right = all(isinstance(each, str) for each in listed) and not set(expected).isdisjoint(listed)
    hint = None
    if not is_right:
        hint = (
            "have the issuer put an expected value into `aud`; an actual one that is nobody else's may join `audience`"
        )
    return Finding("audience", shown(expected), shown(named), None if is_right else "audience", hint)


def lifetime(case: Case) -> Finding:
    """`iat`, `exp` and `nbf` are whole numbers, and the token does not live for too long."""
    claims = case.sent.claims
    times = {name: claims[name] for name in ("iat", "exp", "nbf") if name in claims}
    expected = f"whole seconds since 1970, from `iat` to `exp` {MAX_LIFE_S} s at most"
    exp, iat = times.get("exp"), times.get("iat")
    if not all(_is_date(value) for value in times.values()) or exp is None or iat is None:
        return Finding("lifetime", expected, {name: shown(value) for name, value in times.items()}, "claims")
    is_right = 0 < exp - iat <= MAX_LIFE_S
    return Finding("lifetime", expected, f"{exp - iat} s", None if is_right else "claims")


def _is_date(value: object) -> bool:
    """An integer, although RFC 7519 allows fractions; `True` is none."""
    return type(value) is int and 0 <= value < 2**40


def expiry(case: Case) -> Finding:
    """`exp` has not passed, or only just."""
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
    """`nbf` and `iat` have come."""
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
    """A numeric date as people read it, if there is such a year."""
    if seconds > LAST_MOMENT:
        return seconds
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")


def subject(case: Case) -> Finding:
    """Whom the token speaks of has a name that can stand in a log, and reads like no mark of our own."""
    path = case.issuer.claims.get("subject") or "sub"
    name = claim(case.sent.claims, path)
    expected = f"`{path}`: a printable text of {MAX_SUBJECT} characters at most"
    if not isinstance(name, str) or not 0 < len(name) <= MAX_SUBJECT or not name.isprintable():
        return Finding("subject", expected, shown(name), "claims")
    if is_own_mark(name):
        return Finding("subject", expected + ", not one of our own marks", shown(name), "reserved")
    return Finding("subject", expected, shown(name))


def tenant(case: Case) -> Finding:
    """The token names the tenant, if the issuer was told that it does.

    Two cases: an issuer of the platform opens the tenants of its list that the token names; an issuer of the tenant
    opens that one, and what its tokens name is compared at most.
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
        form = f"it must be a text or a list of texts, {MAX_NAMES} at most"
        return Finding("tenant", expected, shown(value), "claims", form)
    if here.keys().isdisjoint(named):
        hint = _left_out(case) if value is None else f"none of its values stands for {case.tenant}"
        return Finding("tenant", expected, shown(value), "tenant", hint)
    return Finding("tenant", expected, shown(value))


def _left_out(case: Case) -> str | None:
    """Entra sends no groups to who has too many."""
    if "_claim_names" in case.sent.claims or "hasgroups" in case.sent.claims:
        return "the issuer left the groups out because they are too many: have it send those of this application only"
    return None


def groups(case: Case) -> Finding:
    """The groups that the issuer gives scopes to are a list of texts. A token without groups has just none."""
    path = case.issuer.claims.get("groups")
    if path is None:
        return Finding("groups", "none: the issuer gives no scopes to groups", None)
    value = claim(case.sent.claims, path)
    named, known = named_in(value), case.issuer.claims.get("map") or {}
    expected = {path: shown(list(known))}
    if named is None:
        form = f"it must be a text or a list of texts, {MAX_NAMES} at most"
        return Finding("groups", expected, shown(value), "claims", form)
    hint = _left_out(case) if value is None else None
    if hint is None and known.keys().isdisjoint(named):
        hint = "no group of the token is in `map`, so it gets no scopes by them"
    return Finding("groups", expected, shown(value), hint=hint)


def scopes(case: Case) -> Finding:
    """What the token asks for is a list of texts. A token without scopes is valid, and may do nothing."""
    path = case.issuer.claims.get("scopes") or "scope"
    value = claim(case.sent.claims, path)
    expected = f"`{path}`: a text with spaces or a list of texts, {MAX_SCOPES} at most"
    return Finding("scopes", expected, shown(value), "claims" if scopes_in(value) is None else None)


CLAIM_RULES: Sequence[Rule] = (required, audience, lifetime, expiry, start, subject, tenant, groups, scopes)
"""Those that look at claims; `issuer` and `algorithm` stand before the key is looked for."""
