"""NodeProxy: the HTTP proxy through which the node reaches what is outside; and which authorities it believes there."""

import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import quote, unquote, urlsplit

import httpx2
from httpcore2 import default_ssl_context

from app.auth.outbound_urls import OutboundUrl
from app.text.public_addresses import Address, Network


@dataclass(frozen=True, slots=True)
class NodeProxy:
    """`login`: NAME:PASSWORD. `direct`: names, with those below them, and networks that are reached without it."""

    url: str
    login: str | None = field(default=None, repr=False)
    direct: tuple[str | Network, ...] = ()

    @classmethod
    def of(cls, text: str | None, direct: Iterable[str | Network] = ()) -> Self | None:
        """That of a URL which may have credentials."""
        if text is None:
            return None
        parts = urlsplit(text)
        login = None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return cls(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", login, tuple(direct))

    def serves(self, url: OutboundUrl) -> bool:
        """Whether it is asked for this. http is only for listed addresses, which are near."""
        return url.scheme == "https" and not self.is_direct(url.literal or url.host)

    def is_direct(self, host: Address | str) -> bool:
        """Whether this host is reached without it."""
        return any(_is_in(host, each) for each in self.direct)

    def transport(self, tls: ssl.SSLContext) -> httpx2.AsyncHTTPTransport:
        """For httpx2."""
        name, _, password = (self.login or "").partition(":")
        own = tls if self.url.startswith("https:") else None
        proxy = httpx2.Proxy(self.url, auth=None if self.login is None else (name, password), ssl_context=own)
        return httpx2.AsyncHTTPTransport(verify=tls, trust_env=False, proxy=proxy)

    def environment(self) -> dict[str, str]:
        """For a program that is to ask it itself: with the login."""
        parts, login = urlsplit(self.url), self.login or ""
        user, _, password = login.partition(":")
        signed = f"{quote(user, safe='')}:{quote(password, safe='')}@" if login else ""
        direct = ",".join(str(each) for each in self.direct)
        found = {"HTTPS_PROXY": f"{parts.scheme}://{signed}{parts.netloc}", "NO_PROXY": direct}
        return {**found, **{name.lower(): value for name, value in found.items()}, "npm_config_noproxy": direct}


def client_context(ca: str | None = None) -> ssl.SSLContext:
    """A new one, which believes the certificate authorities of this machine, and those in `ca`. It takes 90 ms."""
    context = default_ssl_context()
    if ca is not None:
        context.load_verify_locations(cadata=ca)
    return context


def _is_in(host: Address | str, place: str | Network) -> bool:
    if isinstance(place, str):
        return isinstance(host, str) and (host == place or host.endswith(f".{place}"))
    return not isinstance(host, str) and host in place
