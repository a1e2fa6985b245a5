"""The form of a token, what is in one that has it, and what is found out about it.

A finding holds what was expected and what the token has instead, cut to a length. Both are for the log and for
administrators: whoever sent the token hears nothing of it.
"""

import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_TOKEN_BYTES = 8192

# Why a token was refused: label values of `auth_failures`. The caller is not told which it was.
REASONS = (
    "malformed", "header", "unknown_issuer", "algorithm", "unknown_key", "keys_unavailable", "signature", "expired",
    "not_yet_valid", "audience", "tenant", "claims", "reserved",
)  # fmt: skip

_form = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+").fullmatch


@dataclass(frozen=True, slots=True)
class Finding:
    """How one rule ended. `failure` is a label of `auth_failures`; None: the token passes."""

    rule: str
    expected: object
    actual: object
    failure: str | None = None
    hint: str | None = None


class TokenRefused(Exception):
    """The token opens nothing. `reason` is for metrics, `facts` for the log; the caller is told neither."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        self.reason = finding.failure or "malformed"
        super().__init__(self.reason)
        self.facts: dict[str, object] = {
            "failure": self.reason,
            "rule": finding.rule,
            "expected": finding.expected,
            "actual": finding.actual,
        }


@dataclass(frozen=True, slots=True)
class Sent:
    """A token that was taken apart, and is not believed yet."""

    text: str
    header: Mapping[str, Any]
    claims: Mapping[str, Any]

    @property
    def kid(self) -> str | None:
        """The id of the key that it says it was signed with; only what `header` has passed is one."""
        kid = self.header.get("kid")
        return kid if isinstance(kid, str) else None


def read(text: str) -> Sent:
    """Header and claims of what has the form of a token, without belief in either.

    Raises:
        TokenRefused: malformed. Its facts hold nothing of what was sent: it may be a password.
    """
    if len(text) > MAX_TOKEN_BYTES or _form(text) is None:
        parts = text[: MAX_TOKEN_BYTES + 1].count(".") + 1
        expected = f"three parts in base64url with dots between, {MAX_TOKEN_BYTES} characters at most"
        raise TokenRefused(Finding("form", expected, f"{parts} parts, {len(text)} characters", "malformed"))
    header, claims, _ = text.split(".")
    return Sent(text, _json(header, "header"), _json(claims, "claims"))


def _json(segment: str, part: str) -> dict[str, Any]:
    """Strictly: a second reader of the same bytes must not find another key, number or text."""
    try:
        text = urlsafe_b64decode(segment + "=" * (-len(segment) % 4)).decode("utf-8")
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise TokenRefused(_not_json(part)) from None
    if not isinstance(found, dict):
        raise TokenRefused(_not_json(part))
    return found


def _not_json(part: str) -> Finding:
    return Finding("form", "a JSON object in which no name stands twice", f"the {part} are none", "malformed")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name stands twice")
    return members


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
