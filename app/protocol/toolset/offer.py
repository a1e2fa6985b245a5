"""Offer: everything that a backend says it offers, as it said it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Self, TypeVar

import msgspec

from app.domain.resources.access import AccessEntry
from app.errors import InvalidResponse
from app.protocol.jsonrpc import Params, members_of, object_in, string_of

MAX_ITEMS = 5000  # of one list
MAX_BYTES = 8 << 20  # of a whole offer, as JSON
LISTS = {  # the list, by its method: the member of the result, and the capability that promises it
    "tools/list": ("tools", "tools"),
    "prompts/list": ("prompts", "prompts"),
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("resourceTemplates", "resources"),
}

KEYS = {"resources/list": "uri", "resources/templates/list": "uriTemplate"}  # by what items are told apart, else `name`

_O = TypeVar("_O", bound="Offer")


class Offer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`hello` is the result of `initialize`, or of `server/discover` where `is_sessionless`. `lists` has the items of
    each list that the backend promises, by method; every item is a JSON object. `notes`: what is odd about a list.
    `unread`: lists of which not all could be read."""

    hello: msgspec.Raw
    lists: dict[str, tuple[msgspec.Raw, ...]] = {}
    is_sessionless: bool = False
    notes: dict[str, tuple[str, ...]] = {}
    unread: tuple[str, ...] = ()

    @classmethod
    def begun(cls, hello: msgspec.Raw, *, is_sessionless: bool) -> Self:
        """Without lists, so far. Raises InvalidResponse: it would be too large."""
        return _within_limit(cls(hello, is_sessionless=is_sessionless))

    @property
    def capabilities(self) -> Params:
        """Without those that are null or false, as some serialisers write what is not there."""
        declared = object_in(members_of(self.hello), "capabilities")
        return {name: value for name, value in declared.items() if bytes(value) not in (b"null", b"false")}

    @property
    def instructions(self) -> str:
        return string_of(members_of(self.hello).get("instructions")) or ""

    def items(self, method: str) -> tuple[msgspec.Raw, ...]:
        """Of this list; empty if there is none."""
        return self.lists.get(method, ())

    @property
    def oddities(self) -> list[str]:
        """The notes, each with its list."""
        return [f"`{method}`: {note}" for method, notes in self.notes.items() for note in notes]

    def with_list(
        self, method: str, items: Sequence[msgspec.Raw], notes: Sequence[str] = (), *, is_whole: bool = True
    ) -> Self:
        """Raises InvalidResponse: the offer would be too large."""
        if len(items) > MAX_ITEMS:
            raise InvalidResponse(f"`{method}` has more than {MAX_ITEMS} entries")
        lists, noted = {**self.lists, method: tuple(items)}, {**self.notes, method: tuple(notes)}
        noted = {each: words for each, words in noted.items() if words}
        unread = (*(each for each in self.unread if each != method), *([] if is_whole else [method]))
        return _within_limit(msgspec.structs.replace(self, lists=lists, notes=noted, unread=unread))

    def completed_by(self, earlier: "Offer") -> Self:
        """With what `earlier` had besides in the lists that could not be read to their ends: an error of a moment takes
        nothing away. Raises InvalidResponse: as `with_list`."""
        offer = self
        for method in self.unread:
            read = self.items(method)
            names = {_name(method, item) for item in read}
            rest = (item for item in earlier.items(method) if _name(method, item) not in names)
            offer = offer.with_list(method, [*read, *rest], self.notes.get(method, ()), is_whole=False)
        return offer

    @property
    def size(self) -> int:
        """Bytes, without separators."""
        return len(self.hello) + sum(len(item) for items in self.lists.values() for item in items)

    def dump(self) -> bytes:
        """As JSON, for `load`."""
        return msgspec.json.encode(self)

    @classmethod
    def load(cls, data: bytes) -> Self:
        """What `dump` made. Raises msgspec.MsgspecError."""
        return msgspec.json.decode(data, type=cls)


def _name(method: str, item: msgspec.Raw) -> str | None:
    return string_of(members_of(item).get(KEYS.get(method, "name")))


def _within_limit(offer: _O) -> _O:
    if offer.size > MAX_BYTES:
        raise InvalidResponse(f"what the backend offers is more than {MAX_BYTES >> 20} MiB")
    return offer


class Known(NamedTuple):
    """What is known of a backend. `withheld`: tools that are neither shown nor called, by their own names, and why.
    `access`: its own."""

    offer: Offer
    withheld: Mapping[str, str] = MappingProxyType({})
    access: tuple[AccessEntry, ...] = ()


def promised(capabilities: Params) -> list[str]:
    """The methods of the lists that a backend with these capabilities has."""
    return [method for method, (_, capability) in LISTS.items() if capability in capabilities]
