"""UriTemplates: which member a URI belongs to by the templates that members list. Every `resources/read` of what no
list has asks here, so what is looked at is bounded."""

import re
from collections.abc import Sequence
from typing import NamedTuple

MAX_TEMPLATES = 1000  # of a toolset that URIs are compared with; what comes after them is known as a whole only
MAX_VARIABLES = 16  # of one of them
MAX_URI = 2000  # characters of a URI that is compared

_VARIABLES = re.compile(r"(?:\{[^{}]*\})+")
_is_wide = re.compile(r"\{[^A-Za-z0-9_%]").search


class _Template(NamedTuple):
    """A template of RFC 6570: its literal parts, and whether each variable between them may have several segments
    (`{id}` is within one, `{+path}`, `{/path}` and the like may have several)."""

    literals: Sequence[str]
    is_wide: Sequence[bool]
    member: int

    def matches(self, uri: str) -> bool:
        """Whether it may have made this URI: its literal parts are there, in order, and between them what fits. Takes
        time in proportion to the lengths, whatever the template."""
        literals = self.literals
        position, end = len(literals[0]), len(uri) - len(literals[-1])
        if position > end or not uri.startswith(literals[0]) or not uri.endswith(literals[-1]):
            return False
        for is_wide, literal in zip(self.is_wide, literals[1:-1], strict=False):
            found = uri.find(literal, position, end)
            if found < 0 or not (is_wide or "/" not in uri[position:found]):
                return False
            position = found + len(literal)
        return self.is_wide[-1] or "/" not in uri[position:end]


class UriTemplates:
    """Those of all members, in order."""

    def __init__(self) -> None:
        self._templates: list[_Template] = []

    def add(self, template: str, member: int) -> None:
        """One without variables is a URI, and one with too many is left out: `member_of` does not find by them."""
        if len(self._templates) >= MAX_TEMPLATES:
            return
        variables = _VARIABLES.findall(template)
        if 0 < len(variables) <= MAX_VARIABLES:
            wide = [_is_wide(each) is not None for each in variables]
            self._templates.append(_Template(_VARIABLES.split(template), wide, member))

    def member_of(self, uri: str) -> int | None:
        """The member of the first one that may have made this URI."""
        if len(uri) > MAX_URI:
            return None
        return next((each.member for each in self._templates if each.matches(uri)), None)
