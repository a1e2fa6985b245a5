"""The cookies of the console."""

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.types import Scope

# Browsers take such a cookie over https only; the first one for this host and all of its paths only.
_OF_HOST, _OF_PATH = b"__Host-", b"__Secure-"


class Reached(NamedTuple):
    """How browsers reach the console. `path`: what a proxy strips; other programs may be at other paths of the host."""

    is_https: bool
    path: str


def path_of(public_url: str | None) -> str:
    return "" if public_url is None else urlsplit(public_url).path


def reached(public_url: str | None, scope: Scope) -> Reached:
    """By PUBLIC_URL, else by the request."""
    if public_url is None:
        return Reached(scope.get("scheme") == "https", "")
    return Reached(public_url.startswith("https:"), path_of(public_url))


class Cookie(NamedTuple):
    """A cookie for this host, out of reach of scripts. `same_site`: Strict, or Lax where people come back from another
    site."""

    name: bytes
    same_site: bytes

    def of(self, headers: Iterable[tuple[bytes, bytes]], where: Reached) -> bytes | None:
        """Its value in a request. Of several none counts: another site of the same domain may have set one."""
        name = self._name(where)
        sent = b";".join(value for key, value in headers if key == b"cookie")
        pairs = [pair.strip().partition(b"=") for pair in sent.split(b";")]
        found = [value for each, _, value in pairs if each == name]
        return found[0] if len(found) == 1 else None

    def header(self, value: bytes, where: Reached) -> tuple[bytes, bytes]:
        """The header of an answer that sets it; an empty value removes it."""
        path = b"Path=" + (where.path or "/").encode()
        words = [self._name(where) + b"=" + value, path, b"HttpOnly", b"SameSite=" + self.same_site]
        words += [] if value else [b"Max-Age=0"]
        words += [b"Secure"] if where.is_https else []
        return b"set-cookie", b"; ".join(words)

    def _name(self, where: Reached) -> bytes:
        if not where.is_https:
            return self.name
        return (_OF_PATH if where.path else _OF_HOST) + self.name


SESSION = Cookie(b"trunkline-console", b"Strict")
SIGNING_IN = Cookie(b"trunkline-sign-in", b"Lax")
