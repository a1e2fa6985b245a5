"""The certificate of TLS_CERT and TLS_KEY: read, checked, and made into what connections are served with.

The library that reads it takes 20 ms and 9 MB, and most nodes are behind a proxy with TLS: functions import it.
"""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from app.settings.environment import wrong

if TYPE_CHECKING:
    from cryptography import x509

MOST_BYTES = 1 << 20  # a chain has some 10 KB

Stamp = tuple[tuple[int, int, int], ...]  # of each file: when it was changed, its size, its number


class _Context(ssl.SSLContext):
    """Not of ssl.create_default_context, which would write the keys of all connections to the file of SSLKEYLOGFILE."""

    def limit(self) -> None:
        """To what the gateway speaks."""
        self.minimum_version = ssl.TLSVersion.TLSv1_2
        self.options |= ssl.OP_NO_RENEGOTIATION  # a client could have the gateway sign again and again
        self.set_alpn_protocols(["http/1.1"])


@dataclass(frozen=True, slots=True)
class Certificate:
    """`stamp`: what the files looked like when it was read."""

    context: ssl.SSLContext
    expires_at: float  # Unix time
    fingerprint: str
    stamp: Stamp


def stamp_of(cert: Path, key: Path) -> Stamp:
    """What the files look like now; empty while one of them cannot be found."""
    try:
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in (cert.stat(), key.stat()))
    except OSError:
        return ()


def load(cert: Path, key: Path) -> Certificate:
    """Reads both files; takes some milliseconds.

    Raises:
        SettingsError: they cannot be used; says why, and what to do.
    """
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - see above

    before = stamp_of(cert, key)
    found = _first_of(cert)
    _check_key(key, found, cert)
    _check_dates(found, cert)
    context = _context(cert, key)
    if stamp_of(cert, key) != before:  # the context has read them once more
        raise wrong("tls_cert", f"{str(cert)!r} or its key was changed while it was read; try again")
    return Certificate(context, found.not_valid_after_utc.timestamp(), found.fingerprint(SHA256()).hex(), before)


def _read(name: str, path: Path) -> bytes:
    try:
        if not (path.is_file() or path.is_dir()) and path.exists():  # a pipe would be waited for, without an end
            raise wrong(name, f"{str(path)!r} is not a file: a certificate is read more than once")
        with path.open("rb") as file:
            return file.read(MOST_BYTES)
    except OSError as error:
        raise wrong(name, f"cannot read {str(path)!r}: {error.strerror}") from None


def _first_of(path: Path) -> "x509.Certificate":
    from cryptography import x509  # noqa: PLC0415 - see above

    text = _read("tls_cert", path)
    try:
        return x509.load_pem_x509_certificates(text)[0]
    except (ValueError, x509.InvalidVersion):
        raise wrong(
            "tls_cert",
            f"{str(path)!r} has no certificates in PEM form; needed are that of the gateway, and behind it those "
            "between it and its authority",
        ) from None


def _check_key(path: Path, certificate: "x509.Certificate", cert: Path) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - see above
        Encoding,
        PublicFormat,
        load_pem_private_key,
    )

    text = _read("tls_key", path)
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    try:
        key = load_pem_private_key(text, password=None)
        is_its_key = key.public_key().public_bytes(*form) == certificate.public_key().public_bytes(*form)
    except TypeError:
        raise wrong("tls_key", f"{str(path)!r} is encrypted; decrypt it (`openssl pkey -in FILE -out FILE`)") from None
    except (ValueError, UnsupportedAlgorithm):
        raise wrong("tls_key", f"{str(path)!r} has no private key in PEM form that is known here") from None
    if not is_its_key:
        raise wrong(
            "tls_key",
            f"{str(path)!r} is not the key of the first certificate in {str(cert)!r}; the two are renewed together",
        )


def _check_dates(certificate: "x509.Certificate", path: Path) -> None:
    now, begins, ends = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if ends <= now:
        raise wrong("tls_cert", f"{str(path)!r} has expired at {ends:%Y-%m-%d %H:%M} UTC; renew it")
    if begins > now:
        raise wrong("tls_cert", f"{str(path)!r} is not valid before {begins:%Y-%m-%d %H:%M} UTC; is the clock right?")


def _context(cert: Path, key: Path) -> _Context:
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.limit()
    try:
        context.load_cert_chain(cert, key, password="")  # without one it would ask on the terminal
    except (ssl.SSLError, OSError) as error:
        problem = getattr(error, "reason", None) or error.strerror
        raise wrong("tls_cert", f"OpenSSL does not accept {str(cert)!r} with its key: {problem}") from None
    return context
