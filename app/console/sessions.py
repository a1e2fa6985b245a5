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
from typing import NamedTuple

from app.auth.sealing import SealBroken, Sealer
from app.concurrency.single_flight import SingleFlight
from app.storage.access.console_sessions import ConsoleSessionRepository

ENDS_AFTER = timedelta(hours=12)
REMEMBERED = timedelta(seconds=5)  # by a node: so long after it was signed out elsewhere a session may go on there
MAX_REMEMBERED = 1_000
ASKED_WITH_OTHERS = timedelta(seconds=60)  # sessions that were in use so lately are asked for in one query
MAX_ASKED = 200
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


class _Remembered(NamedTuple):
    session: SignedIn
    until: datetime
    used_at: datetime


class ConsoleSessions:
    """Begins, finds and ends sessions of the console."""

    def __init__(
        self, repository: ConsoleSessionRepository, sealer: Sealer, secret_key: bytes, now: Callable[[], datetime]
    ) -> None:
        self._repository, self._sealer, self._now = repository, sealer, now
        self._remembered: dict[bytes, _Remembered] = {}  # by digest; the oldest is first
        self._turns = SingleFlight[None]()
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
        digest = sha256(number).digest()
        if digest in self._remembered:
            known = self._known(digest)
            if known is None:
                async with self._turns.turn(None):  # browsers ask at the same moments
                    known = self._known(digest) or await self._asked_again(digest)
            if known is not None:
                return known
        ended, now = self._ended, self._now()
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
            self._remember(found, now, now)
        return found

    def _known(self, digest: bytes) -> SignedIn | None:
        """What is remembered, if it need not be asked for again."""
        kept, now = self._remembered.get(digest), self._now()
        if kept is None or not kept.until - REMEMBERED <= now < kept.until:  # earlier: the clock was set back
            return None
        self._remembered[digest] = kept._replace(used_at=now)
        return kept.session

    async def _asked_again(self, digest: bytes) -> SignedIn | None:
        """Asks whether this session goes on, and with it about others that were in use lately."""
        if digest not in self._remembered:
            return None
        now = self._now()
        due = [each for each, kept in self._remembered.items() if kept.until <= now < kept.used_at + ASKED_WITH_OTHERS]
        asked, ended = {digest, *due[-MAX_ASKED:]}, self._ended
        going_on = await self._repository.going_on(asked, now)
        for each in asked:
            kept = self._remembered.pop(each, None)
            if kept is not None and each in going_on and ended == self._ended:
                self._remember(kept.session, now, kept.used_at)
        return self._known(digest)

    def _remember(self, found: SignedIn, now: datetime, used_at: datetime) -> None:
        self._remembered.pop(found.digest, None)
        while len(self._remembered) >= MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[found.digest] = _Remembered(found, min(now + REMEMBERED, found.ends_at), used_at)

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
