"""Sealer: encrypts stored secrets with the node's secret key, bound to the place where each is stored."""

import hmac
import secrets

from app.text.memo import memo

_VERSION = b"\x02"  # first byte of a sealed secret; another format gets another one
_NONCE_BYTES = 12
_LABEL = b"trunkline sealed secrets 2"
_KEPT = 1024  # parts whose keys are kept: two for each node of a large cluster are in constant use


class SealBroken(ValueError):
    """A sealed secret cannot be opened: it was changed or moved, or the secret key has changed."""


class SealedPart:
    """AES-256-GCM under one key. Nonces are random: good for 2 ** 32 secrets."""

    __slots__ = ("_cipher",)

    def __init__(self, key: bytes) -> None:
        # Here, because many nodes seal nothing: 6 ms and 8 MB.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        self._cipher = AESGCM(key)

    def seal(self, secret: bytes, place: str) -> bytes:
        """The sealed secret. It opens only with the same `place`."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, secret, place.encode())

    def open(self, sealed: bytes, place: str) -> bytes:
        """The secret that was sealed for this place.

        Raises:
            SealBroken: it was not sealed with this key, for this place, or in this format.
        """
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - as above

        version, nonce, ciphertext = sealed[:1], sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        if version != _VERSION:
            raise SealBroken("unknown format")
        try:
            return self._cipher.decrypt(nonce, ciphertext, place.encode())
        except (InvalidTag, ValueError):
            raise SealBroken("it does not open with this key, in this place") from None


class Sealer:
    """Each place, such as a row or a route, has its own key, derived from the secret key: so no key comes near 2 ** 32
    secrets, however many nodes there are and however long they run."""

    def __init__(self, secret_key: bytes) -> None:
        self._key = hmac.digest(secret_key, _LABEL, "sha256")
        self._part = memo(_KEPT)(self.within)

    def within(self, part: str) -> SealedPart:
        """One key for many places: for secrets that are sealed too often to derive a key for each."""
        return SealedPart(hmac.digest(self._key, part.encode(), "sha256"))

    def seal(self, secret: bytes, place: str) -> bytes:
        """The sealed secret. It opens only with the same `place`, which says what it is and where it is stored."""
        return self._part(place).seal(secret, place)

    def open(self, sealed: bytes, place: str) -> bytes:
        """The secret that was sealed for this place.

        Raises:
            SealBroken: as `SealedPart.open`.
        """
        return self._part(place).open(sealed, place)
