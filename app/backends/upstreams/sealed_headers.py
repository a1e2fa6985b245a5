"""The values of a backend's headers: sealed where they are stored, open only for requests to the server.

A value opens only for the host that it was given for: whoever may change the URL cannot have it sent elsewhere.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping

from app.auth.outbound_urls import parse_url
from app.auth.sealing import SealBroken, Sealer
from app.domain import BackendSpec


def origin_of(url: str) -> str:
    """Scheme, host and port. Raises UrlRefused: it is no URL."""
    parts = parse_url(url)
    return f"{parts.scheme}://{parts.host}:{parts.port}"


def _place(tenant: str, backend: str, name: str, origin: str) -> str:
    return f"backend {tenant}/{backend} header {name.lower()} for {origin}"


def sealed(sealer: Sealer, tenant: str, backend: str, url: str, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers as they are stored. Raises UrlRefused: it is no URL."""
    origin = origin_of(url)
    return {
        name: base64.b64encode(sealer.seal(value.encode(), _place(tenant, backend, name, origin))).decode()
        for name, value in headers.items()
    }


class HeaderOpener:
    """Opens the headers of backends for requests."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def __call__(self, spec: BackendSpec) -> Iterable[tuple[bytes, bytes]]:
        """Names and values.

        Raises:
            SealBroken: they were given for another host, or sealed with another key.
        """
        origin, name = origin_of(spec.url or ""), spec.name.partition(":")[0]  # of a check, it has a suffix
        return [
            (header.encode(), self._sealer.open(_decoded(value), _place(spec.tenant, name, header, origin)))
            for header, value in spec.headers.items()
        ]


def opened(sealer: Sealer, spec: BackendSpec) -> Callable[[str], str]:
    """Opens one header of a backend by its name.

    Raises (what is returned):
        KeyError: it has no such header.
        SealBroken: it was given for another host, or sealed with another key.
    """

    def one(name: str) -> str:
        value = _decoded(spec.headers[name])
        return sealer.open(value, _place(spec.tenant, spec.name, name, origin_of(spec.url or ""))).decode()

    return one


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        raise SealBroken("it is not Base64") from None
