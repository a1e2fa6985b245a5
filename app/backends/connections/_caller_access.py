"""CallerAccess: what one caller may use in one session of a toolset, and how often."""

from collections.abc import Iterator, Sequence

from app.domain import BackendSpec
from app.domain.resources.access import Kind
from app.limits.caller_limits import Allowance, CallerLimits, Identity
from app.protocol.toolset.allowed import Allowed
from app.protocol.toolset.listing import Place

View = tuple[Allowed | None, ...]
"""What the lists of a toolset and of its members, in their order, allow one caller; None where there is no list."""


class CallerAccess:
    """Counts the calls of a caller for the entries of `access` that allow them."""

    def __init__(
        self, spec: BackendSpec, names: Sequence[str], view: View, caller: Identity, limits: CallerLimits
    ) -> None:
        self._tenant, self._caller, self._limits = spec.tenant, caller, limits
        self._found = dict[tuple[Kind, Place, str], Sequence[Allowance]]()
        self._own, *self._members = zip(
            (f"toolsets/{spec.name}", *(f"backends/{name}" for name in names)), view, strict=True
        )

    def allowances(self, kind: Kind, place: Place, shown: str) -> Sequence[Allowance]:
        """For which a call of what is shown under this name counts; those without limits are left out."""
        found = self._found.get((kind, place, shown))
        if found is None:
            found = [
                self._limits.of(self._tenant, where, self._caller, entry)
                for where, allowed, name in self._lists(place, shown)
                if (number := allowed.entry(kind, name)) is not None and (entry := allowed.entries[number]).is_limited
            ]
            if kind != "resources":  # there are more URIs than there are names
                self._found[kind, place, shown] = found
        return found

    def spend(self, allowances: Sequence[Allowance]) -> None:
        """Raises RateLimited."""
        self._limits.spend(allowances)

    def _lists(self, place: Place, shown: str) -> Iterator[tuple[str, Allowed, str]]:
        lists = [(self._own, shown)]
        if place.member < len(self._members):
            lists.append((self._members[place.member], place.name))
        for (where, allowed), name in lists:
            if allowed is not None:
                yield where, allowed, name
