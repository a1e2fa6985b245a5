"""Offer: everything that a backend says it offers, as it said it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Self, TypeVar

import msgspec

from app.errors import InvalidResponse
from app.protocol.jsonrpc import Params, encoded, members_of, object_in, string_of

MAX_ITEMS = 5000  # of one list
MAX_BYTES = 8 << 20  # of a whole offer, as JSON
MAX_PAGES = 100  # of one list
LISTS = {  # the list, by its method: the member of the result, and the capability that promises it
    "tools/list": ("tools", "tools"),
    "prompts/list": ("prompts", "prompts"),
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("resourceTemplates", "resources"),
}

_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode

_O = TypeVar("_O", bound="Offer")


class Offer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`hello` is the result of `initialize`, or of `server/discover` where `is_sessionless`. `lists` has the items of
    each list that the backend promises, by method; every item is a JSON object."""

    hello: msgspec.Raw
    lists: dict[str, tuple[msgspec.Raw, ...]] = {}
    is_sessionless: bool = False

    @classmethod
    def begun(cls, hello: msgspec.Raw, *, is_sessionless: bool) -> Self:
        """Without lists, so far. Raises InvalidResponse: it would be too large."""
        return _within_limit(cls(hello, is_sessionless=is_sessionless))

    @property
    def capabilities(self) -> Params:
        return object_in(members_of(self.hello), "capabilities")

    @property
    def instructions(self) -> str:
        return string_of(members_of(self.hello).get("instructions")) or ""

    def items(self, method: str) -> tuple[msgspec.Raw, ...]:
        """Of this list; empty if there is none."""
        return self.lists.get(method, ())

    def with_list(self, method: str, items: Sequence[msgspec.Raw]) -> Self:
        """Raises InvalidResponse: the offer would be too large."""
        if len(items) > MAX_ITEMS:
            raise InvalidResponse(f"`{method}` has more than {MAX_ITEMS} entries")
        return _within_limit(msgspec.structs.replace(self, lists={**self.lists, method: tuple(items)}))

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


def _within_limit(offer: _O) -> _O:
    if offer.size > MAX_BYTES:
        raise InvalidResponse(f"what the backend offers is more than {MAX_BYTES >> 20} MiB")
    return offer


class Known(NamedTuple):
    """What is known of a backend. `withheld`: tools that are neither shown nor called, by their own names, and why."""

    offer: Offer
    withheld: Mapping[str, str] = MappingProxyType({})


def promised(capabilities: Params) -> list[str]:
    """The methods of the lists that a backend with these capabilities has."""
    return [method for method, (_, capability) in LISTS.items() if capability in capabilities]


def page(method: str, result: msgspec.Raw) -> tuple[list[msgspec.Raw], str | None]:
    """The items of one page of a list, and the cursor of the next.

    Raises:
        InvalidResponse: it is no such page.
    """
    member, _ = LISTS[method]
    members = members_of(result)
    try:
        items = _decode_items(members[member])
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidResponse(f"the answer to `{method}` lacks {member}") from None
    if not all(bytes(item)[:1] == b"{" for item in items):
        raise InvalidResponse(f"the answer to `{method}` has an item that is no object")
    return [item.copy() for item in items], string_of(members.get("nextCursor"))


def cursor(after: str | None) -> Params:
    """The params that ask for the page after this cursor."""
    return {} if after is None else {"cursor": encoded(after)}
