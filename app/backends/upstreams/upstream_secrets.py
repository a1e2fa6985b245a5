"""The secrets of a backend that is reached by URL, which are values of `headers` and members of `connect`: sealed where
they are stored, open only for requests to the server.

A value opens only for what it was given for: whoever may change the URL, or whom its certificate is believed of, cannot
have it sent elsewhere.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from app.auth.outbound_urls import parse_url
from app.auth.sealing import SealBroken, Sealer
from app.domain import BackendSpec
from app.domain.resources.backends import SECRETS_OF_CONNECT


def origin_of(url: str) -> str:
    """Scheme, host and port. Raises UrlRefused: it is no URL."""
    parts = parse_url(url)
    return f"{parts.scheme}://{parts.host}:{parts.port}"


def destination_of(spec: BackendSpec) -> str:
    """What secrets are given for: where they go, and who could read them there. Raises UrlRefused: its URL is none."""
    words = origin_of(spec.url or "")
    if spec.connect.proxy is not None:
        words += f" through {origin_of(spec.connect.proxy)}"
    if spec.connect.ca is not None:
        words += f" by {hashlib.sha256(spec.connect.ca.encode()).hexdigest()}"
    return words


def secrets_of(spec: BackendSpec) -> dict[str, str]:
    """All secrets as they are stored, by their name in a request: `headers.Authorization`, `connect.key`."""
    members = ((name, getattr(spec.connect, name)) for name in SECRETS_OF_CONNECT)
    return {f"headers.{name}": value for name, value in spec.headers.items()} | {
        f"connect.{name}": value for name, value in members if value is not None
    }


def sealed(sealer: Sealer, spec: BackendSpec, kept: Mapping[str, str] | None = None) -> BackendSpec:
    """The backend as it is stored: with each secret sealed, but for those in `kept`, by name, which are so already.
    Raises UrlRefused: its URL is none."""
    known = kept or {}

    def one(name: str, value: str) -> str:
        place = _place(spec, name)
        return known[name] if name in known else base64.b64encode(sealer.seal(value.encode(), place)).decode()

    return with_secrets(spec, {name: one(name, value) for name, value in secrets_of(spec).items()})


def with_secrets(spec: BackendSpec, secrets: Mapping[str, str]) -> BackendSpec:
    """The backend with other values of the secrets that it has, by name."""
    headers = {name: secrets[f"headers.{name}"] for name in spec.headers}
    members: Any = {name: secrets[f"connect.{name}"] for name in SECRETS_OF_CONNECT if f"connect.{name}" in secrets}
    return replace(spec, headers=headers, connect=replace(spec.connect, **members) if members else spec.connect)


def opened(sealer: Sealer, spec: BackendSpec) -> Callable[[str], str]:
    """Opens one secret of a backend by its name.

    Raises (what is returned):
        KeyError: it has no such secret.
        SealBroken: it was given for another destination, or sealed with another key.
    """
    stored = secrets_of(spec)
    return lambda name: sealer.open(_decoded(stored[name]), _place(spec, name)).decode()


class SecretOpener:
    """Opens the secrets of backends for requests: what it returns is kept no longer than those."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def __call__(self, spec: BackendSpec) -> BackendSpec:
        """The backend with its secrets as they were given.

        Raises:
            SealBroken: they were given for another destination, or sealed with another key.
        """
        open_one = opened(self._sealer, spec)
        return with_secrets(spec, {name: open_one(name) for name in secrets_of(spec)})


def _place(spec: BackendSpec, name: str) -> str:
    kind, _, member = name.partition(".")
    what = f"header {member.lower()}" if kind == "headers" else name
    backend = spec.name.partition(":")[0]  # of a check, it has a suffix
    return f"backend {spec.tenant}/{backend} {what} for {destination_of(spec)}"


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        raise SealBroken("it is not Base64") from None
