"""The cookies of the console."""

from collections.abc import Iterable
from typing import NamedTuple

_SECURE = b"__Host-"  # browsers take such a cookie over https only, and for this host only


class Cookie(NamedTuple):
    """A cookie for this host, out of reach of scripts. `same_site`: Strict, or Lax where people come back from another
    site."""

    name: bytes
    same_site: bytes

    def of(self, headers: Iterable[tuple[bytes, bytes]], *, is_https: bool) -> bytes | None:
        """Its value in a request. Of several none counts: another site of the same domain may have set one."""
        name = self._name(is_https=is_https)
        sent = b";".join(value for key, value in headers if key == b"cookie")
        pairs = [pair.strip().partition(b"=") for pair in sent.split(b";")]
        found = [value for each, _, value in pairs if each == name]
        return found[0] if len(found) == 1 else None

    def header(self, value: bytes, *, is_https: bool) -> tuple[bytes, bytes]:
        """The header of an answer that sets it; an empty value removes it."""
        words = [self._name(is_https=is_https) + b"=" + value, b"Path=/", b"HttpOnly", b"SameSite=" + self.same_site]
        words += [] if value else [b"Max-Age=0"]
        words += [b"Secure"] if is_https else []
        return b"set-cookie", b"; ".join(words)

    def _name(self, *, is_https: bool) -> bytes:
        return _SECURE + self.name if is_https else self.name


SESSION = Cookie(b"trunkline-console", b"Strict")
SIGNING_IN = Cookie(b"trunkline-sign-in", b"Lax")
