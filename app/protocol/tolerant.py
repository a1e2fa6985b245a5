"""tolerant: reads JSON that msgspec refuses. Slow, so only for what was refused; without recursion, and bounded.

There are two grammars. The strict one is that of RFC 8259, and accepts what msgspec does not: any depth, and a lone
surrogate in an escape (a JavaScript server writes one when it cuts an emoji). The loose one accepts nearly anything
that has brackets, to find out to which call a broken line belongs. Neither decodes values.
"""

import json
import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from app.errors import ParseError

MAX_BYTES = 2 << 20  # of one line; takes 10 to 30 ns per byte, up to four times
ENDS_BYTES = 4096  # searched of either end of a longer line
MAX_STEPS = 30_000  # in one line, about a microsecond each; an array or object that holds no other is one step
MAX_MESSAGES = 100  # on one line; a line with more is dropped

_CLOSING = {ord("["): ord("]"), ord("{"): ord("}")}
_OBJECT_END, _COMMA = ord("}"), ord(",")
_WHITE = b" \t\r\n"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # not allowed in JSON (RFC 8259 §8.1), but written by some programs on Windows


class _Grammar:
    """Patterns that match at one place: a value without nested arrays or objects in it, a key, and whitespace."""

    def __init__(self, string: bytes, other: bytes) -> None:
        space = rb"[ \t\r\n]*+"
        value = rb"(?:%b|%b)%b" % (string, other, space)
        member = rb"%b%b:%b%b" % (string, space, space, value)
        array = rb"\[%b(?:%b(?:,%b%b)*+)?+\]%b" % (space, value, space, value, space)
        object_ = rb"\{%b(?:%b(?:,%b%b)*+)?+\}%b" % (space, member, space, member, space)
        self.flat = re.compile(rb"%b|%b|%b" % (value, array, object_), re.DOTALL).match
        self.key = re.compile(rb"(%b)%b:%b" % (string, space, space), re.DOTALL).match
        self.space = re.compile(space).match


_STRICT = _Grammar(
    rb'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*+"',
    rb"(?:-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+|true|false|null)",
)
_LOOSE = _Grammar(rb'"(?:[^"\\]++|\\.)*+"', rb'[^\s"\[\]{}:,]++')


class _Children:
    """The members of an object, or the items of an array. To be iterated once.

    Yields the bytes of each value; `key` has its key as written (b"" for items). Afterwards `end` is the place after
    the object or array and its whitespace. Raises ParseError for what is not in the grammar, or after MAX_STEPS.
    """

    def __init__(self, grammar: _Grammar, data: bytes, at: int, steps: int = 0) -> None:
        self._grammar, self._data, self.end = grammar, data, at
        self._open = bytearray()  # the closing brackets of what is open, innermost last
        self.steps = steps  # taken so far in the line
        self.key = b""

    def __iter__(self) -> Iterator[bytes]:
        if self._enter():
            return
        begin = self.end
        while True:
            self._skip_value()
            while (following := self._byte()) == self._open[-1]:
                if len(self._open) == 1:
                    yield self._data[begin : self.end].rstrip(_WHITE)
                if self._leave():
                    return
            if following != _COMMA:
                raise self._fault()
            if len(self._open) == 1:
                yield self._data[begin : self.end].rstrip(_WHITE)
            self._pass(1)
            self._skip_key()
            if len(self._open) == 1:
                begin = self.end

    def require_end(self) -> None:
        """Raises ParseError unless nothing follows."""
        if self.end != len(self._data):
            raise self._fault()

    def _enter(self) -> bool:
        """Enters an array or object; returns True if it was empty and the outermost one."""
        closing = _CLOSING.get(self._byte())
        if closing is None:
            raise self._fault()
        self._open.append(closing)
        self._pass(1)
        if self._byte() == closing:
            return self._leave()
        self._skip_key()
        return False

    def _leave(self) -> bool:
        """Leaves an array or object; returns whether it was the outermost one."""
        self._open.pop()
        self._pass(1)
        return not self._open

    def _skip_value(self) -> None:
        """Goes to the end of the next value that nothing is nested in, entering what is around it."""
        while True:
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise ParseError(f"the message is nonstandard JSON with more than {MAX_STEPS} nested values")
            found = self._grammar.flat(self._data, self.end)
            if found is not None:
                self.end = found.end()
                return
            self._enter()  # not empty: that would have matched

    def _skip_key(self) -> None:
        if self._open[-1] != _OBJECT_END:
            return
        found = self._grammar.key(self._data, self.end)
        if found is None:
            raise self._fault()
        self.end = found.end()
        if len(self._open) == 1:
            self.key = found[1]

    def _pass(self, count: int) -> None:
        """Skips so many bytes and the whitespace after them."""
        found = self._grammar.space(self._data, self.end + count)
        assert found is not None
        self.end = found.end()

    def _byte(self) -> int:
        if self.end >= len(self._data):
            raise self._fault()
        return self._data[self.end]

    def _fault(self) -> ParseError:
        return ParseError(f"the message is not JSON from byte {self.end} on")


def members(data: bytes) -> list[tuple[str, msgspec.Raw]]:
    """The members of an object in order, with duplicate keys; UTF-8 is not checked. Raises ParseError."""
    children = _Children(_STRICT, data, _begin(data, b"{"))
    found = [(json.loads(children.key), msgspec.Raw(value)) for value in children]
    children.require_end()
    return found


def items(data: bytes) -> list[bytes]:
    """The items of an array. Raises ParseError."""
    children = _Children(_STRICT, data, _begin(data, b"["))
    found = list(children)
    children.require_end()
    return found


def require_json(data: bytes) -> None:
    """Raises ParseError unless it is an object or an array."""
    items(data) if data.lstrip(_WHITE)[:1] == b"[" else members(data)


def messages(line: bytes) -> list[bytes]:
    """The messages of a line that has several, concatenated; only the last may be broken. Empty if it has one, or more
    than MAX_MESSAGES."""
    found: list[bytes] = []
    try:
        at, steps = _begin(line, b"{"), 0
        while at < len(line) and len(found) <= MAX_MESSAGES:
            children = _Children(_STRICT, line, at, steps + 1)
            deque(children, maxlen=0)
            found.append(line[at : children.end])
            at, steps = children.end, children.steps
    except ParseError:
        if found:
            found.append(line[at:])
    return found if 1 < len(found) <= MAX_MESSAGES else []


class Broken(NamedTuple):
    """The id of the answer or of the request that a broken line seems to be, as written."""

    answers: bytes | None = None
    asks: bytes | None = None


def broken(line: bytes) -> Broken:
    """Which call a broken line belongs to, as far as it is certain."""
    if len(line) > MAX_BYTES:
        # If it broke off after an inner id, its end looks like that of a message, but braces are still open.
        is_whole = line.count(b"{") == line.count(b"}")
        return Broken(answered(line[:ENDS_BYTES], line[-ENDS_BYTES:] if is_whole else b""))
    found: dict[str, bytes] = {}
    try:
        children = _Children(_LOOSE, line, _begin(line, b"{"))
    except ParseError:
        return Broken()
    try:
        for value in children:
            key = _plain(children.key)
            found[key] = b"" if key in found else value  # of duplicates it is not certain which one counts
        is_whole = True
    except ParseError:  # it broke off in this member
        found.setdefault(_plain(children.key), b"")
        is_whole = False
    request_id = found.get("id") or None
    if "method" in found:
        return Broken(asks=request_id)
    if is_whole or "result" in found or "error" in found:
        return Broken(answers=request_id)
    return Broken()


def _plain(key: bytes) -> str:
    """The decoded key; "" if it cannot be decoded."""
    try:
        return str(json.loads(key))
    except ValueError:
        return ""


# Serialisers write a response with its id first, or last; ids in between may belong to a payload.
_ID = rb'"id"\s*:\s*("[^"\\]{1,300}"|\d{1,30})'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_OUTCOME = rb'"(?:result|error)"\s*:'
_VERSION_FIRST = rb"(?:%b\s*,\s*)?" % _VERSION
_begins_with_id = re.compile(rb"\{\s*%b%b\s*,\s*%b%b" % (_VERSION_FIRST, _ID, _VERSION_FIRST, _OUTCOME)).match
_begins_with_outcome = re.compile(rb"\{\s*%b%b" % (_VERSION_FIRST, _OUTCOME)).match
_ends_with_id = re.compile(rb",\s*%b\s*(?:,\s*%b\s*)?\}\s*\Z" % (_ID, _VERSION)).search


def is_answer(beginning: bytes) -> bool:
    """Whether a line that begins so is an answer."""
    return _begins_with_outcome(beginning) is not None or _begins_with_id(beginning) is not None


def begins_answer(beginning: bytes) -> bytes | None:
    """The id at the beginning of an answer, b"" if it is not there; None if it is not an answer."""
    named = answered(beginning)
    return named if named is not None or not is_answer(beginning) else b""


def answered(beginning: bytes, end: bytes = b"") -> bytes | None:
    """The id of an answer of which only the ends are known; None if it is not certain."""
    named = _begins_with_id(beginning)
    if named is None and _begins_with_outcome(beginning) is not None:
        named = _ends_with_id(end)
    return None if named is None else named[1]


def _begin(data: bytes, opening: bytes) -> int:
    """The place of the opening bracket, which must come first. Raises ParseError."""
    at = len(data) - len(data.lstrip(_WHITE))
    if data[at : at + 1] != opening:
        raise ParseError("the message is not JSON")
    if len(data) > MAX_BYTES:
        raise ParseError(f"the message is nonstandard JSON of more than {MAX_BYTES >> 20} MiB")
    return at
