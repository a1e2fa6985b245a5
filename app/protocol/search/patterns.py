"""Patterns of names, with `*`, `?` and `[…]`: they match exactly what `fnmatch.fnmatchcase` matches, without its
regular expressions. To compile one takes a millisecond, and a tenant may write a thousand of them for one member."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from app.protocol.search.work import Work, finished

AT_ONCE = 16  # patterns, or characters of a name, between two points at which the work can be interrupted
_LONG = 256  # characters of a name


class Patterns:
    """Immutable. Whether a name matches one of them takes time in proportion to its length, whatever they are."""

    def __init__(self, exact: Iterable[str], parts: Sequence[list[str]], odd: Sequence["_States"]) -> None:
        self._exact, self._parts, self._odd = frozenset(exact), parts, odd

    @classmethod
    def reading(cls, patterns: Sequence[str]) -> "Work[Patterns]":
        """In pieces of a fraction of a millisecond."""
        exact, parts, odd, states = list[str](), list[list[str]](), list[str](), list[_States]()
        for number, pattern in enumerate(patterns, 1):
            if "?" in pattern or "[" in pattern:
                odd.append(pattern)
            elif "*" in pattern:
                parts.append(pattern.split("*"))
            else:
                exact.append(pattern)
            if not number % AT_ONCE:
                yield
        for start in range(0, len(odd), AT_ONCE):
            states.append(_States(odd[start : start + AT_ONCE]))
            yield
        return cls(exact, parts, states)

    @classmethod
    def of(cls, patterns: Sequence[str]) -> "Patterns":
        """As `reading`, at once: for few patterns."""
        return finished(cls.reading(patterns))

    def matching(self, name: str) -> Work[bool]:
        """Whether this name matches one of them. In pieces."""
        if name in self._exact:
            return True
        at_once = AT_ONCE if len(name) <= _LONG else 1
        for number, parts in enumerate(self._parts, 1):
            if _has_in_order(name, parts):
                return True
            if not number % at_once:
                yield
        for each in self._odd:
            if (yield from each.matching(name)):
                return True
        return False

    def match(self, name: str) -> bool:
        """As `matching`, at once."""
        return finished(self.matching(name))


def _has_in_order(name: str, parts: Sequence[str]) -> bool:
    """Whether it begins with the first part, ends with the last, and has the others between them, in order."""
    first, last = parts[0], parts[-1]
    position, end = len(first), len(name) - len(last)
    if position > end or not name.startswith(first) or not name.endswith(last):
        return False
    for part in parts[1:-1]:
        found = name.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True


class _States:
    """Several patterns as one automaton: a bit of a number says that the characters so far match the first items of a
    pattern (an item is all but `*`). So a character takes one step, however many ways there are to match."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._starts = self._ends = self._stays = 0  # the last: after which there is `*`
        self._items = _Items()
        bit = 1
        for pattern in patterns:
            self._starts |= bit
            bit = self._read(pattern, bit)
            self._ends |= bit
            bit <<= 1

    def _read(self, pattern: str, bit: int) -> int:
        position, items = 0, self._items
        while position < len(pattern):
            char, position = pattern[position], position + 1
            end = _end_of_set(pattern, position) if char == "[" else -1
            if char == "*":
                self._stays |= bit
                continue
            if char == "?":
                items.add_any(bit)
            elif end >= 0:
                items.sets.append((bit, _Set(pattern[position:end])))
                position = end + 1
            else:
                items.at[char] = items.at.get(char, 0) | bit
            bit <<= 1
        return bit

    def matching(self, name: str) -> Work[bool]:
        states, items, stays = self._starts, self._items, self._stays
        for start in range(0, len(name), AT_ONCE):
            for char in name[start : start + AT_ONCE]:
                states = (states & items[char]) << 1 | states & stays
            yield
            if not states:
                return False
        return bool(states & self._ends)


class _Items(dict[str, int]):
    """The items that match a character. Kept only for those of ASCII, which are few."""

    def __init__(self) -> None:
        super().__init__()
        self.at, self.anything = dict[str, int](), 0  # the items that are this character; that are `?`
        self.sets = list[tuple[int, _Set]]()

    def add_any(self, bit: int) -> None:
        """A `?`."""
        self.anything |= bit

    def __missing__(self, char: str) -> int:
        items = self.anything | self.at.get(char, 0)
        for bit, each in self.sets:
            if each.has(char):
                items |= bit
        if char.isascii():
            self[char] = items
        return items


class _Set:
    """What is between `[` and `]`: characters, ranges, and `!` before them for all others. Odd ones as `fnmatch`."""

    def __init__(self, text: str) -> None:
        chunks = _between_hyphens(text)
        self._is_other = chunks[0].startswith("!")
        if self._is_other:
            chunks[0] = chunks[0][1:]
            if not chunks[0] and len(chunks) > 1:  # the hyphen is the first: it is itself
                chunks[:2] = [f"-{chunks[1]}"]
        self._ranges = [(before[-1], after[0]) for before, after in pairwise(chunks)]
        self._chars = frozenset("".join(chunks))

    def has(self, char: str) -> bool:
        if char in self._chars:
            return not self._is_other
        return any(low <= char <= high for low, high in self._ranges) != self._is_other


def _end_of_set(pattern: str, start: int) -> int:
    """Where its `]` is; -1: there is none, and `[` is itself."""
    start += pattern.startswith("!", start)
    return pattern.find("]", start + 1)


def _between_hyphens(text: str) -> list[str]:
    """The text, cut at each hyphen that makes a range; without the ranges that are empty."""
    chunks, start = list[str](), 0
    hyphen = text.find("-", 2 if text.startswith("!") else 1)
    while hyphen >= 0:
        chunks.append(text[start:hyphen])
        start = hyphen + 1
        hyphen = text.find("-", hyphen + 3)
    if start < len(text) or not chunks:
        chunks.append(text[start:])
    else:
        chunks[-1] += "-"
    for number in range(len(chunks) - 1, 0, -1):
        if chunks[number - 1][-1] > chunks[number][0]:
            chunks[number - 1 : number + 1] = [chunks[number - 1][:-1] + chunks[number][1:]]
    return chunks
