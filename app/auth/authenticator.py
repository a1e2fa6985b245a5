"""From the value of an Authorization header to a Principal.

A credential that was verified is remembered by its SHA-256 for a short time, so that the message path
asks neither the database nor any cryptography; one that was refused is remembered too, so that a flood of
it costs no more. An API key is remembered by itself; a token together with the target it was verified for,
because for another one it may be worth nothing.
"""

import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import NamedTuple, Protocol, TypeVar

from prometheus_client import Counter

from app.auth import tokens
from app.auth.api_keys import ISSUER, PREFIX, ApiKeys, KeyRefused
from app.auth.credential_uses import CredentialUses
from app.auth.credential_watch import CredentialWatch
from app.auth.tokens import Target, TokenRefused, Tokens
from app.domain import Principal
from app.errors import Disabled, StorageUnavailable, Unauthenticated
from app.single_flight import SingleFlight

REMEMBER_S = 30.0  # the longest time that a revocation no notice speaks of may go unseen
REMEMBER_REFUSED_S = 5.0
ASK_AGAIN_S = 1.0  # while the database is away
TABLE_SIZE = 10_000
MAX_CREDENTIAL_BYTES = len(b"Bearer ") + tokens.MAX_TOKEN_BYTES

# The label values of `auth_failures`.
REASONS = ("missing", "scheme", "unknown", "wrong_secret", "revoked", "disabled", *tokens.REASONS)

Facts = Mapping[str, object]  # why a credential was refused; its `failure` is one of REASONS

# Nothing of what was sent stands in them: a stranger's password is one too.
_MISSING: Facts = {"failure": "missing", "rule": "form", "expected": "one Authorization header", "actual": "none"}
_SCHEME: Facts = {"failure": "scheme", "rule": "form", "expected": "Bearer", "actual": "another scheme"}
_MALFORMED: Facts = {
    "failure": "malformed",
    "rule": "form",
    "expected": f"Bearer and one credential, {MAX_CREDENTIAL_BYTES} bytes at most",
    "actual": "more than that, or several",
}

_bearer = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]+)", re.ASCII).fullmatch
_Verify = Callable[[], Awaitable[Principal]]
_K = TypeVar("_K")
_V = TypeVar("_V")


class Tries(Protocol):
    """How many bad credentials may come from an address (`limits.rate_limiter.RateLimiter`)."""

    def spend(self, key: str) -> None:
        """Raises RateLimited: there were too many."""

    def give_back(self, key: str) -> None:
        """It was not a bad one."""


class Storage(NamedTuple):
    """What is known of the database without asking it. While it is away, credentials that could be used when its trail,
    which tells of revocations, was read last can be used until that is REMEMBER_S ago."""

    is_away: Callable[[], bool]
    trail_age_s: Callable[[], float]


class Switches(Protocol):
    """What administrators have switched off (`storage.switches.SwitchRepository`)."""

    async def require_on(self, principal: Principal) -> None:
        """Raises Disabled: the principal, its key or its tenant is."""


class Authenticator:
    """Who is asking? Used from the event loop's thread only."""

    def __init__(  # noqa: PLR0913 - once, of parts
        self,
        keys: ApiKeys,
        failures: Counter,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        *,
        tokens: Tokens | None = None,
        tries: Tries | None = None,
        storage: Storage | None = None,
        switches: Switches | None = None,
        uses: CredentialUses | None = None,
    ) -> None:
        self._storage = storage or Storage(is_away=lambda: False, trail_age_s=lambda: math.inf)
        self._keys, self._tokens, self._clock, self._wall_clock = keys, tokens, clock, wall_clock
        self._tries, self._switches = tries, switches
        self._failures = {reason: failures.labels(reason) for reason in REASONS}
        self._known: dict[bytes, tuple[Principal, float]] = {}  # both by a digest, whatever was sent
        self._refused: dict[bytes, tuple[Facts | Disabled, float]] = {}
        self._confirmed: dict[Principal, tuple[int, float]] = {}  # after so many revocations, and until when
        self.watch = CredentialWatch(clock, wall_clock)
        self.uses = uses or CredentialUses()  # noted by whoever knows the address: each door
        self._verifying = SingleFlight[bytes]()
        self._confirming = SingleFlight[Principal]()

    def __repr__(self) -> str:
        return f"<Authenticator [{len(self._known)} known, {len(self._refused)} refused]>"

    def remembered(self, header_value: bytes, target: Callable[[], Target] | None = None) -> Principal | None:
        """The principal of a header that was authenticated moments ago. Neither waits nor counts failures.

        `target` is called for what is no known key: on the message path keys do not pay for it.
        """
        digest = sha256(header_value).digest()
        entry = self._known.get(digest)
        if entry is None and target is not None:
            entry = self._known.get(_of_token(digest, target()))
        if entry is None or entry[1] <= self._clock():
            return None
        return entry[0]

    async def authenticate(
        self, header_value: bytes | None, target: Target | None = None, address: str | None = None
    ) -> Principal:
        """The principal of a header, `None` if the request had none. Without a target only keys count, and what fails
        counts for nobody without the address that it came from.

        Raises:
            Unauthenticated: no credential, or not a valid one, or not for this target.
            Disabled: it is valid, and switched off.
            RateLimited: too many bad ones came from this address; one that was good before is not affected.
            StorageUnavailable: it would have to be looked up, and that is not possible now.
        """
        if header_value is None:
            raise self._refusal(_MISSING)
        principal = self.remembered(header_value, None if target is None else lambda: target)
        if principal is not None:
            return principal
        match = _bearer(header_value) if len(header_value) <= MAX_CREDENTIAL_BYTES else None
        if match is None:
            with self._trying(address):
                raise self._refusal(_MALFORMED if header_value[:7].lower() == b"bearer " else _SCHEME)
        text, digest = match[1].decode("ascii"), sha256(header_value).digest()
        keys, tokens = self._keys, self._tokens
        if tokens is None or target is None or text.startswith(PREFIX) or "." not in text:
            return await self._verify_once(digest, address, lambda: keys.verify(text))
        return await self._verify_once(_of_token(digest, target), address, lambda: tokens.verify(text, target))

    async def confirm(self, principal: Principal) -> None:
        """Asks the store whether there still is what another node has let this principal in with: its key, or the
        issuer of its token, which only that node can look at. The answer is remembered as a credential is.

        Raises:
            Unauthenticated: it is gone, or has expired.
            Disabled: it is switched off.
            StorageUnavailable: nobody can tell.
        """
        if self._is_confirmed(principal):
            return
        async with self._confirming.turn(principal):  # of a crowd that another node has let in, one asks
            if not self._is_confirmed(principal):
                await self._ask_again(principal)

    def known_good_since(self, principal: Principal) -> int:
        """After how many revocations a principal that another node lets in was good for certain. That node may not have
        heard yet of what was revoked while it remembers him; what the store has said here since then counts as well."""
        watch = self.watch
        since = watch.count_before(REMEMBER_S)
        if since != watch.count:
            confirmed = self._confirmed.get(principal)
            if confirmed is not None and confirmed[1] > self._clock():
                since = max(since, confirmed[0])
        return since

    def _is_confirmed(self, principal: Principal) -> bool:
        confirmed = self._confirmed.get(principal)
        return (
            confirmed is not None
            and confirmed[1] > self._clock()
            and not self.watch.may_concern(principal, confirmed[0])
        )

    def _was_confirmed(self, principal: Principal) -> bool:
        """Whether it was, where the database cannot say it again."""
        confirmed = self._confirmed.get(principal)
        return (
            confirmed is not None
            and self._was_good(confirmed[1])
            and not self.watch.may_concern(principal, confirmed[0])
        )

    async def _ask_again(self, principal: Principal) -> None:
        if self._storage.is_away() and self._was_confirmed(principal):
            return  # a server that has frozen would be waited for
        revoked = self.watch.count
        try:
            if principal.issuer == ISSUER:
                await self._keys.confirm(principal)
            elif self._tokens is not None:
                await self._tokens.confirm(principal)
            if self._switches is not None:
                await self._switches.require_on(principal)
        except StorageUnavailable:
            if not self._was_confirmed(principal):
                raise
            return
        except (KeyRefused, TokenRefused) as refusal:
            raise self._refusal(refusal.facts) from None
        except Disabled as off:
            raise self._refusal(off) from None
        _remember(self._confirmed, principal, (revoked, self._clock() + REMEMBER_S))

    def forget(self, identity: tuple[str, str, str]) -> None:
        """The credentials of this identity are worth nothing any more."""
        self._forget(lambda principal: principal.identity == identity)

    def forget_everything(self) -> None:
        """Every credential is looked at again. Public keys of issuers stay: no change here makes them wrong."""
        self._forget(lambda principal: True)

    def forget_tenant(self, tenant: str) -> None:
        """The same for every credential of a tenant."""
        self._forget(lambda principal: principal.tenant == tenant)
        if self._tokens is not None:
            self._tokens.forget_tenant(tenant)

    def forget_issuer(self, tenant: str, issuer: str) -> None:
        """The issuer is new, changed or gone: its tokens and keys are looked at again, those refused included."""
        self._forget(lambda principal: principal.identity[:2] == (tenant, issuer))
        if self._tokens is not None:
            self._tokens.forget_issuer(tenant, issuer)

    async def flush_last_used(self) -> None:
        """Writes down when keys were used last; the node calls it once a minute and when it stops.

        Raises:
            StorageUnavailable: nothing is lost, try again later.
        """
        await self._keys.flush_last_used()

    async def _verify_once(self, key: bytes, address: str | None, verify: _Verify) -> Principal:
        """Of many requests that come at once with one credential, one asks: a crowd of sessions has one key."""
        async with self._verifying.turn(key):
            entry = self._known.get(key)
            if entry is not None and entry[1] > self._clock():
                return entry[0]
            return await self._verify(key, address, verify)

    async def _verify(self, key: bytes, address: str | None, verify: _Verify) -> Principal:
        if key in self._known:  # it was good the last time: whoever has it does not suffer from his neighbours
            return await self._look_up(key, verify)
        with self._trying(address):
            return await self._look_up(key, verify)

    @contextmanager
    def _trying(self, address: str | None) -> Iterator[None]:
        """Spends one of the address's tries before anything is looked up, and gives it back unless it was in vain.

        Raises:
            RateLimited: there is none left now.
        """
        if self._tries is None or address is None:
            yield
            return
        self._tries.spend(address)
        try:
            yield
        except Unauthenticated:
            raise
        except BaseException:
            self._tries.give_back(address)
            raise
        self._tries.give_back(address)

    async def _look_up(self, key: bytes, verify: _Verify) -> Principal:
        refused = self._refused.get(key)
        if refused is not None and refused[1] > self._clock():
            raise self._refusal(refused[0])
        if self._storage.is_away() and (kept := self._kept(key)) is not None:
            return kept  # a server that has frozen would be waited for
        revoked = self.watch.count
        try:
            principal = await verify()
            if self._switches is not None:
                await self._switches.require_on(principal)
        except StorageUnavailable:
            kept = self._kept(key)
            if kept is None:
                raise
            return kept
        except (KeyRefused, TokenRefused, Disabled) as refusal:
            why = refusal if isinstance(refusal, Disabled) else refusal.facts
            self._known.pop(key, None)
            if self.watch.count == revoked:
                _remember(self._refused, key, (why, self._clock() + REMEMBER_REFUSED_S))
            raise self._refusal(why) from None
        remember_s = REMEMBER_S
        if principal.expires_at is not None:
            remember_s = min(remember_s, principal.expires_at - self._wall_clock())
        # A revocation may have come while the store was asked: then what it said is not kept.
        if self.watch.count == revoked and remember_s > 0:
            _remember(self._known, key, (principal, self._clock() + remember_s))
        return principal

    def _kept(self, key: bytes) -> Principal | None:
        """Whose this is, where the database cannot say it again. A revocation of before the last look at the trail has
        taken it out of the table."""
        entry = self._known.get(key)
        if entry is None or not self._was_good(entry[1]):
            return None
        principal, left_s = entry[0], REMEMBER_S - self._storage.trail_age_s()
        if principal.expires_at is not None and principal.expires_at <= self._wall_clock():
            return None
        self._known[key] = principal, self._clock() + min(ASK_AGAIN_S, left_s)
        return principal

    def _was_good(self, until: float) -> bool:
        """Whether it was when the trail was read last, and that is not too long ago."""
        age_s = self._storage.trail_age_s()
        return age_s < REMEMBER_S and until >= self._clock() - age_s

    def _forget(self, is_meant: Callable[[Principal], bool]) -> None:
        self.watch.revoked(is_meant)
        self._known = {key: entry for key, entry in self._known.items() if not is_meant(entry[0])}
        self._refused.clear()

    def _refusal(self, why: Facts | Disabled) -> Unauthenticated | Disabled:
        if isinstance(why, Disabled):
            self._failures[why.reason].inc()
            return why.again()
        facts, reason = why, str(why["failure"])
        self._failures[reason].inc()
        return Unauthenticated(token_was_sent=reason not in ("missing", "scheme"), facts=facts)


def _of_token(digest: bytes, target: Target) -> bytes:
    """What a token is remembered by, beside its own digest: the target has a path and a host that the client wrote."""
    return sha256(b"\0" + digest + repr(target).encode("ascii", "backslashreplace")).digest()


def _remember(table: dict[_K, _V], key: _K, entry: _V) -> None:
    """Puts the entry last; the table is in order of age, and the oldest goes when it is full."""
    table.pop(key, None)
    if len(table) >= TABLE_SIZE:
        del table[next(iter(table))]
    table[key] = entry
