"""API keys: their form, how they are made, how one is checked.

`tlk_<8 characters of id>_<43 characters of secret><6 characters of checksum>`, all base62. The prefix lets
secret scanners find leaked keys; the checksum refuses typing errors and guesses without asking the
database. Stored is an HMAC under a pepper that is not in the database: the secret has 256 random bits, so
a slow hash would protect nothing and cost every caller.
"""

import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Protocol
from zlib import crc32

from app.domain import KEY_ISSUER, Principal

PREFIX = "tlk_"
ISSUER = KEY_ISSUER
PEPPER_VERSION = 1

_ALPHABET = digits + ascii_uppercase + ascii_lowercase
_ID_LENGTH, _SECRET_LENGTH, _CHECKSUM_LENGTH = 8, 43, 6  # 62 ** 43 > 2 ** 256
_form = re.compile(
    rf"tlk_(?P<id>[0-9A-Za-z]{{{_ID_LENGTH}}})_[0-9A-Za-z]{{{_SECRET_LENGTH}}}(?P<checksum>[0-9A-Za-z]{{6}})"
).fullmatch
_NO_DIGEST = bytes(32)


class KeyRecord(Protocol):
    """What the store remembers of a key."""

    @property
    def tenant(self) -> str: ...
    @property
    def digest(self) -> bytes: ...
    @property
    def pepper_version(self) -> int: ...
    @property
    def scopes(self) -> frozenset[str]: ...
    @property
    def expires_at(self) -> datetime | None: ...
    @property
    def revoked_at(self) -> datetime | None: ...


class ApiKeyStore(Protocol):
    """Where keys are kept."""

    async def find(self, key_id: str) -> KeyRecord | None:
        """The key of this id, whatever its state."""

    async def touch(self, used: Mapping[tuple[str, str], datetime]) -> None:
        """Notes when keys, by (tenant, id), were used last."""


class KeyRefused(Exception):
    """The key opens nothing. `reason` is for metrics, `facts` for the log; the caller is told neither.

    The facts have the key's id, which is no secret, and only if it has the form of one.
    """

    def __init__(self, reason: str, expected: str, actual: object = None, *, key_id: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts: dict[str, object] = {"failure": reason, "rule": "key", "expected": expected, "actual": actual}
        if key_id is not None:
            self.facts["key_id"] = key_id


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made; `text` is shown once and kept nowhere."""

    id: str
    text: str
    digest: bytes
    pepper_version: int

    def __repr__(self) -> str:
        return f"<NewKey {self.id}>"


class KeyMaker:
    """Makes keys and the digests that are stored of them, under a pepper derived from the node's secret key."""

    def __init__(self, secret_key: bytes) -> None:
        label = b"trunkline api key pepper %d" % PEPPER_VERSION
        self._pepper = hmac.digest(secret_key, label, "sha256")

    def make(self) -> NewKey:
        """A new random key."""
        key_id = _random(_ID_LENGTH)
        body = f"{PREFIX}{key_id}_{_random(_SECRET_LENGTH)}"
        text = body + _checksum(body)
        return NewKey(key_id, text, self.digest(text), PEPPER_VERSION)

    def digest(self, text: str) -> bytes:
        """What is stored of the key. Covers its id too, so that digests cannot be exchanged between rows."""
        return hmac.digest(self._pepper, text.encode(), "sha256")


def key_id(text: str) -> str | None:
    """The id in a well-formed key; None if it is none, or mistyped."""
    match = _form(text)
    if match is None or match["checksum"] != _checksum(text[:-_CHECKSUM_LENGTH]):
        return None
    return match["id"]


class ApiKeys:
    """Checks keys against the store, and remembers their use until it is flushed."""

    def __init__(self, store: ApiKeyStore, maker: KeyMaker, now: Callable[[], datetime] = lambda: datetime.now(UTC)):
        self._store, self._maker, self._now = store, maker, now
        self._used: dict[tuple[str, str], datetime] = {}

    def __repr__(self) -> str:
        return f"<ApiKeys [{len(self._used)} uses not flushed]>"

    async def verify(self, text: str) -> Principal:
        """The key's holder.

        Raises:
            KeyRefused: malformed, unknown, wrong_secret, revoked or expired.
            StorageUnavailable: the store does not answer.
        """
        identifier = key_id(text)
        if identifier is None:
            raise KeyRefused("malformed", f"{PREFIX}, an id, a secret and their checksum", f"{len(text)} characters")
        record = await self._store.find(identifier)
        # The same work whether or not there is such an id.
        right = hmac.compare_digest(self._maker.digest(text), record.digest if record else _NO_DIGEST)
        if record is None or record.pepper_version != PEPPER_VERSION:
            raise KeyRefused("unknown", "a key of this gateway and its SECRET_KEY", key_id=identifier)
        if not right:
            raise KeyRefused("wrong_secret", "the secret that belongs to this id", key_id=identifier)
        now = self._now()
        _require_good(identifier, record, now)
        self._used[record.tenant, identifier] = now
        expires_at = None if record.expires_at is None else record.expires_at.timestamp()
        return Principal(record.tenant, ISSUER, identifier, record.scopes, expires_at)

    async def confirm(self, principal: Principal) -> None:
        """Whether the key of a principal that was let in elsewhere is still good.

        Raises:
            KeyRefused: unknown, revoked or expired.
            StorageUnavailable: the store does not answer.
        """
        record = await self._store.find(principal.subject)
        if record is None or record.tenant != principal.tenant:
            raise KeyRefused("unknown", f"a key of the tenant {principal.tenant}", key_id=principal.subject)
        _require_good(principal.subject, record, self._now())

    async def flush_last_used(self) -> None:
        """Writes down which keys were used. Once a minute is enough; uses survive a store that is away.

        Raises:
            StorageUnavailable: the store does not answer.
        """
        used, self._used = self._used, {}
        try:
            await self._store.touch(used)
        except BaseException:
            self._used = {**used, **self._used}
            raise


def _require_good(identifier: str, record: KeyRecord, now: datetime) -> None:
    if record.revoked_at is not None:
        revoked_at = record.revoked_at.isoformat(timespec="seconds")
        raise KeyRefused("revoked", "a key that is not revoked", f"revoked at {revoked_at}", key_id=identifier)
    if record.expires_at is not None and record.expires_at <= now:
        expired_at = record.expires_at.isoformat(timespec="seconds")
        raise KeyRefused("expired", "a key that has not expired", f"expired at {expired_at}", key_id=identifier)


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _checksum(body: str) -> str:
    number, text = crc32(body.encode()), ""
    for _ in range(_CHECKSUM_LENGTH):
        number, remainder = divmod(number, len(_ALPHABET))
        text = _ALPHABET[remainder] + text
    return text
