"""IssuerCheck: what an issuer's keys look like now, and which rules a token of its passes; for its administrators.

Fetches anew, and leaves what sign-ins have remembered as it is. The token is looked at and forgotten: nothing here
keeps, logs or repeats it.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from app.auth import token_form, token_grants
from app.auth import token_rules as rules
from app.auth.jwks import Fetch, Key, KeyNotFound, KeySource, PublicKey, key_url, listed_keys
from app.auth.outbound import FetchFailed
from app.auth.token_claims import shown
from app.auth.token_form import Finding, Sent, TokenRefused
from app.auth.token_rules import Case, IssuerRecord
from app.auth.tokens import HMAC, Tokens, key_missing, source_of
from app.errors import Disabled

_NAMES = ("form", "header", "issuer", "algorithm", "key", "signature")
_OF_CLAIMS = ("required", "audience", "lifetime", "expiry", "not before", "subject", "tenant", "groups", "scopes")
_LAST = "switched on"

Off = Callable[[tuple[str, str, str]], Awaitable[Disabled | None]]
"""What of an identity is switched off (`storage.switches.SwitchRepository.off`)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A token, and where it is to be of use: in a tenant, or in any of its issuer's list. `resources`: see `Case`."""

    token: str
    tenant: str | None
    resources: Sequence[str]
    now: float


@dataclass(frozen=True, slots=True)
class KeyFound:
    """A key in the issuer's document. `problem` says why it verifies nothing here."""

    kid: str | None
    algorithms: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(slots=True)
class KeyLook:
    """How a look at an issuer's keys went. Without an `error` they were found, usable or not."""

    urls: list[str] = field(default_factory=list)
    ms: float = 0.0
    found: list[KeyFound] = field(default_factory=list)
    error: str | None = None
    setting: str | None = None  # of ours, that could change it
    keys: list[tuple[str | None, Key]] = field(default_factory=list)

    def fitting(self, kid: str | None, algorithm: str) -> PublicKey | None:
        """The one key, chosen as it is for a sign-in."""
        named = [key for each, key in self.keys if kid is None or each == kid]
        public = [key.public for key in named if algorithm in key.algorithms]
        return public[0] if len(public) == 1 else None

    def problem(self, algorithms: Sequence[str]) -> str | None:
        """Why no token of these algorithms can be believed now; None if one can."""
        if self.error is not None:
            return self.error
        if not any(key.algorithms.intersection(algorithms) for _, key in self.keys):
            return f"among {len(self.found)} keys there is none for {', '.join(algorithms)}"
        return None


@dataclass(frozen=True, slots=True)
class Step:
    """One rule, and whether the token passes it; None: it could not be asked."""

    finding: Finding
    passed: bool | None


@dataclass(slots=True)
class Checked:
    """How a check of an issuer ended. `granted` is what the token would confer if it passed every rule."""

    look: KeyLook
    problem: str | None
    steps: list[Step] = field(default_factory=list)
    granted: frozenset[str] | None = None
    reached: dict[str, frozenset[str]] | None = None  # the same in each tenant, where none was asked for
    expires_at: float | None = None

    @property
    def ok(self) -> bool:
        """Whether its keys are there, and the token, if there was one, is believed."""
        return self.problem is None and all(step.passed for step in self.steps)


class IssuerCheck:
    """Looks at issuers as `Tokens` does."""

    def __init__(self, tokens: Tokens, fetch: Fetch, off: Off, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens, self._fetch, self._off, self._clock = tokens, fetch, off, clock

    async def look(self, source: KeySource) -> KeyLook:
        """Fetches the keys. Does not raise: what went wrong is in the answer."""
        found, started = KeyLook(), self._clock()

        async def fetch(url: str) -> bytes:
            found.urls.append(url)
            return await self._fetch(url)

        try:
            for kid, key in listed_keys(await fetch(await key_url(source, fetch))):
                _add(found, kid, key)
        except FetchFailed as problem:
            found.error, found.setting = str(shown(str(problem))), problem.setting
        found.ms = (self._clock() - started) * 1000
        return found

    async def run(self, issuer: IssuerRecord, asked: Asked | None) -> Checked:
        """Looks at the keys, and lets the token, if there is one, run through every rule. Without a tenant, which is
        for issuers of the platform, it must reach one of their list.

        Unlike a sign-in it does not stop at the first that fails: a wrong audience is shown behind a wrong signature.

        Raises:
            StorageUnavailable: nobody can tell what is switched off.
        """
        if issuer.sealed_secret is None:
            look = await self.look(source_of(issuer))
            problem = look.problem(issuer.algorithms)
        else:
            look, problem = KeyLook(), None
            if self._tokens.secret_of(issuer) is None:
                problem = look.error = "the secret does not open under this SECRET_KEY: set it again"
                look.setting = "TRUNKLINE_SECRET_KEY"
        checked = Checked(look, problem)
        if asked is not None:
            cases = self._ask(checked, issuer, asked)
            if all(step.passed for step in checked.steps):
                await self._ask_switches(checked, cases)
            else:
                _skip(checked, (_LAST,), "who passes is looked up")
        return checked

    def _ask(self, checked: Checked, issuer: IssuerRecord, asked: Asked) -> Sequence[Case]:
        """The token in each tenant in which it is of use, if it passes."""
        try:
            sent = token_form.read(asked.token)
        except TokenRefused as refusal:
            _note(checked, refusal.finding)
            _skip(checked, (*_NAMES[1:], *_OF_CLAIMS), "the token has not the form of one")
            return []
        case = Case(sent, issuer, asked.tenant or issuer.tenant, asked.resources, asked.now)
        _note(checked, Finding("form", "three parts in base64url, the first two JSON objects", "they are"))
        for finding in (rules.header(sent), rules.issuer(case), rules.algorithm(case)):
            _note(checked, finding)
        self._ask_key(checked, issuer, sent)
        reached = self._reached(case) if asked.tenant is None else None
        for rule in rules.CLAIM_RULES:
            _note(checked, _of_any(case, reached) if rule is rules.tenant and reached is not None else rule(case))
        passed = {step.finding.rule: step.passed for step in checked.steps}
        if passed["tenant"] and passed["groups"] and passed["scopes"]:
            if reached is None:
                checked.granted = token_grants.granted(case)
                _say_if_nothing(checked, issuer)
            else:
                checked.reached = {each.tenant: token_grants.granted(each) for each in reached}
        if passed["lifetime"] and sent.claims["exp"] <= rules.LAST_MOMENT:
            checked.expires_at = sent.claims["exp"]
        return [case] if reached is None else reached

    async def _ask_switches(self, checked: Checked, cases: Sequence[Case]) -> None:
        """What a sign-in asks last. Of several tenants one that is on will do."""
        found = {case.tenant: await self._off(token_grants.principal(case).identity) for case in cases}
        words = {tenant: shown(str(off)) for tenant, off in found.items() if off is not None}
        hint = "an administrator can switch it on again" if words else None
        failure = "disabled" if len(words) == len(cases) else None
        _note(checked, Finding(_LAST, "the tenant and the principal are", words or "they are", failure, hint))
        if checked.reached is not None:
            checked.reached = {tenant: each for tenant, each in checked.reached.items() if tenant not in words}

    def _reached(self, case: Case) -> list[Case]:
        """The same case in each tenant that the token names."""
        listed = case.issuer.tenants
        cases = [replace(case, tenant=name) for name in sorted(listed.names() if listed else ())]
        return [each for each in cases if rules.tenant(each).failure is None]

    def _ask_key(self, checked: Checked, issuer: IssuerRecord, sent: Sent) -> None:
        algorithm = sent.header.get("alg")
        if not all(step.passed for step in checked.steps if step.finding.rule in ("header", "algorithm")):
            _skip(checked, ("key", "signature"), "without a header that is right there is no key")
            return
        key: PublicKey | bytes | None
        if issuer.sealed_secret is not None:
            key = self._tokens.secret_of(issuer)
            expected = "the secret of the issuer"
        else:
            key = None if algorithm == HMAC else checked.look.fitting(sent.kid, str(algorithm))
            expected = "one key with this `kid` and `alg`"
        if key is None:
            missing = KeyNotFound(checked.look.error, [each for each, _ in checked.look.keys])
            _note(checked, key_missing(sent.kid, str(algorithm), missing))
            _skip(checked, ("signature",), "without the key it cannot be verified")
            return
        _note(checked, Finding("key", expected, {"kid": shown(sent.kid), "alg": algorithm}))
        _note(checked, self._tokens.signature(sent, key))


def _of_any(case: Case, reached: Sequence[Case]) -> Finding:
    """What is to be said of the tenants of a token where none is asked for."""
    listed = case.issuer.tenants
    finding = rules.tenant(case)
    expected = {} if listed is None else {listed.claim: shown(list(listed.map))}
    if reached:
        return Finding("tenant", expected, finding.actual)
    hint = finding.hint if finding.failure == "claims" else "none of its values is in the list"
    return Finding("tenant", expected, finding.actual, "tenant", hint)


def _add(look: KeyLook, kid: str | None, key: Key | str) -> None:
    named = None if kid is None else str(shown(kid))
    if isinstance(key, str):
        look.found.append(KeyFound(named, problem=key))
        return
    look.found.append(KeyFound(named, tuple(sorted(key.algorithms))))
    look.keys.append((kid, key))


def _note(checked: Checked, finding: Finding) -> None:
    checked.steps.append(Step(finding, finding.failure is None))


def _say_if_nothing(checked: Checked, issuer: IssuerRecord) -> None:
    """A token that passes every rule and confers nothing gets 403s, which no rule explains."""
    if not checked.granted:
        last = checked.steps[-1]
        known = ", ".join(sorted(issuer.max_scopes))
        hint = f"it confers nothing: put one of {known} (`max_scopes`) there, or give one to its groups by `claims.map`"
        checked.steps[-1] = replace(last, finding=replace(last.finding, hint=hint))


def _skip(checked: Checked, names: Sequence[str], why: str) -> None:
    checked.steps += [Step(Finding(name, None, None, hint=why), None) for name in names]
