"""What the head of a request says about where it goes and where it ends: read in one way only, or not at all."""

import re

# Without userinfo, in which a name could stand that is not where the request goes (RFC 9110 §4.2.4). Brackets are for
# a whole address (RFC 3986 §3.2.2).
_ABSOLUTE = re.compile(rb"https?://([^]/?#@[]+|\[[^]/?#@[]+](?::[0-9]*)?)(|[/?#].*)", re.IGNORECASE)

Fields = list[tuple[bytes, bytes]]


def split_absolute(target: bytes) -> tuple[bytes, bytes] | None:
    """Authority, and path with query, of a target in absolute form (RFC 9112 §3.2.2); None if it is none."""
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        return None
    authority, path = absolute.groups()
    return authority, path if path.startswith(b"/") else b"/" + path


def is_chunked(coding: bytes) -> bool:
    """Whether a value of Transfer-Encoding is the one coding that is understood. What the parser takes for another one
    is one: only spaces may follow."""
    return coding.rstrip(b" ").lower() == b"chunked"


def without_offer(method: bytes, target: bytes, version: str, fields: Fields) -> bytes:
    """The head of a request that offers no other protocol; `Upgrade` alone makes the offer (RFC 9110 §7.8)."""
    lines = [b"%b: %b" % field for field in fields if field[0] != b"upgrade"]
    return b"\r\n".join([b"%b %b HTTP/%b" % (method, target, version.encode("ascii")), *lines, b"", b""])
