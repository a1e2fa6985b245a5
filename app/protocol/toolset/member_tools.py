"""MemberTools: the tools of one member as they are shown, read and renamed once for all listings that have it."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from app.domain import Selection
from app.protocol.jsonrpc import Params, encode, encoded, members_of, object_in, string_of
from app.protocol.search.patterns import Patterns
from app.protocol.search.work import Work
from app.protocol.toolset._names import shown_as
from app.protocol.toolset.offer import Offer

AT_ONCE = 16  # items between two points at which the work can be interrupted
_OLD_UI_KEY = "ui/resourceUri"  # in `_meta` of a tool: the form of MCP Apps before `ui: {resourceUri}`


class Choice:
    """Which of a member's tools a selection shows, by their own names."""

    def __init__(self, include: Patterns | None, exclude: Patterns) -> None:
        self._include, self._exclude = include, exclude

    @classmethod
    def reading(cls, selection: Selection) -> "Work[Choice]":
        """In pieces of a fraction of a millisecond."""
        exclude = yield from Patterns.reading(selection.exclude)
        return cls((yield from Patterns.reading(selection.include)) if selection.include else None, exclude)

    def showing(self, tool: str) -> Work[bool]:
        """Whether this tool is shown. In pieces."""
        if (yield from self._exclude.matching(tool)):
            return False
        return self._include is None or (yield from self._include.matching(tool))


class MemberTool(NamedTuple):
    """A tool as it is shown, its member's own name of it, and the URI of its user interface."""

    shown: str
    own: str
    app: str | None
    definition: bytes


class MemberTools:
    """Immutable. `shown`: of two with one name the first; `displaced`: those that would be shown under its name."""

    __slots__ = ("__weakref__", "displaced", "offer", "prefix", "selection", "shown")

    def __init__(
        self, offer: Offer, prefix: str | None, selection: Selection, shown: list[MemberTool], displaced: list[str]
    ) -> None:
        self.offer, self.prefix, self.selection = offer, prefix, selection
        self.shown, self.displaced = shown, displaced

    @classmethod
    def making(cls, offer: Offer, prefix: str | None, selection: Selection) -> "Work[MemberTools]":
        """In pieces of a fraction of a millisecond."""
        named = yield from by_name(offer.items("tools/list"))
        choice = yield from Choice.reading(selection)
        taken, displaced = dict[str, MemberTool](), list[str]()
        for number, (own, item) in enumerate(named.items()):
            if not number % AT_ONCE:
                yield
            if not (yield from choice.showing(own)):
                continue
            shown = shown_as(selection.rename.get(own, own), prefix)
            if shown in taken:
                displaced.append(own)
                continue
            members = members_of(item)
            definition = renamed(item, members, own, shown, selection.describe.get(own))
            taken[shown] = MemberTool(shown, own, _app_of(members), definition)
        return cls(offer, prefix, selection, list(taken.values()), displaced)

    def is_of(self, offer: Offer, prefix: str | None, selection: Selection) -> bool:
        """Whether they are what is shown of this."""
        return self.offer is offer and self.prefix == prefix and self.selection == selection

    def gone(self, withheld: Mapping[str, str]) -> Work[list[str]]:
        """What is withheld and would be shown, but is not offered: approved, and gone. In pieces, as `making`."""
        offered = {*self.displaced, *(each.own for each in self.shown)} if withheld else ()
        gone = [each for each in withheld if each not in offered]
        choice = yield from Choice.reading(self.selection if gone else Selection())
        shown = list[str]()
        for number, own in enumerate(gone):
            if not number % AT_ONCE:
                yield
            if (yield from choice.showing(own)):
                shown.append(own)
        return shown


def by_name(items: Iterable[msgspec.Raw]) -> Work[dict[str, msgspec.Raw]]:
    """Of two items with one name the first counts."""
    named: dict[str, msgspec.Raw] = {}
    for number, item in enumerate(items):
        name = string_of(members_of(item).get("name"))
        if name is not None:
            named.setdefault(name, item)
        if not number % AT_ONCE:
            yield
    return named


def renamed(item: msgspec.Raw, members: Params, own: str, shown: str, description: str | None) -> bytes:
    """The item with another name and description; everything else as the member wrote it."""
    if own == shown and description is None:
        return bytes(item)
    changed: Params = {**members, "name": encoded(shown)}
    if description is not None:
        changed["description"] = encoded(description)
    return encode(changed)


def _app_of(tool: Params) -> str | None:
    """The URI of the tool's user interface, which need not be in a list of resources."""
    meta = object_in(tool, "_meta")
    return string_of(object_in(meta, "ui").get("resourceUri")) or string_of(meta.get(_OLD_UI_KEY))
