"""From the value of an Authorization header to a Principal.

A credential that was verified is remembered by its SHA-256 for a short time, so that the message path
asks neither the database nor any cryptography; one that was refused is remembered too, so that a flood of
it costs no more.
"""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from typing import TypeVar

from prometheus_client import Counter

from app.auth.api_keys import ApiKeys, KeyRefused
from app.domain import Principal
from app.errors import Unauthenticated

REMEMBER_S = 30.0  # the longest time that a revocation no notice speaks of may go unseen
REMEMBER_REFUSED_S = 5.0
TABLE_SIZE = 10_000
MAX_CREDENTIAL_BYTES = 8192

# The label values of `auth_failures`.
REASONS = ("missing", "scheme", "malformed", "unknown", "wrong_secret", "revoked", "expired")

_bearer = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]+)", re.ASCII).fullmatch
_V = TypeVar("_V")


class Authenticator:
    """Who is asking? Used from the event loop's thread only."""

    def __init__(
        self,
        keys: ApiKeys,
        failures: Counter,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._keys, self._clock, self._now = keys, clock, now
        self._failures = {reason: failures.labels(reason) for reason in REASONS}
        self._known: dict[bytes, tuple[Principal, float]] = {}
        self._refused: dict[bytes, tuple[str, float]] = {}
        self._forgotten = 0

    def __repr__(self) -> str:
        return f"<Authenticator [{len(self._known)} known, {len(self._refused)} refused]>"

    def remembered(self, header_value: bytes) -> Principal | None:
        """The principal of a header that was authenticated moments ago. Neither waits nor counts failures."""
        entry = self._known.get(sha256(header_value).digest())
        if entry is None or entry[1] <= self._clock():
            return None
        return entry[0]

    async def authenticate(self, header_value: bytes | None) -> Principal:
        """The principal of a header, `None` if the request had none.

        Raises:
            Unauthenticated: no credential, or not a valid one.
            StorageUnavailable: it would have to be looked up, and that is not possible now.
        """
        if header_value is None:
            raise self._refusal("missing")
        if len(header_value) > MAX_CREDENTIAL_BYTES:
            raise self._refusal("malformed")
        principal = self.remembered(header_value)
        if principal is not None:
            return principal
        digest = sha256(header_value).digest()
        refused = self._refused.get(digest)
        if refused is not None and refused[1] > self._clock():
            raise self._refusal(refused[0])
        return await self._verify(digest, header_value)

    def forget(self, identity: tuple[str, str, str]) -> None:
        """The credentials of this identity are worth nothing any more."""
        self._forget(lambda principal: principal.identity == identity)

    def forget_tenant(self, tenant: str) -> None:
        """The same for every credential of a tenant."""
        self._forget(lambda principal: principal.tenant == tenant)

    async def flush_last_used(self) -> None:
        """Writes down when keys were used last; the node calls it once a minute and when it stops.

        Raises:
            StorageUnavailable: nothing is lost, try again later.
        """
        await self._keys.flush_last_used()

    async def _verify(self, digest: bytes, header_value: bytes) -> Principal:
        match = _bearer(header_value)
        if match is None:
            raise self._refusal("malformed" if header_value[:7].lower() == b"bearer " else "scheme")
        forgotten = self._forgotten
        try:
            principal, expires_at = await self._keys.verify(match[1].decode("ascii"))
        except KeyRefused as refusal:
            _remember(self._refused, digest, (refusal.reason, self._clock() + REMEMBER_REFUSED_S))
            raise self._refusal(refusal.reason) from None
        remember_s = REMEMBER_S
        if expires_at is not None:
            remember_s = min(remember_s, (expires_at - self._now()).total_seconds())
        # A revocation may have come while the store was asked: then what it said is not kept.
        if self._forgotten == forgotten:
            _remember(self._known, digest, (principal, self._clock() + remember_s))
        return principal

    def _forget(self, is_meant: Callable[[Principal], bool]) -> None:
        self._forgotten += 1
        self._known = {digest: entry for digest, entry in self._known.items() if not is_meant(entry[0])}

    def _refusal(self, reason: str) -> Unauthenticated:
        self._failures[reason].inc()
        return Unauthenticated(token_was_sent=reason not in ("missing", "scheme"))


def _remember(table: dict[bytes, _V], digest: bytes, entry: _V) -> None:
    """Puts the entry last; the table is in order of age, and the oldest goes when it is full."""
    table.pop(digest, None)
    if len(table) >= TABLE_SIZE:
        del table[next(iter(table))]
    table[digest] = entry
