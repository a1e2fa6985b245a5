"""What somebody who mistyped a name probably meant."""

import difflib
from collections.abc import Iterable

ALIKE = 0.6  # of 1: as `difflib` has it by default
# Other words for what has a name here.
_SYNONYMS = {
    "get": "show", "describe": "show", "ls": "list", "add": "create", "new": "create", "update": "set", "edit": "set",
    "patch": "set", "remove": "delete", "rm": "delete",
}  # fmt: skip


def nearest(word: str, known: Iterable[str]) -> str:
    """The name that means the same, or is most like this word; empty if none is like it."""
    names = list(known)
    if _SYNONYMS.get(word) in names:
        return _SYNONYMS[word]
    found = difflib.get_close_matches(word.lower(), names, 1, ALIKE)
    return found[0] if found else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """To be put behind the words of an error; empty if nothing is like this word."""
    found = nearest(word, known)
    return f"; did you mean `{found}`?" if found else ""
