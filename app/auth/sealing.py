"""Sealer: secrets that are stored are unreadable without the node's secret key, and only where they belong."""

import hmac
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_VERSION = b"\x01"  # first byte of what is stored; another way of sealing gets another one
_NONCE_BYTES = 12
_LABEL = b"trunkline sealed secrets 1"


class SealBroken(ValueError):
    """What was sealed cannot be opened: it was changed or moved, or the secret key is another one now."""


class Sealer:
    """AES-256-GCM under a key derived from the secret key. Nonces are random: good for 2 ** 32 secrets."""

    def __init__(self, secret_key: bytes) -> None:
        self._key = hmac.digest(secret_key, _LABEL, "sha256")
        self._cipher = AESGCM(self._key)

    def within(self, part: str) -> "Sealer":
        """A sealer with a key of its own: for what is sealed so often that the nonces of one key would not do."""
        return Sealer(hmac.digest(self._key, part.encode(), "sha256"))

    def seal(self, secret: bytes, place: str) -> bytes:
        """The secret for the database. `place` says which row it belongs to; elsewhere it does not open."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, secret, place.encode())

    def open(self, sealed: bytes, place: str) -> bytes:
        """The secret that was sealed for this place.

        Raises:
            SealBroken: it was not sealed with this key, for this place, or not in this form.
        """
        version, nonce, ciphertext = sealed[:1], sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        if version != _VERSION:
            raise SealBroken("unknown form")
        try:
            return self._cipher.decrypt(nonce, ciphertext, place.encode())
        except (InvalidTag, ValueError):
            raise SealBroken("it does not open with this key, in this place") from None
