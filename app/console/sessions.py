"""ConsoleSessions: who has signed in to the console, by the cookie of the browser.

The cookie is a random number with a MAC, so that one that was made up costs no query. Behind it the database has the
credential, sealed: each request is made with it and authenticated anew, so a session ends with its key or token; and
when it is signed out, at once on that node, on the others within REMEMBERED.
"""

import base64
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256

from app.auth.sealing import SealBroken, Sealer
from app.storage.access.console_sessions import ConsoleSessionRepository

ENDS_AFTER = timedelta(hours=12)
REMEMBERED = timedelta(seconds=5)  # by a node: so long after it was signed out elsewhere a session may go on there
MAX_REMEMBERED = 1_000
_LABEL = b"trunkline console cookies 1"
_NUMBER_BYTES, _MAC_BYTES = 32, 16


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A session of the console. `tenant`: that of the principal. `authorization`: the header with the credential.
    `csrf`: what a page of ours sends back with each change. `digest`: its name in the database."""

    tenant: str
    authorization: bytes = field(repr=False)
    csrf: str = field(repr=False)
    digest: bytes
    ends_at: datetime


class ConsoleSessions:
    """Begins, finds and ends sessions of the console."""

    def __init__(
        self, repository: ConsoleSessionRepository, sealer: Sealer, secret_key: bytes, now: Callable[[], datetime]
    ) -> None:
        self._repository, self._sealer, self._now = repository, sealer, now
        self._remembered: dict[bytes, tuple[SignedIn, datetime]] = {}  # by digest, and until; the oldest is first
        self._ended = 0
        self._key = hmac.digest(secret_key, _LABEL, "sha256")

    async def begin(self, tenant: str, authorization: bytes, until: datetime | None = None) -> bytes:
        """The cookie of a new session, for a credential that was accepted; it ends after 12 hours, or with the
        credential. Raises StorageUnavailable."""
        number, now = secrets.token_bytes(_NUMBER_BYTES), self._now()
        ends_at = now + ENDS_AFTER if until is None else min(until, now + ENDS_AFTER)
        digest, caller = sha256(number).digest(), hmac.digest(self._key, b"caller" + authorization, "sha256")
        sealed = self._sealer.seal(tenant.encode() + b" " + authorization, _place(digest))
        await self._repository.add(digest, caller, sealed, now, ends_at)
        return base64.urlsafe_b64encode(number + self._mac(number))

    async def find(self, cookie: bytes) -> SignedIn | None:
        """The session with this cookie. Raises StorageUnavailable."""
        number = self._number(cookie)
        if number is None:
            return None
        digest, now = sha256(number).digest(), self._now()
        known, until = self._remembered.get(digest, (None, now))
        if until > now:
            return known
        ended = self._ended
        stored = await self._repository.find(digest, now)
        if stored is None:
            return None
        try:
            tenant, _, authorization = self._sealer.open(stored.sealed, _place(digest)).partition(b" ")
        except SealBroken:
            return None
        csrf = hmac.digest(self._key, b"csrf" + number, "sha256").hex()
        found = SignedIn(tenant.decode(), authorization, csrf, digest, stored.ends_at)
        if ended == self._ended:  # else it may be this one that was signed out meanwhile
            self._remember(found, min(now + REMEMBERED, found.ends_at))
        return found

    def _remember(self, found: SignedIn, until: datetime) -> None:
        self._remembered.pop(found.digest, None)
        while len(self._remembered) >= MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[found.digest] = (found, until)

    async def end(self, signed_in: SignedIn) -> None:
        """Signs out. Raises StorageUnavailable."""
        self._ended += 1
        await self._repository.remove(signed_in.digest)
        self._ended += 1
        self._remembered.pop(signed_in.digest, None)

    def _number(self, cookie: bytes) -> bytes | None:
        """Of a cookie that was made here."""
        try:
            both = base64.b64decode(cookie, altchars=b"-_", validate=True)
        except ValueError:
            return None
        number, mac = both[:_NUMBER_BYTES], both[_NUMBER_BYTES:]
        return number if hmac.compare_digest(mac, self._mac(number)) else None

    def _mac(self, number: bytes) -> bytes:
        return hmac.digest(self._key, b"cookie" + number, "sha256")[:_MAC_BYTES]


def _place(digest: bytes) -> str:
    return f"console_sessions/{digest.hex()}"
