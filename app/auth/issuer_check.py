"""IssuerCheck: for administrators: what keys an issuer has now, and which rules a token of it passes.

Fetches anew, and changes nothing that sign-ins remember. The token is neither kept nor logged nor repeated.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app.auth import _token_form as token_form
from app.auth import token_rules as rules
from app.auth._refusal import CredentialRefused, Finding
from app.auth._token_form import Sent, shown
from app.auth.issuer_rules import HMAC
from app.auth.jwks import Fetch, Key, KeyNotFound, KeySource, key_url, listed_keys, only_key
from app.auth.outbound_urls import FetchFailed
from app.auth.token_rules import Case
from app.auth.tokens import Tokens, granted, holder, key_missing, source_of
from app.domain import Issuer
from app.errors import Disabled

if TYPE_CHECKING:
    from app.auth._ciphers import PublicKey

_NAMES = ("form", "header", "issuer", "algorithm", "key", "signature")
_OF_CLAIMS = ("required", "audience", "lifetime", "expiry", "not before", "subject", "tenant", "groups", "scopes")
_LAST = "switched on"

Off = Callable[[tuple[str, str, str]], Awaitable[Disabled | None]]
"""What is switched off for an identity (`storage.access.switches.SwitchRepository.off`)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A token to check: for a tenant, or (None) for any tenant of its issuer's list. `resources`: see `Case`."""

    token: str
    tenant: str | None
    resources: Sequence[str]
    now: float


@dataclass(frozen=True, slots=True)
class FetchedKeys:
    """The result of fetching an issuer's keys: the keys, usable or not, or an error. `setting` is the setting of this
    gateway that could change the error."""

    urls: Sequence[str] = ()
    ms: float = 0.0
    listed: Sequence[Key] = ()
    error: str | None = None
    setting: str | None = None

    @property
    def found(self) -> list[Key]:
        """The keys with their `kid` cut to what can be shown."""
        return [replace(key, kid=None if key.kid is None else str(shown(key.kid))) for key in self.listed]

    def problem(self, algorithms: Sequence[str]) -> str | None:
        """Why no token with one of these algorithms can be verified; None if one can."""
        if self.error is not None or any(key.algorithms.intersection(algorithms) for key in self.listed):
            return self.error
        return f"among {len(self.listed)} keys there is none for {', '.join(algorithms)}"


@dataclass(frozen=True, slots=True)
class Step:
    """One rule, and whether the token passes it; None if it could not be checked."""

    finding: Finding
    passed: bool | None


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check. `granted` are the scopes that the token confers if it passes every rule; `reached` are
    these in each tenant, if the check was for no tenant in particular."""

    keys: FetchedKeys
    problem: str | None
    steps: Sequence[Step] = ()
    granted: frozenset[str] | None = None
    reached: Mapping[str, frozenset[str]] | None = None
    expires_at: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the keys are usable, and the token, if there is one, is accepted."""
        return self.problem is None and all(step.passed for step in self.steps)


class IssuerCheck:
    """Applies the rules of `Tokens` to an issuer, and to a token of it."""

    def __init__(self, tokens: Tokens, fetch: Fetch, off: Off, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens, self._fetch, self._off, self._clock = tokens, fetch, off, clock

    async def fetch_keys(self, source: KeySource) -> FetchedKeys:
        """Fetches the keys; a failure is in the result."""
        urls, started = list[str](), self._clock()

        async def fetch(url: str) -> bytes:
            urls.append(url)
            return await self._fetch(url)

        try:
            keys = FetchedKeys(urls, listed=listed_keys(await fetch(await key_url(source, fetch))))
        except FetchFailed as problem:
            keys = FetchedKeys(urls, error=str(shown(str(problem))), setting=problem.setting)
        return replace(keys, ms=(self._clock() - started) * 1000)

    async def run(self, issuer: Issuer, asked: Asked | None) -> Checked:
        """Fetches the keys, and checks the token, if there is one, by every rule. Without a tenant, as for issuers of
        the platform, the token must name a tenant of their list.

        Unlike a sign-in it does not stop at the first failure: a wrong audience is shown even after a wrong signature.

        Raises:
            StorageUnavailable: it is not known what is switched off.
        """
        if issuer.sealed_secret is None:
            keys = await self.fetch_keys(source_of(issuer))
        elif self._tokens.secret_of(issuer) is None:
            sealed = "the secret cannot be decrypted with this SECRET_KEY: set it again"
            keys = FetchedKeys(error=sealed, setting="TRUNKLINE_SECRET_KEY")
        else:
            keys = FetchedKeys()
        problem = keys.problem(issuer.algorithms) if issuer.sealed_secret is None else keys.error
        if asked is None:
            return Checked(keys, problem)
        token = _TokenCheck(self._tokens, keys, issuer, asked)
        await token.run(self._off)
        return Checked(keys, problem, token.steps, token.granted, token.reached, token.expires_at)


class _TokenCheck:
    """The check of one token: the steps so far, and what follows from them."""

    def __init__(self, tokens: Tokens, keys: FetchedKeys, issuer: Issuer, asked: Asked) -> None:
        self._tokens, self._keys, self._issuer, self._asked = tokens, keys, issuer, asked
        self.steps: list[Step] = []
        self.granted: frozenset[str] | None = None
        self.reached: dict[str, frozenset[str]] | None = None
        self.expires_at: float | None = None

    async def run(self, off: Off) -> None:
        """Checks all rules, and last whether tenant and principal are switched on."""
        cases = self._ask_rules()
        if all(step.passed for step in self.steps):
            await self._ask_switches(cases, off)
        else:
            self._skip((_LAST,), "checked only if all other rules pass")

    def _ask_rules(self) -> Sequence[Case]:
        """The case of the token in each tenant for which it is good if it passes."""
        issuer, asked = self._issuer, self._asked
        try:
            sent = token_form.read(asked.token)
        except CredentialRefused as refusal:
            self._note(refusal.finding)
            self._skip((*_NAMES[1:], *_OF_CLAIMS), "this is not the form of a token")
            return []
        case = Case(sent, issuer, asked.tenant or issuer.tenant, asked.resources, asked.now)
        self._note(Finding("form", "three parts in base64url, the first two JSON objects", "as expected"))
        for finding in (rules.header(sent), rules.issuer(case), rules.algorithm(case)):
            self._note(finding)
        self._ask_key(sent)
        reached = _reached(case) if asked.tenant is None else None
        for rule in rules.CLAIM_RULES:
            self._note(_of_any(case, reached) if rule is rules.tenant and reached is not None else rule(case))
        passed = {step.finding.rule: step.passed for step in self.steps}
        if passed["tenant"] and passed["groups"] and passed["scopes"]:
            if reached is None:
                self.granted = granted(case)
                self._say_if_nothing()
            else:
                self.reached = {each.tenant: granted(each) for each in reached}
        if passed["lifetime"] and sent.claims["exp"] <= rules.LAST_MOMENT:
            self.expires_at = sent.claims["exp"]
        return [case] if reached is None else reached

    async def _ask_switches(self, cases: Sequence[Case], off: Off) -> None:
        """The last check of a sign-in. Of several tenants one must be on."""
        found = {case.tenant: await off(holder(case).identity) for case in cases}
        words = {tenant: shown(str(each)) for tenant, each in found.items() if each is not None}
        hint = "an administrator can switch it on again" if words else None
        failure = "disabled" if len(words) == len(cases) else None
        self._note(Finding(_LAST, "the tenant and the principal are", words or "they are", failure, hint))
        if self.reached is not None:
            self.reached = {tenant: each for tenant, each in self.reached.items() if tenant not in words}

    def _ask_key(self, sent: Sent) -> None:
        algorithm = sent.header.get("alg")
        if not all(step.passed for step in self.steps if step.finding.rule in ("header", "algorithm")):
            self._skip(("key", "signature"), "a wrong header names no key")
            return
        key: PublicKey | bytes | None
        if self._issuer.sealed_secret is not None:
            key = self._tokens.secret_of(self._issuer)
            expected = "the secret of the issuer"
        else:
            key = None if algorithm == HMAC else only_key(self._keys.listed, sent.kid, str(algorithm))
            expected = "one key with this `kid` and `alg`"
        if key is None:
            missing = KeyNotFound(self._keys.error, [each.kid for each in self._keys.listed if each.algorithms])
            self._note(key_missing(sent.kid, str(algorithm), missing))
            self._skip(("signature",), "cannot be verified without the key")
            return
        self._note(Finding("key", expected, {"kid": shown(sent.kid), "alg": algorithm}))
        self._note(self._tokens.signature(sent, key))

    def _note(self, finding: Finding) -> None:
        self.steps.append(Step(finding, finding.failure is None))

    def _skip(self, names: Sequence[str], why: str) -> None:
        self.steps += [Step(Finding(name, None, None, hint=why), None) for name in names]

    def _say_if_nothing(self) -> None:
        """Adds a hint if the token confers no scopes: it would pass every rule, and get 403 everywhere."""
        if not self.granted:
            known = ", ".join(sorted(self._issuer.max_scopes))
            hint = (
                f"it confers no scopes: put one of {known} (`max_scopes`) there, or give its groups one by `claims.map`"
            )
            last = self.steps.pop()
            self.steps.append(replace(last, finding=replace(last.finding, hint=hint)))


def _reached(case: Case) -> list[Case]:
    """The case in each tenant that the token names."""
    listed = case.issuer.tenants
    cases = [replace(case, tenant=name) for name in sorted(listed.names() if listed else ())]
    return [each for each in cases if rules.tenant(each).failure is None]


def _of_any(case: Case, reached: Sequence[Case]) -> Finding:
    """The finding about the tenant if the check is for no tenant in particular."""
    listed = case.issuer.tenants
    finding = rules.tenant(case)
    expected = {} if listed is None else {listed.claim: shown(list(listed.map))}
    if reached:
        return Finding("tenant", expected, finding.actual)
    hint = finding.hint if finding.failure == "claims" else "none of its values is in the list"
    return Finding("tenant", expected, finding.actual, "tenant", hint)
