"""API keys: their form, how they are made and verified.

`tlk_<8 characters of id>_<43 characters of secret><6 characters of checksum>`, all base62. Secret scanners find leaked
keys by the prefix; the checksum refuses typing errors and guesses without a look-up. The database has an HMAC of the
key, under a pepper that is not in the database: the secret has 256 random bits, so a slow hash would protect nothing
and cost every caller.
"""

import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Protocol
from zlib import crc32

from app.auth._refusal import CredentialRefused, Finding
from app.domain import KEY_ISSUER, ApiKey, Principal

PREFIX = "tlk_"
PEPPER_VERSION = 1

_ALPHABET = digits + ascii_uppercase + ascii_lowercase
_ID_LENGTH, _SECRET_LENGTH, _CHECKSUM_LENGTH = 8, 43, 6  # 62 ** 43 > 2 ** 256
_form = re.compile(
    rf"tlk_(?P<id>[0-9A-Za-z]{{{_ID_LENGTH}}})_[0-9A-Za-z]{{{_SECRET_LENGTH}}}(?P<checksum>[0-9A-Za-z]{{6}})"
).fullmatch
_NO_DIGEST = bytes(32)


class ApiKeyStore(Protocol):
    """Where keys are kept."""

    async def find(self, key_id: str) -> ApiKey | None:
        """The key with this id, also if it is revoked or expired."""

    async def touch(self, used: Mapping[tuple[str, str], datetime]) -> None:
        """Stores when keys, by (tenant, id), were used last."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key; `text` is shown once and not stored."""

    id: str
    text: str = field(repr=False)
    digest: bytes = field(repr=False)
    pepper_version: int


class KeyMaker:
    """Makes keys, and digests of keys with a pepper derived from the node's secret key."""

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
        """The digest to store. It covers the id, so that digests cannot be exchanged between rows."""
        return hmac.digest(self._pepper, text.encode(), "sha256")


def key_id(text: str) -> str | None:
    """The id of a well-formed key; None if its form or checksum is wrong."""
    match = _form(text)
    if match is None or match["checksum"] != _checksum(text[:-_CHECKSUM_LENGTH]):
        return None
    return match["id"]


class ApiKeys:
    """Verifies keys by the store, and remembers their use until it is flushed."""

    def __init__(self, store: ApiKeyStore, maker: KeyMaker, now: Callable[[], datetime] = lambda: datetime.now(UTC)):
        self._store, self._maker, self._now = store, maker, now
        self._used: dict[tuple[str, str], datetime] = {}

    async def verify(self, text: str) -> Principal:
        """The principal of a key.

        Raises:
            CredentialRefused: malformed, unknown, wrong_secret, revoked or expired.
            StorageUnavailable: the store does not answer.
        """
        identifier = key_id(text)
        if identifier is None:
            expected = f"{PREFIX}, an id, a secret and their checksum"
            raise CredentialRefused(Finding("key", expected, f"{len(text)} characters", "malformed"))
        record = await self._store.find(identifier)
        # The same work whether or not there is such an id.
        right = hmac.compare_digest(self._maker.digest(text), record.digest if record else _NO_DIGEST)
        if record is None or record.pepper_version != PEPPER_VERSION:
            raise _refused("unknown", "a key of this gateway and its SECRET_KEY", identifier)
        if not right:
            raise _refused("wrong_secret", "the secret that belongs to this id", identifier)
        now = self._now()
        _require_good(identifier, record, now)
        self._used[record.tenant, identifier] = now
        expires_at = None if record.expires_at is None else record.expires_at.timestamp()
        return Principal(record.tenant, KEY_ISSUER, identifier, record.scopes, expires_at)

    async def confirm(self, principal: Principal) -> None:
        """Checks that the key of a principal that another node has let in is still valid.

        Raises:
            CredentialRefused: unknown, revoked or expired.
            StorageUnavailable: the store does not answer.
        """
        record = await self._store.find(principal.subject)
        if record is None or record.tenant != principal.tenant:
            raise _refused("unknown", f"a key of the tenant {principal.tenant}", principal.subject)
        _require_good(principal.subject, record, self._now())

    async def flush_last_used(self) -> None:
        """Stores when keys were used last. If that fails, the next call does it.

        Raises:
            StorageUnavailable: the store does not answer.
        """
        used, self._used = self._used, {}
        try:
            await self._store.touch(used)
        except BaseException:
            self._used = {**used, **self._used}
            raise


def _require_good(identifier: str, record: ApiKey, now: datetime) -> None:
    if record.revoked_at is not None:
        revoked = f"revoked at {record.revoked_at.isoformat(timespec='seconds')}"
        raise _refused("revoked", "a key that is not revoked", identifier, revoked)
    if record.expires_at is not None and record.expires_at <= now:
        expired = f"expired at {record.expires_at.isoformat(timespec='seconds')}"
        raise _refused("expired", "a key that has not expired", identifier, expired)


def _refused(reason: str, expected: str, identifier: str, actual: str | None = None) -> CredentialRefused:
    """With the key's id in the facts, which is no secret; a malformed key has none that could be named."""
    return CredentialRefused(Finding("key", expected, actual, reason), {"key_id": identifier})


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _checksum(body: str) -> str:
    number, text = crc32(body.encode()), ""
    for _ in range(_CHECKSUM_LENGTH):
        number, remainder = divmod(number, len(_ALPHABET))
        text = _ALPHABET[remainder] + text
    return text
