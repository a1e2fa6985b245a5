"""TlsContexts: what connections to upstreams are verified with, and show of the gateway; and errors of TLS in words."""

import os
import ssl
from collections import OrderedDict

import anyio.to_thread

from app.auth.outbound_proxy import client_context
from app.domain.resources.backends import Connect

_Own = tuple[str | None, str | None, str | None]

_KEPT = 64  # contexts of backends with certificates of their own; those of the others share one
# What a server says of the client's certificate, by OpenSSL's names of alerts: it wants one, or another one.
_WANTS_ONE = frozenset({"TLSV13_ALERT_CERTIFICATE_REQUIRED", "TLSV1_ALERT_CERTIFICATE_REQUIRED"})
_REFUSES_IT = frozenset({
    "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_EXPIRED", "SSLV3_ALERT_CERTIFICATE_REVOKED",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE", "TLSV1_ALERT_ACCESS_DENIED",
    "TLSV1_ALERT_DECRYPT_ERROR", "TLSV1_ALERT_UNKNOWN_CA",
})  # fmt: skip
_GIVE_ONE = "An administrator can give the backend `connect.certificate` and `connect.key`."
_GIVE_ANOTHER = "An administrator can give the backend another `connect.certificate`, with its key."
MAYBE_GIVE_ONE = f"A server that wants a certificate of its clients may end connections so. {_GIVE_ONE}"
_GIVE_CA = (
    "If it is of an authority of your own, an administrator can give the backend that authority's certificate as "
    "`connect.ca`."
)
_CA_COUNTS = "With `connect.ca` only the authorities in it count: it must have the one that the certificate is of."


class TlsContexts:
    """`usual`: without certificates of the backend's own; by default it believes the certificate authorities of this
    machine, which are read with the first connection, and those in `ca`."""

    def __init__(self, usual: ssl.SSLContext | None = None, ca: str | None = None) -> None:
        self._usual, self._ca = usual, ca
        self._own = OrderedDict[_Own, ssl.SSLContext]()

    async def of(self, connect: Connect) -> ssl.SSLContext:
        """Reading the certificate authorities of the machine takes 90 ms, too long for the event loop."""
        if connect.ca is None and connect.certificate is None:
            if self._usual is None:
                self._usual = await anyio.to_thread.run_sync(client_context, self._ca)
            return self._usual
        own = (connect.ca, connect.certificate, connect.key)
        found = self._own.get(own)
        if found is None:
            found = self._own[own] = await anyio.to_thread.run_sync(self._context, *own)
            while len(self._own) > _KEPT:
                self._own.popitem(last=False)
        self._own.move_to_end(own)
        return found

    def _context(self, ca: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
        if ca is None:
            context = client_context(self._ca)
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(cadata=ca)
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # what is given is believed without its root
        if certificate is not None and key is not None:
            _show(context, certificate + key)
        return context


def _show(context: ssl.SSLContext, pem: str) -> None:
    """OpenSSL's binding reads it from a file only: this one is in memory, and is gone when it returns."""
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, pem.encode())
        context.load_cert_chain(f"/proc/self/fd/{file}", password="")  # without one it would ask on the terminal
    finally:
        os.close(file)


def is_about_certificate(error: ssl.SSLError) -> bool:
    """Whether the server refuses the connection for the client's certificate, or for want of one."""
    return error.reason in _WANTS_ONE or error.reason in _REFUSES_IT


def words_of(error: ssl.SSLError, host: str, connect: Connect) -> tuple[str, str | None]:
    """What has failed, and what an administrator can do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = _GIVE_CA if connect.ca is None else _CA_COUNTS
        is_of_authority = "issuer" in error.verify_message or "self" in error.verify_message
        return f"the certificate of {host} is not accepted: {error.verify_message}", advice if is_of_authority else None
    if error.reason in _WANTS_ONE or (is_about_certificate(error) and connect.certificate is None):
        return f"{host} wants a certificate of the client", _GIVE_ONE
    if is_about_certificate(error):
        words = error.reason.lower().split("_alert_")[-1].replace("_", " ")
        return f"{host} does not accept the certificate that the gateway shows: {words}", _GIVE_ANOTHER
    is_unknown = error.reason == "SSLV3_ALERT_HANDSHAKE_FAILURE" and connect.certificate is None
    hint = MAYBE_GIVE_ONE if is_unknown else None
    return f"{host} does not speak TLS as it should: {error.reason}", hint
