"""Which of two versions of a package is newer, as npm and PyPI see it. Pure."""

import re

_NUMBERS = re.compile(r"v?(?:(\d{1,18})!)?(\d{1,18}(?:\.\d{1,18})*)(.*)", re.DOTALL)
_POST = re.compile(r"[-._]?(?:post|rev|r)?[-._]?\d+")  # of PyPI: after the version that it begins with
_words = re.compile(r"\d{1,18}|[a-z]+").findall

_Key = tuple[int, tuple[int, ...], int, list[tuple[int, int, str]]]


def is_newer(registry: str, version: str, than: str) -> bool:
    """False also where one of them is no version."""
    new, old = _key(registry, version), _key(registry, than)
    return new is not None and old is not None and new > old


def _key(registry: str, version: str) -> _Key | None:
    found = _NUMBERS.fullmatch(version.strip().lower().partition("+")[0])  # what is behind a `+` is a build of the same
    if found is None:
        return None
    numbers = [int(each) for each in found[2].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    rest = found[3]
    after = 1 if registry == "pypi" and _POST.fullmatch(rest) else -1  # all others are before it
    rank = after if rest else 0
    parts = [(0, int(each), "") if each.isdigit() else (1, 0, each.removeprefix("dev")) for each in _words(rest)]
    return int(found[1] or 0), tuple(numbers), rank, parts
