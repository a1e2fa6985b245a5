"""Which URLs may be reached without giving access to the network that the gateway is in. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from app.text.public_addresses import Address, Network, is_public, split_authority

MAX_URL = 2048
PORTS = frozenset({443, 8443})  # of public hosts; in listed networks every port is allowed

ALLOW_SETTING = "TRUNKLINE_OUTBOUND_ALLOW"


class FetchFailed(Exception):
    """The document could not be fetched. `setting` is the setting of this gateway that could change that, if any."""

    def __init__(self, message: str, *, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class FetchRefused(FetchFailed):
    """The host answers that it will not: with HTTP 400 or 401, and this body."""

    def __init__(self, message: str, body: bytes) -> None:
        super().__init__(message)
        self.body = body


class UrlRefused(FetchFailed):
    """The URL may not be fetched."""


@dataclass(frozen=True, slots=True)
class OutboundUrl:
    """A URL in parts that every parser reads in the same way."""

    scheme: str
    host: str  # without brackets
    port: int
    authority: str
    target: str  # path and query

    @property
    def literal(self) -> Address | None:
        """The address, if the host is one."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None


class Policy:
    """Which URLs may be reached: public addresses by https; in the networks `allow` all addresses, and http too.

    `setting` is the one that lists those networks.
    """

    def __init__(self, allow: Iterable[Network] = (), setting: str = ALLOW_SETTING) -> None:
        self.allow, self._setting = tuple(allow), setting

    def check(self, text: str) -> OutboundUrl:
        """The URL's parts, if it may be reached; names are not resolved here.

        Raises:
            UrlRefused: it may not.
        """
        url = parse_url(text)
        if url.scheme != "https" and not self.allow:
            raise self._not_listed("http is")
        if url.literal is not None:
            self.require(url.literal, url)
        return url

    def check_by_proxy(self, text: str, *, is_granted: bool) -> OutboundUrl:
        """As `check`, where a proxy resolves the name. Raises UrlRefused: it may not be reached."""
        url = parse_url(text)
        self.require_by_proxy(url, is_granted=is_granted)
        return url

    def require_by_proxy(self, url: OutboundUrl, *, is_granted: bool) -> None:
        """Nobody here knows the address of a name that a proxy resolves: then the rule is that for public ones, unless
        `is_granted`: the platform has chosen proxy and URL. Raises UrlRefused."""
        if url.literal is not None:
            self.require(url.literal, url)
        elif f".{url.host}".endswith(".localhost"):
            raise UrlRefused("behind a proxy this name means the proxy's own machine")
        elif not is_granted and (url.scheme != "https" or url.port not in PORTS or "." not in url.host):
            ports = " and ".join(map(str, sorted(PORTS)))
            words = f"a name that a proxy resolves has a domain, and is reached by https on the ports {ports}"
            raise UrlRefused(f"{words}, unless a platform administrator has given the backend its `connect.proxy`")

    def require(self, address: Address, url: OutboundUrl) -> None:
        """Raises UrlRefused unless the URL may be reached at this address."""
        if any(address in network for network in self.allow):
            return
        if url.scheme != "https":
            raise self._not_listed("http is")
        if not is_public(address):
            raise self._not_listed(f"{url.host} is at an address that is not public, which is")
        if url.port not in PORTS:
            raise self._not_listed(f"ports other than {sorted(PORTS)} are")

    def _not_listed(self, what: str) -> UrlRefused:
        words = f"{what} allowed only in a network that is listed in {self._setting}"
        return UrlRefused(words, setting=self._setting)


def parse_url(text: str) -> OutboundUrl:
    """The URL's parts.

    Raises:
        UrlRefused: it is not a URL, or two parsers could read it differently.
    """
    if len(text) > MAX_URL or not text.isascii() or any(c <= " " or c in '\\#<>"`{|}^\x7f' for c in text):
        raise UrlRefused(f"a URL must be printable ASCII without a fragment, {MAX_URL} characters at most")
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise UrlRefused(str(error)) from None
    if parts.scheme not in ("https", "http"):
        raise UrlRefused("a URL must begin with https://")
    try:
        host, port = split_authority(parts.netloc)
    except ValueError as error:
        raise UrlRefused(str(error)) from None
    port = port or {"https": 443, "http": 80}[parts.scheme]
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return OutboundUrl(parts.scheme, str(host), port, parts.netloc.lower(), target)
