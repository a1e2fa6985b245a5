"""What members of resources may be: types with their limits, and rules that are plain functions."""

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from msgspec import Meta

NAME_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"  # of tenants, backends and all other resources
NAME_RULE = "lower-case letters, digits and hyphens, 63 at most"  # the same for people
NAME_LENGTH = 63
MAX_REASON = 300
NAME_SPELLING = f"{NAME_RULE}, beginning with a letter or digit"
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"  # letters and symbols by their category, and nobody sees them


class Unfit(ValueError):
    """A rule does not hold. `kind` names it for programs; `words` have places for the `values`."""

    def __init__(self, kind: str, words: str, /, **values: object) -> None:
        super().__init__(words.format(**values))
        self.kind, self.words, self.values = kind, words, values


def no_nul(text: str) -> str:
    if "\0" in text:
        raise Unfit("nul", "must not contain NUL characters")
    return text


def one_line(text: str) -> str:
    if not text.isprintable():
        raise Unfit("printable", "must be printable characters")
    if text and not any(map(_is_visible, text)):
        raise Unfit("blank", "must not be blank")
    return text


def bytes_at_most(most: int) -> Callable[[str], str]:
    """Of the text in UTF-8."""

    def checked(text: str) -> str:
        if len(text.encode()) > most:
            raise Unfit("bytes", "has at most {most} bytes", most=most)
        return text

    return checked


def _is_visible(character: str) -> bool:
    """A mark alone is not: it changes the character before it."""
    return unicodedata.category(character)[0] in "LNPS" and character not in _BLANK


def stored(length: int) -> Meta:
    """The length of the column, where nothing else says it."""
    return Meta(extra={"stored": length})


Id = Annotated[str, stored(16)]
# `spelling`: the pattern in words.
Name = Annotated[
    str,
    Meta(pattern=NAME_PATTERN, extra={"stored": NAME_LENGTH, "spelling": NAME_SPELLING}),
    "Lower-case letters, digits, `-`.",
]
Title = Annotated[str, Meta(max_length=200), "What people see instead of the name.", one_line]


Reason = Annotated[
    str,
    Meta(max_length=MAX_REASON, extra={"stored": MAX_REASON}),
    "Why it is switched off, in one line; its callers see it. Removed when it is switched on.",
    one_line,
]

# Of a member of a dataclass: no client sends it; it is not stored either, but made when the object is read or used;
# clients send and see its members as if they were the object's.
UNSENT: Mapping[str, bool] = {"sent": False}
DERIVED: Mapping[str, bool] = {"sent": False, "stored": False}
INLINE: Mapping[str, bool] = {"inline": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A resource as it is stored; its members are annotated with `Meta` and rules."""

    name: Name
    changed_at: datetime = field(metadata=UNSENT)
    version: int = field(default=1, metadata=UNSENT)
