"""From the value of an Authorization header to a Principal.

A valid credential is remembered by its SHA-256 for a short time, so that the message path needs neither the database
nor cryptography. A refused one is remembered too, so that a flood of it costs little. A token is remembered together
with the target that it was verified for.
"""

import logging
import math
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

import anyio
from prometheus_client import Counter

from app.auth import tokens
from app.auth._refusal import CredentialRefused
from app.auth.api_keys import PREFIX, ApiKeys
from app.auth.credential_uses import CredentialUses
from app.auth.tokens import Target, Tokens
from app.concurrency.single_flight import SingleFlight
from app.domain import KEY_ISSUER, Principal
from app.errors import Disabled, StorageUnavailable, Unauthenticated

# --- CredentialExpiry: recent revocations, for requests that have waited; and what ends when a credential expires.
#
# One per node. After each wait a request asks whether something was revoked since it was let in: usually that compares
# two numbers. Whatever is open for long is registered here, and a sweep ends it when its credential expires.

SWEEP_S = 0.25  # how late an expiry may be noticed
MAX_KEPT = 1000  # revocations; a request that has waited through more asks the store

log = logging.getLogger(__name__)

IsMeant = Callable[[Principal], bool]


@dataclass(frozen=True, slots=True, eq=False)
class _Hold:
    """Something open, and the function that ends it."""

    expires_at: float
    end: Callable[[], None]


class CredentialExpiry:
    """Used from the event loop's thread only. `wall_clock` is the clock of `Principal.expires_at`."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock, self._wall_clock = clock, wall_clock
        self.count = 0  # of all revocations so far
        self._recent: deque[tuple[float, IsMeant]] = deque(maxlen=MAX_KEPT)  # the newest is last
        self._holds = set[_Hold]()
        self._next_at = float("inf")  # nothing expires earlier

    # --- revocations

    def revoked(self, is_meant: IsMeant) -> None:
        """The credentials of these principals were revoked, or must be looked up again."""
        self.count += 1
        self._recent.append((self._clock(), is_meant))

    def may_concern(self, principal: Principal, since: int) -> bool:
        """Whether one of the revocations after number `since` may be about this principal."""
        new = self.count - since
        if new > len(self._recent):
            return True
        return any(is_meant(principal) for _, is_meant in islice(reversed(self._recent), new))

    def count_before(self, seconds: float) -> int:
        """`count` as it was so many seconds ago, as far as that is remembered."""
        earliest, count = self._clock() - seconds, self.count
        for at, _ in reversed(self._recent):
            if at < earliest:
                break
            count -= 1
        return count

    # --- expiry

    def has_expired(self, principal: Principal) -> bool:
        """Whether its credential has expired."""
        return principal.expires_at is not None and principal.expires_at <= self._wall_clock()

    @contextmanager
    def hold(self, principal: Principal, end: Callable[[], None]) -> Iterator[None]:
        """Within this block `end` is called once if the principal's credential expires."""
        if principal.expires_at is None:
            yield
            return
        hold = _Hold(principal.expires_at, end)
        self._holds.add(hold)
        self._next_at = min(self._next_at, hold.expires_at)
        try:
            yield
        finally:
            self._holds.discard(hold)

    def sweep(self) -> None:
        """Ends what has expired. Usually nothing is due, and that is one comparison."""
        now = self._wall_clock()
        if now < self._next_at:
            return
        due = [hold for hold in self._holds if hold.expires_at <= now]
        self._holds.difference_update(due)
        self._next_at = min((hold.expires_at for hold in self._holds), default=float("inf"))
        for hold in due:
            try:
                hold.end()
            except Exception:
                log.exception("Could not close what was opened with an expired credential")


REMEMBER_S = 30.0  # a revocation takes effect after this time at the latest, if the audit trail cannot be read
REMEMBER_REFUSED_S = 5.0
ASK_AGAIN_S = 1.0  # while the database is away
DOUBT_S = 3.0  # after a standstill; by then it is known anew whether the database answers
TABLE_SIZE = 10_000
MAX_CREDENTIAL_BYTES = len(b"Bearer ") + tokens.MAX_TOKEN_BYTES

# The label values of `auth_failures`.
REASONS = ("missing", "scheme", "unknown", "wrong_secret", "revoked", "disabled", *tokens.REASONS)

Facts = Mapping[str, object]  # why a credential was refused; its `failure` is one of REASONS

# They contain nothing of what was sent: it may be a password.
_MISSING: Facts = {"failure": "missing", "rule": "form", "expected": "one Authorization header", "actual": "none"}
_SCHEME: Facts = {"failure": "scheme", "rule": "form", "expected": "Bearer", "actual": "another scheme"}
_FOR_ENDPOINTS: Facts = {
    "failure": "audience",
    "rule": "audience",
    "expected": "a key, or a token of an issuer",
    "actual": "a token for MCP endpoints",
}
_MALFORMED: Facts = {
    "failure": "malformed",
    "rule": "form",
    "expected": f"Bearer and one credential of printable ASCII, {MAX_CREDENTIAL_BYTES} bytes at most",
}

_is_printable = re.compile(rb"[\x20-\x7e]*", re.ASCII).fullmatch
_bearer = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]+)", re.ASCII).fullmatch
_Verify = Callable[[], Awaitable[Principal]]
_K = TypeVar("_K")
_V = TypeVar("_V")


def _form_of(header: bytes) -> Facts:
    """What is wrong with a header that is not `Bearer` and one credential."""
    if header[:7].lower() != b"bearer ":
        return _SCHEME
    if len(header) > MAX_CREDENTIAL_BYTES:
        actual = "more bytes"
    elif not _is_printable(header):
        actual = "other bytes than printable ASCII"
    else:
        actual = "several credentials" if header[7:].strip() else "no credential"
    return {**_MALFORMED, "actual": actual}


class Tries(Protocol):
    """Limits bad credentials by address (`limits.caller_rates.RateLimiter`)."""

    def spend(self, key: str) -> None:
        """Counts one credential. Raises RateLimited: there were too many bad ones."""

    def give_back(self, key: str) -> None:
        """The credential was not a bad one."""


class Storage(NamedTuple):
    """What is known of the database without a query. While it is away, credentials that were valid when its audit
    trail, which has the revocations, was read last stay valid until that is REMEMBER_S ago."""

    is_away: Callable[[], bool]
    trail_age_s: Callable[[], float]


class Switches(Protocol):
    """What administrators have switched off (`storage.access.switches.SwitchRepository`)."""

    async def require_on(self, principal: Principal) -> None:
        """Raises Disabled: the principal, its key or its tenant is switched off."""


class OwnTokens(Protocol):
    """Access tokens of tenants' own authorization servers (`authorization.access_tokens.OwnTokens`)."""

    def is_own(self, text: str) -> bool:
        """Whether a token says that it is one of these."""

    async def verify(self, text: str) -> Principal:
        """The principal of a token. Raises CredentialRefused, StorageUnavailable."""

    async def confirm(self, principal: Principal) -> None:
        """Checks that what it stands on goes on. Raises as `verify`."""


class Authenticator:
    """Authenticates requests. Used from the event loop's thread only."""

    def __init__(  # noqa: PLR0913 - once, of parts
        self,
        keys: ApiKeys,
        failures: Counter,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        *,
        tokens: Tokens | None = None,
        own: OwnTokens | None = None,
        tries: Tries | None = None,
        storage: Storage | None = None,
        switches: Switches | None = None,
        uses: CredentialUses | None = None,
        has_stood_still: Callable[[], bool] = lambda: False,  # since it was asked last
    ) -> None:
        self._storage = storage or Storage(is_away=lambda: False, trail_age_s=lambda: math.inf)
        self._keys, self._tokens, self._clock, self._wall_clock = keys, tokens, clock, wall_clock
        self._own, self._tries, self._switches = own, tries, switches
        self._has_stood_still, self._believes_watch_at = has_stood_still, -math.inf
        self._failures = {reason: failures.labels(reason) for reason in REASONS}
        self._known: dict[bytes, tuple[Principal, float]] = {}  # both by a digest
        self._refused: dict[bytes, tuple[Facts | Disabled, float]] = {}
        self._confirmed: dict[Principal, tuple[int, float]] = {}  # by `watch.count`, and until
        self.watch = CredentialExpiry(clock, wall_clock)
        self.uses = uses or CredentialUses()  # noted by each entry point, which knows the address
        self._verifying = SingleFlight[bytes]()
        self._confirming = SingleFlight[Principal]()

    def remembered(self, header_value: bytes, target: Callable[[], Target] | None = None) -> Principal | None:
        """The principal of a header that was authenticated a short time ago, else None.

        `target` is called only if the header is no remembered key: on the message path keys do not pay for it.
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
        """The principal of a header; `header_value` is None if the request had none. Without a target tokens are not
        accepted; without an address failures are not limited.

        Raises:
            Unauthenticated: no credential, or not a valid one, or not for this target.
            Disabled: it is valid, and switched off.
            RateLimited: too many bad ones came from this address; one that was valid before is not affected.
            StorageUnavailable: it cannot be looked up now.
        """
        if header_value is None:
            raise self._refusal(_MISSING)
        self.doubt_after_standstill()
        principal = self.remembered(header_value, None if target is None else lambda: target)
        if principal is not None:
            return self._for(principal, target)
        match = _bearer(header_value) if len(header_value) <= MAX_CREDENTIAL_BYTES else None
        if match is None:
            with self._trying(address):
                raise self._refusal(_form_of(header_value))
        key, verify = self._way(header_value, match[1].decode("ascii"), target)
        return self._for(await self._verify_once(key, address, verify), target)

    async def authenticate_again(self, header_value: bytes, target: Target | None = None) -> Principal:
        """As `authenticate`, by the database instead of by what is remembered: for what goes on after its request."""
        match = _bearer(header_value)
        if match is None:
            raise self._refusal(_form_of(header_value))
        _, verify = self._way(header_value, match[1].decode("ascii"), target)
        try:
            return self._for(await self._verified(verify), target)
        except (CredentialRefused, Disabled) as refusal:
            raise self._refusal(refusal if isinstance(refusal, Disabled) else refusal.facts) from None

    def _for(self, principal: Principal, target: Target | None) -> Principal:
        """The principal, unless a token of our own was sent to anything but an MCP endpoint. Raises Unauthenticated."""
        if principal.grant and (target is None or not target.backend):
            raise self._refusal(_FOR_ENDPOINTS)
        return principal

    def _way(self, header_value: bytes, text: str, target: Target | None) -> tuple[bytes, _Verify]:
        """By which a credential is remembered, and how it is verified: it is a key, or a token."""
        keys, tokens, own, digest = self._keys, self._tokens, self._own, sha256(header_value).digest()
        if tokens is None or target is None or text.startswith(PREFIX) or "." not in text:
            return digest, lambda: keys.verify(text)
        if own is not None and own.is_own(text):
            return digest, lambda: own.verify(text)  # its scopes say what it is for
        return _of_token(digest, target), lambda: tokens.verify(text, target)

    async def confirm(self, principal: Principal) -> None:
        """Checks that the key of a principal that another node has let in is still valid, or that the issuer of its
        token still exists (only the other node has the token). The result is remembered like a credential.

        Raises:
            Unauthenticated: it is revoked, gone or has expired.
            Disabled: it is switched off.
            StorageUnavailable: it cannot be looked up now.
        """
        if self._is_confirmed(principal):
            return
        async with self._confirming.turn(principal):  # of many requests at once, one asks the store
            if not self._is_confirmed(principal):
                await self._ask_again(principal)

    def known_good_since(self, principal: Principal) -> int:
        """The count of revocations up to which a principal that another node lets in is certainly valid. The other node
        may not have noticed a later one: it remembers credentials too. What `confirm` has found here counts as well."""
        since = self.watch.count_before(REMEMBER_S)
        if since == self.watch.count:
            return since
        count, until = self._confirmed.get(principal, (0, -math.inf))
        return max(since, count) if until > self._clock() else since

    def _is_confirmed(self, principal: Principal, *, is_away: bool = False) -> bool:
        """Whether `confirm` has checked the principal; while the database is away an older result counts."""
        count, until = self._confirmed.get(principal, (0, -math.inf))
        is_good = self._was_good(until) if is_away else until > self._clock()
        return is_good and not self.watch.may_concern(principal, count)

    async def _ask_again(self, principal: Principal) -> None:
        if self._is_storage_away() and self._is_confirmed(principal, is_away=True):
            return  # without a query: a database that hangs would delay it
        revoked = self.watch.count
        try:
            if principal.grant and self._own is not None:
                await self._own.confirm(principal)
            elif principal.issuer == KEY_ISSUER:
                await self._keys.confirm(principal)
            elif self._tokens is not None:
                await self._tokens.confirm(principal)
            if self._switches is not None:
                await self._switches.require_on(principal)
        except StorageUnavailable:
            if not self._is_confirmed(principal, is_away=True):
                raise
            return
        except CredentialRefused as refusal:
            raise self._refusal(refusal.facts) from None
        except Disabled as off:
            raise self._refusal(off) from None
        _remember(self._confirmed, principal, (revoked, self._clock() + REMEMBER_S))

    def forget(self, identity: tuple[str, str, str]) -> None:
        """The credentials of this identity must be looked up again."""
        self._forget(lambda principal: principal.identity == identity)

    def forget_grants(self, tenant: str) -> None:
        """Tokens of the tenant's own authorization server must be looked up again."""
        self._forget(lambda principal: principal.tenant == tenant and bool(principal.grant))

    def forget_everything(self) -> None:
        """All credentials must be looked up again. Public keys of issuers are kept."""
        self._forget(lambda principal: True)

    def forget_tenant(self, tenant: str) -> None:
        """The credentials of this tenant must be looked up again, and the keys of its issuers be fetched again."""
        self._forget(lambda principal: principal.tenant == tenant)
        if self._tokens is not None:
            self._tokens.forget(tenant)

    def forget_issuer(self, tenant: str, issuer: str) -> None:
        """The tokens of this issuer must be looked up again, and its keys be fetched again."""
        self._forget(lambda principal: principal.identity[:2] == (tenant, issuer))
        if self._tokens is not None:
            self._tokens.forget(tenant, issuer)

    async def run(self) -> None:
        """Ends what has expired, and notices standstills, until it is cancelled."""
        while True:
            await anyio.sleep(SWEEP_S)
            self.doubt_after_standstill()
            self.watch.sweep()

    def doubt_after_standstill(self) -> None:
        """After a standstill, once: the audit trail may have revocations that were not read yet, so credentials are
        looked up again, those of requests under way too. Where the database is really away they count as before."""
        if not self._has_stood_still():
            return
        now = self._clock()
        self._believes_watch_at = now + DOUBT_S
        self._known = {key: (principal, min(until, now)) for key, (principal, until) in self._known.items()}
        good = [each for each in self._confirmed if not self.watch.may_concern(each, self._confirmed[each][0])]
        self.watch.revoked(lambda principal: True)
        self._confirmed = {each: (self.watch.count, min(self._confirmed[each][1], now)) for each in good}

    def _is_storage_away(self) -> bool:
        """Whether that is known without a query, which could hang. Not right after a standstill: what was asked of the
        database before has been under way for as long."""
        return self._storage.is_away() and self._clock() >= self._believes_watch_at

    async def flush_last_used(self) -> None:
        """Stores when keys were used last; the node calls it once a minute and when it stops.

        Raises:
            StorageUnavailable: the next call does it.
        """
        await self._keys.flush_last_used()

    async def _verify_once(self, key: bytes, address: str | None, verify: _Verify) -> Principal:
        """Of many requests at once with the same credential, one verifies it."""
        async with self._verifying.turn(key):
            entry = self._known.get(key)
            if entry is not None and entry[1] > self._clock():
                return entry[0]
            # A credential that was valid before is not limited: its holder must not suffer from others at the address.
            with self._trying(address if entry is None else None):
                return await self._look_up(key, verify)

    @contextmanager
    def _trying(self, address: str | None) -> Iterator[None]:
        """Spends one try of the address, and gives it back unless the block raises Unauthenticated.

        Raises:
            RateLimited: there is none left.
        """
        if self._tries is None or address is None:
            yield
            return
        self._tries.spend(address)
        is_bad = False
        try:
            yield
        except Unauthenticated:
            is_bad = True
            raise
        finally:
            if not is_bad:
                self._tries.give_back(address)

    async def _look_up(self, key: bytes, verify: _Verify) -> Principal:
        refused = self._refused.get(key)
        if refused is not None and refused[1] > self._clock():
            raise self._refusal(refused[0])
        if self._is_storage_away() and (kept := self._kept(key)) is not None:
            return kept  # without a query: a database that hangs would delay it
        revoked = self.watch.count
        try:
            principal = await self._verified(verify)
        except StorageUnavailable:
            kept = self._kept(key)
            if kept is None:
                raise
            return kept
        except (CredentialRefused, Disabled) as refusal:
            why = refusal if isinstance(refusal, Disabled) else refusal.facts
            self._known.pop(key, None)
            if self.watch.count == revoked:
                _remember(self._refused, key, (why, self._clock() + REMEMBER_REFUSED_S))
            raise self._refusal(why) from None
        remember_s = REMEMBER_S
        if principal.expires_at is not None:
            remember_s = min(remember_s, principal.expires_at - self._wall_clock())
        # After a revocation during the look-up the result may be outdated, and is not remembered.
        if self.watch.count == revoked and remember_s > 0:
            _remember(self._known, key, (principal, self._clock() + remember_s))
        return principal

    async def _verified(self, verify: _Verify) -> Principal:
        principal = await verify()
        if self._switches is not None:
            await self._switches.require_on(principal)
        return principal

    def _kept(self, key: bytes) -> Principal | None:
        """The principal of a credential while the database is away. Credentials that were revoked before the trail was
        read last are not in the table any more."""
        entry = self._known.get(key)
        if entry is None or not self._was_good(entry[1]):
            return None
        principal, left_s = entry[0], REMEMBER_S - self._storage.trail_age_s()
        if principal.expires_at is not None and principal.expires_at <= self._wall_clock():
            return None
        self._known[key] = principal, self._clock() + min(ASK_AGAIN_S, left_s)
        return principal

    def _was_good(self, until: float) -> bool:
        """Whether an entry was valid when the trail was read last, and that is not too long ago."""
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
        reason = str(why["failure"])
        self._failures[reason].inc()
        return Unauthenticated(token_was_sent=reason not in ("missing", "scheme"), facts=why)


def _of_token(digest: bytes, target: Target) -> bytes:
    """The key by which a token is remembered. A digest, because path and host of the target come from the client."""
    return sha256(b"\0" + digest + repr(target).encode("ascii", "backslashreplace")).digest()


def _remember(table: dict[_K, _V], key: _K, entry: _V) -> None:
    """Puts the entry last, and removes the oldest one, which is the first, if the table is full."""
    table.pop(key, None)
    if len(table) >= TABLE_SIZE:
        del table[next(iter(table))]
    table[key] = entry
