"""Pages: reads one list of a backend page by page. One odd item, or page, does not take away what is beside it."""

import json
from collections.abc import Iterator

import msgspec

from app.errors import BackendError, GatewayError, InvalidResponse, ParseError
from app.protocol import tolerant
from app.protocol.jsonrpc import ABSENT, METHOD_NOT_FOUND, Params, Response, code_of, members_of, string_of
from app.protocol.toolset.offer import KEYS, LISTS, MAX_ITEMS, Offer

MAX_PAGES = 100  # of one list
MAX_BARREN = 10  # pages in a row that bring nothing new, though their cursors are

_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Pages:
    """Ask with `params`, and pass on the answer, as long as `take` returns True. `notes`: what was left out.

    A list that cannot be used ends there, with a note and its `failure`; one that is needed raises it.
    """

    def __init__(self, method: str, *, is_needed: bool = False) -> None:
        self.items: list[msgspec.Raw] = []
        self.notes: list[str] = []
        self.failure: GatewayError | None = None  # why not all of it could be read
        self.method, self._key, self._is_needed = method, KEYS.get(method, "name"), is_needed
        self._seen: set[str] = set()
        self._cursors: set[bytes] = set()
        self._pages = self._barren = 0
        self._after: msgspec.Raw | None = None  # the cursor, as it was written

    @property
    def params(self) -> Params:
        return {} if self._after is None else {"cursor": self._after}

    def list_in(self, offer: Offer) -> Offer:
        """The offer with this list. Raises InvalidResponse: it would be too large."""
        return offer.with_list(self.method, self.items, self.notes, is_whole=self.failure is None)

    def fail(self, why: GatewayError) -> None:
        """Nothing more of it can be read."""
        self.failure = why
        self._note(str(why)[:200])

    def take(self, answer: Response) -> bool:
        """One page; returns whether there is another. Raises BackendError: see above, or it has too many entries."""
        if answer.member == "error":
            if code_of(answer) == METHOD_NOT_FOUND:
                return False  # who has resources need not have templates
            why = string_of(members_of(answer.value).get("message")) or ""
            return self._give_up(BackendError(f"the server refused `{self.method}`: {why[:100]}"))
        members = members_of(answer.value)
        raw = members.get(LISTS[self.method][0], ABSENT)
        try:
            if bytes(answer.value)[:1] != b"{":
                return self._give_up(InvalidResponse(f"the answer to `{self.method}` is no object"))
            found = [] if bytes(raw) in (b"", b"null") else _items(raw)
        except (msgspec.ValidationError, ParseError):
            return self._give_up(InvalidResponse(f"the answer to `{self.method}` has no list that can be read"))
        has_news = self._add(found)
        return self._goes_on(members.get("nextCursor", ABSENT), has_news=has_news)

    def _add(self, found: list[msgspec.Raw]) -> bool:
        """Each item once; returns whether any was new."""
        named = list(self._named(found))
        odd = len(found) - len(named)
        if odd:
            words = "1 entry is" if odd == 1 else f"{odd} entries are"
            self._note(f"{words} left out: no object with a `{self._key}`")
        before = len(self.items)
        for name, item in named:
            if name not in self._seen:
                self._seen.add(name)
                self.items.append(item.copy())
        if len(self.items) > MAX_ITEMS:
            raise InvalidResponse(f"`{self.method}` has more than {MAX_ITEMS} entries")
        return len(self.items) > before

    def _named(self, found: list[msgspec.Raw]) -> Iterator[tuple[str, msgspec.Raw]]:
        for item in found:
            name = string_of(members_of(item).get(self._key)) if bytes(item)[:1] == b"{" else None
            if name is not None:
                yield name, item

    def _goes_on(self, cursor: msgspec.Raw, *, has_news: bool) -> bool:
        written = bytes(cursor)
        if written in (b"", b"null"):
            return False
        self._barren = 0 if has_news else self._barren + 1
        if not has_news and (written in self._cursors or self._barren >= MAX_BARREN):
            self._note("its `nextCursor` leads to nothing new: no more was read")
            return False
        self._cursors.add(written)
        self._pages += 1
        if self._pages >= MAX_PAGES:
            return self._give_up(InvalidResponse(f"`{self.method}` has more than {MAX_PAGES} pages"))
        if string_of(cursor) is None:
            self._note("its `nextCursor` is no string")
        self._after = cursor.copy()
        return True

    def _give_up(self, why: BackendError) -> bool:
        """The list ends here. After an odd cursor that is what the server meant by it."""
        if self._after is not None and not string_of(self._after):
            self._note(str(why))
        elif self._is_needed:
            raise why
        else:
            self.fail(why)
        return False

    def _note(self, words: str) -> None:
        if words not in self.notes and len(self.notes) < 10:
            self.notes.append(words)


def _items(raw: msgspec.Raw) -> list[msgspec.Raw]:
    """Raises ValidationError: it is no array; ParseError: it is no JSON, or too much that has to be read slowly."""
    try:
        return _decode_items(raw)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [_standard(item) for item in tolerant.items(bytes(raw))]


def _standard(item: bytes) -> msgspec.Raw:
    """The item as everybody can read it, with a replacement for half of an emoji; `null` if there is no such."""
    try:
        return msgspec.Raw(json.dumps(json.loads(item), ensure_ascii=False, allow_nan=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return msgspec.Raw(b"null")
