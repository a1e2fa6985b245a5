"""Allowed: what one caller may use of a backend or a toolset, by its `access`."""

from collections.abc import Mapping, Sequence

from app.domain.resources.access import AccessEntry, Kind
from app.protocol.search.patterns import Patterns
from app.protocol.search.work import Work, finished

KINDS: Sequence[Kind] = ("tools", "prompts", "resources")


class Allowed:
    """Immutable. `entries`: those that name the caller, in their order. Equal to another if both list the same, however
    often: so callers share what is made for one of them."""

    __slots__ = ("_each", "_lists", "entries", "patterns")

    def __init__(self, entries: Sequence[AccessEntry]) -> None:
        self.entries = tuple(entries)
        self.patterns = {kind: tuple(name for each in entries for name in each.patterns(kind)) for kind in KINDS}
        self._lists: Mapping[Kind, Patterns] = {kind: Patterns.of(names) for kind, names in self.patterns.items()}
        self._each: dict[tuple[int, Kind], Patterns] = {}

    def listing(self, kind: Kind, name: str) -> Work[bool]:
        """Whether an entry lists this. In pieces."""
        return self._lists[kind].matching(name)

    def lists(self, kind: Kind, name: str) -> bool:
        """As `listing`, at once."""
        return finished(self.listing(kind, name))

    def entry(self, kind: Kind, name: str) -> int | None:
        """The number of the first entry that lists this."""
        return next((number for number in range(len(self.entries)) if self._of(number, kind).match(name)), None)

    @property
    def has_limits(self) -> bool:
        """Whether it says how often something may be used."""
        return any(each.is_limited for each in self.entries)

    def _of(self, number: int, kind: Kind) -> Patterns:
        found = self._each.get((number, kind))
        if found is None:
            found = self._each[number, kind] = Patterns.of(self.entries[number].patterns(kind))
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Allowed) and self.patterns == other.patterns

    def __hash__(self) -> int:
        return hash(tuple(self.patterns.items()))
