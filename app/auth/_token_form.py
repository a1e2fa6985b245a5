"""The form of a token, and the claims in it: how they are found, read as lists, and shown.

What is shown of a token is cut to a length. It is for the log and for administrators only.
"""

import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.auth._refusal import CredentialRefused, Finding

MAX_TOKEN_BYTES = 16384  # with 200 groups Entra ID makes 12 KiB
MAX_SCOPES = 100
MAX_NAMES = 1000  # of groups; a token has room for as many of the shortest that make sense
MAX_SHOWN, MAX_SHOWN_ITEMS, MAX_SHOWN_TOGETHER = 200, 20, 600  # what is shown is remembered with a refused token

# Why a token was refused: label values of `auth_failures`. The caller is not told which it was.
REASONS = (
    "malformed", "header", "unknown_issuer", "algorithm", "unknown_key", "keys_unavailable", "signature", "expired",
    "not_yet_valid", "audience", "tenant", "claims", "reserved",
)  # fmt: skip

_form = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+").fullmatch


@dataclass(frozen=True, slots=True)
class Sent:
    """A decoded token, not verified yet."""

    text: str
    header: Mapping[str, Any]
    claims: Mapping[str, Any]

    @property
    def kid(self) -> str | None:
        """The id of the key that has signed it, as the token says."""
        kid = self.header.get("kid")
        return kid if isinstance(kid, str) else None


def read(text: str) -> Sent:
    """Header and claims, not verified.

    Raises:
        CredentialRefused: malformed. Its facts contain nothing of the text: it may be a password.
    """
    if len(text) > MAX_TOKEN_BYTES or _form(text) is None:
        parts = text[: MAX_TOKEN_BYTES + 1].count(".") + 1
        expected = f"three parts in base64url with dots between, {MAX_TOKEN_BYTES} characters at most"
        raise CredentialRefused(Finding("form", expected, f"{parts} parts, {len(text)} characters", "malformed"))
    header, claims, _ = text.split(".")
    return Sent(text, _json(header, "header"), _json(claims, "payload"))


def _json(segment: str, part: str) -> dict[str, Any]:
    """Strict JSON: another parser of the same bytes must not find other members, numbers or texts."""
    try:
        text = urlsafe_b64decode(segment + "=" * (-len(segment) % 4)).decode("utf-8")
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        expected = "a JSON object without repeated names"
        raise CredentialRefused(Finding("form", expected, f"the {part} is not one", "malformed"))
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name is repeated")
    return members


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def claim(claims: Mapping[str, Any], path: str) -> object:
    """The claim at this path of names with dots between.

    A name may contain dots (`https://example.com/scopes`, a client's id at Keycloak): at each step the longest name
    that exists is taken.
    """
    found: object = claims
    while isinstance(found, Mapping):
        if path in found:
            value: object = found[path]
            return value
        end = path.rfind(".")
        while end >= 0 and path[:end] not in found:
            end = path.rfind(".", 0, end)
        if end < 0:
            return None
        found, path = found[path[:end]], path[end + 1 :]
    return None


def named_in(value: object) -> Sequence[str] | None:
    """Groups or roles: an array, or a text that is one name, spaces included. None if it is neither."""
    return _texts([value] if isinstance(value, str) else value, MAX_NAMES)


def scopes_in(value: object) -> Sequence[str] | None:
    """Scopes: a text with spaces (RFC 8693) or an array. None if it is neither."""
    return _texts(value.split() if isinstance(value, str) else value, MAX_SCOPES)


def _texts(value: object, most: int) -> Sequence[str] | None:
    listed = [] if value is None else value
    if not isinstance(listed, list) or len(listed) > most or not all(isinstance(each, str) for each in listed):
        return None
    return listed


def shown(value: object) -> object:
    """A value of unknown origin, made fit for a log line or a terminal: texts are cut, of a list the first few items
    are kept, and nested values become text."""
    if not isinstance(value, (list, tuple)):
        return _one(value)
    found, room = list[object](), MAX_SHOWN_TOGETHER
    for each in value[:MAX_SHOWN_ITEMS]:
        item = _one(each)
        room -= len(str(item))
        if room < 0:
            break
        found.append(item)
    return found if len(found) == len(value) else [*found, "…"]


def _one(value: object) -> object:
    if isinstance(value, str):
        return _printable(value)
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    try:
        return _printable(json.dumps(value))
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__}"


def _printable(text: str) -> str:
    cut = text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)
