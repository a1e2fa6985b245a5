"""Certificates and keys in PEM form, as people give them: with remarks, several in one text, the wrong file.

The library that reads them takes 20 ms and 9 MB, and most nodes have none: functions import it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

SOON = timedelta(days=14)  # before a certificate expires
MOST = 64  # certificates in one text
_MAX_NAME = 200
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,40})-----\s.{1,65536}?-----END \1-----", re.DOTALL)
_DECRYPT = "decrypt it (`openssl pkey -in FILE -out FILE`)"


class PemRefused(ValueError):
    """The text cannot be used, in words that go behind its name. They contain nothing of it."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is shown of one."""

    subject: str
    expires_at: datetime
    sha256: str

    def note(self, name: str, now: datetime) -> str | None:
        """That it has expired or soon will, in words; `name` says which one it is."""
        if self.expires_at - now > SOON:
            return None
        days = (self.expires_at - now) / timedelta(days=1)
        when = f"expires at {self.expires_at:%Y-%m-%d %H:%M} UTC, in {days:.1f} days"
        if days <= 0:
            when = f"has expired at {self.expires_at:%Y-%m-%d %H:%M} UTC"
        return f"{name}: the certificate of {self.subject} {when}; renew it"


def only_certificates(text: str) -> str:
    """The certificates of the text, without remarks between them.

    Raises:
        PemRefused: it has none, or something that is no certificate.
    """
    found = list(_blocks(text))
    if any(kind.endswith("PRIVATE KEY") for kind, _ in found):
        raise PemRefused("has a private key in it, and certificates are shown to readers: leave the key out")
    blocks = [block for kind, block in found if kind in ("CERTIFICATE", "X509 CERTIFICATE")]
    if not blocks:
        raise PemRefused("has no certificate in PEM form, which begins with -----BEGIN CERTIFICATE-----")
    if len(blocks) > MOST:
        raise PemRefused(f"has {len(blocks)} certificates; at most {MOST} are taken")
    plain = "\n".join(blocks) + "\n"
    certificates_in(plain)
    return plain


def only_key(text: str) -> str:
    """The private key of the text, alone.

    Raises:
        PemRefused: it has none that can be used, or several.
    """
    found = [(kind, block) for kind, block in _blocks(text) if kind.endswith("PRIVATE KEY")]
    if len(found) != 1:
        what = "several private keys" if found else "no private key in PEM form, with -----BEGIN PRIVATE KEY-----"
        raise PemRefused(f"has {what}")
    ((kind, block),) = found
    if kind == "ENCRYPTED PRIVATE KEY" or "\nProc-Type: 4,ENCRYPTED" in block:
        raise PemRefused(f"is encrypted, and nobody is there to give its password: {_DECRYPT}")
    _public_form(block)
    return block + "\n"


def certificates_in(text: str) -> Sequence[Certificate]:
    """Those of a text that `only_certificates` has returned, or of none. Raises PemRefused: one is broken."""
    if not text:
        return ()
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - see above

    return tuple(
        Certificate(
            _shown(each.subject.rfc4514_string()), each.not_valid_after_utc, each.fingerprint(SHA256()).hex()
        )
        for each in _parsed(text)
    )  # fmt: skip


def require_key_of(certificates: str, key: str) -> None:
    """Raises PemRefused: it is not the key of the first of these certificates."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # noqa: PLC0415 - see above

    of_key = _public_form(key)
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    own = [each.public_key().public_bytes(*form) == of_key for each in _parsed(certificates)]
    if own[0]:
        return
    if True in own:
        raise PemRefused(
            f"is the key of certificate {own.index(True) + 1} of {len(own)}: the one with the key stands first, and "
            "behind it those between it and its authority"
        )
    raise PemRefused("is not the key of the certificate; the two are renewed together")


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    for found in _BLOCK.finditer(text.replace("\r\n", "\n")):
        yield found[1], "\n".join(line.strip() for line in found[0].splitlines())


def _parsed(text: str) -> "list[x509.Certificate]":
    from cryptography import x509  # noqa: PLC0415 - see above
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - see above

    try:
        found = x509.load_pem_x509_certificates(text.encode())
        for each in found:
            each.public_key()
            each.subject.rfc4514_string()
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise PemRefused(f"has a certificate that cannot be read: {type(error).__name__}") from None
    return found


def _public_form(key: str) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - see above
        Encoding,
        PublicFormat,
        load_pem_private_key,
    )

    try:
        public = load_pem_private_key(key.encode(), password=None).public_key()
    except TypeError:
        raise PemRefused(f"is encrypted, and nobody is there to give its password: {_DECRYPT}") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PemRefused(f"has a private key that is not known here: {type(error).__name__}") from None
    return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _shown(name: str) -> str:
    """A name of a certificate, which anybody may have written."""
    text = "".join(each if each.isprintable() else "?" for each in name)
    return text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}…"
