"""Mask: removes secrets from messages before they are kept. What is removed is nowhere kept, so nobody can show it."""

import json
import math
import re
import time
from base64 import b64encode
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from app.text.credentials import SHAPES, names_secret
from app.text.redaction import without_credentials

MASKED = "•••"  # nothing of a secret, and not its length
MIN_VALUE = 6  # characters of a backend's variable or header that is masked wherever it occurs: `true` is no secret
MAX_BYTES = 256 << 10  # of a message that is looked through; of a longer one nothing is kept
MAX_TEXT = 64 << 10  # characters of a message that are kept
MAX_DEPTH = 60  # below it everything is masked
MAX_LOOK_S = 0.03  # of the processor for one message, while which the node does nothing else; longer, nothing is kept
MAX_VALUES = 4000  # that are looked for, in all their forms; where there are more nothing is kept
_STRIDE = 256  # values between two looks at the time

_IN_URL = re.compile(r"(?i)(\b[a-z][a-z0-9+.-]{1,20}:(?:\\?/){2}[^\s/@:]{0,256}:)[^\s/]{1,512}(?=@)")
_SECRETS = r"(?:password|passwd|passphrase|pwd|secret|(?<!progress)token|api[-_]?key|access[-_]?key|private[-_]?key)"
# A name ends like that, such as `dbPassword`. What follows is masked up to the closing quote, which has as many
# backslashes as the opening one, or to the bracket: JSON may be within other text, and that within JSON again.
_ASSIGNED = re.compile(
    rf"(?i)({_SECRETS}\\{{0,8}}[\"']?\s{{0,4}}(?:=>|:=|[=:])\s{{0,4}}"
    rf"|--(?:[a-z]{{1,20}}-){{0,3}}{_SECRETS}\s{{1,4}}|[?&](?:sig|signature|x-amz-signature)=)"
    r"(?:(\\{0,8}[\"']).{1,2048}?(?<!\\)(?=\2)|([\[{])[^\]}]{1,8192}|(\\{0,8}[\"']?)[^\s\"'\\,;&]{1,8192})"
)
_HEADER = re.compile(
    r"(?i)(\b(?:authorization|cookie)\\?[\"']?\s{0,4}:\s{0,4}\\?[\"']?|\bbasic\s{1,4}(?=[a-z]{0,2048}[0-9+/=]))"
    r"[^\r\n\"'\\]{1,16384}"
)
# What each match of a pattern has in it, in lower case for those that ignore it: most texts need not be searched.
_IN_SHAPES = ("eyJ", "k-", "k_", "gh", "github_pat_", "glpat-", "xox", "AKIA", "ASIA", "AIza", "-----BEGIN ")
_IN_HEADER, _IN_ASSIGNED = ("authorization", "cookie", "basic"), ("pass", "pwd", "secret", "token", "key", "sig")
# Of a parameter whose name says that it is secret: what a schema says about it. All else could be its value.
_DESCRIBES = frozenset({"type", "title", "description", "format", "pattern", "minLength", "maxLength", "$ref", "items",
                        "properties", "required", "anyOf", "oneOf", "allOf", "writeOnly", "readOnly"})  # fmt: skip
_NAMED, _VALUES = ("name", "key", "header"), frozenset({"value", "values", "val"})  # of a header, for example
_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
MAX_LINES = 64  # of one value, each of which is masked by itself


class _TooSlow(Exception):
    """A message takes longer than MAX_LOOK_S."""


class _Repeated(list[tuple[str, Any]]):
    """The members of an object that has one of them twice. Which of them counts, each reader decides for itself."""


class Masked(NamedTuple):
    """A message as it is kept. `text` is None where nothing is; `secrets`: how many places were masked."""

    text: str | None
    is_cut: bool
    secrets: int


class Mask:
    """`values` are secrets themselves: those of the backend's variables and headers."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._learned = set[str]()
        self._known = set[str]()
        self._values: list[str] = []  # a search for each is faster than one pattern for all
        self._found, self._until = 0, math.inf
        self.learn(values)

    @property
    def is_full(self) -> bool:
        """There are more secrets than can be looked for: nothing may be kept."""
        return len(self._known) > MAX_VALUES

    def learn(self, values: Iterable[str]) -> None:
        """These are secrets too, from now on."""
        fresh = set(values) - self._learned
        for value in fresh:
            if self.is_full:
                return
            self._learned.add(value)
            self._known.update(form for form in _forms(value) if len(form) >= MIN_VALUE)
        if fresh:
            self._values = sorted(self._known, key=len, reverse=True)

    def message(self, line: bytes) -> Masked:
        """A message without its secrets, cut to MAX_TEXT."""
        if len(line) > MAX_BYTES or self.is_full:
            return Masked(None, True, 0)
        self._found, self._until = 0, time.thread_time() + MAX_LOOK_S
        try:
            text = self._message(line)
        except _TooSlow:
            return Masked(None, True, 0)
        finally:
            self._until = math.inf
        return Masked(text[:MAX_TEXT], len(text) > MAX_TEXT, self._found)

    def _message(self, line: bytes) -> str:
        try:
            return msgspec.json.encode(self._cleaned(_read(line.decode()))).decode()
        except _UNREADABLE:
            return self.text(line.decode("utf-8", "replace"))

    def text(self, text: str) -> str:
        """A text without its secrets."""
        if len(text) < MIN_VALUE:
            return text
        if self.is_full:
            return self._masked()
        cleaned = self._without_values(text)
        folded = cleaned.lower() if cleaned.isascii() else None  # else other letters may stand for those of a pattern
        if any(map(cleaned.__contains__, _IN_SHAPES)):
            cleaned = self._put(SHAPES, MASKED, cleaned)
        if folded is None or any(map(folded.__contains__, _IN_HEADER)):
            cleaned = self._put(_HEADER, rf"\g<1>{MASKED}", cleaned)
        if "@" in cleaned:
            cleaned = self._put(_IN_URL, rf"\g<1>{MASKED}", cleaned)
        if folded is None or any(map(folded.__contains__, _IN_ASSIGNED)):
            cleaned = self._put(_ASSIGNED, rf"\g<1>\g<2>\g<3>\g<4>{MASKED}", cleaned)
        self._look_at_time()
        without = without_credentials(cleaned)
        self._found += without != cleaned
        return without

    def _without_values(self, text: str) -> str:
        for place, value in enumerate(self._values):
            if not place % _STRIDE:
                self._look_at_time()
            if value in text:
                self._found += text.count(value)
                text = text.replace(value, MASKED)
        return text

    def _look_at_time(self) -> None:
        if self._until is not math.inf and time.thread_time() > self._until:
            raise _TooSlow

    def _put(self, pattern: re.Pattern[str], mark: str, text: str) -> str:
        self._look_at_time()
        cleaned, times = pattern.subn(mark, text)
        self._found += times
        return cleaned

    def _cleaned(self, value: Any, depth: int = 0, *, is_secret: bool = False) -> Any:
        """`is_secret`: it is the value of a member whose name says so; all its texts and numbers are masked."""
        if isinstance(value, (dict, list)):
            self._look_at_time()
            if depth > MAX_DEPTH:
                return self._masked()
            if isinstance(value, (dict, _Repeated)):
                return self._object(value, depth, is_secret)
            return [
                self._cleaned(each, depth + 1, is_secret=is_secret or _is_flag(before))
                for before, each in zip(("", *value), value, strict=False)
            ]
        if value is None or isinstance(value, bool):
            return value
        if is_secret:
            return self._masked()
        if isinstance(value, str):
            return self._string(value, depth)
        return self._masked() if self._known and str(value) in self._known else value

    def _object(self, value: dict[str, Any] | _Repeated, depth: int, is_secret: bool) -> Any:
        members = value.items() if isinstance(value, dict) else value
        paired = any(name in _NAMED and isinstance(each, str) and names_secret(each) for name, each in members)
        cleaned = (
            (self.text(name), self._member(name, each, depth, is_secret or (paired and name in _VALUES)))
            for name, each in members
        )
        return dict(cleaned) if isinstance(value, dict) else _with_all(cleaned)

    def _member(self, name: str, value: Any, depth: int, is_secret: bool) -> Any:
        if name == "properties" and isinstance(value, dict) and not is_secret:  # perhaps of a schema
            return {self.text(key): self._parameter(key, each, depth + 1) for key, each in value.items()}
        return self._cleaned(value, depth + 1, is_secret=is_secret or names_secret(name))

    def _parameter(self, name: str, value: Any, depth: int) -> Any:
        """The schema of a parameter with a secret name says what it is. If it is no schema, it is the secret."""
        if not names_secret(name) or not _is_schema(value):
            return self._member(name, value, depth, is_secret=False)
        return {
            self.text(key): self._member(key, each, depth + 1, is_secret=key not in _DESCRIBES)
            for key, each in value.items()
        }

    def _string(self, value: str, depth: int) -> str:
        """Servers like to answer with JSON in a text."""
        if value.lstrip()[:1] in ("{", "[", '"') and len(value) >= MIN_VALUE and depth < MAX_DEPTH:
            try:
                inner = _read(value)
                before = self._found
                cleaned = self._cleaned(inner, depth + 1)
                # What is kept is looked through itself: numbers may have been read otherwise than they are written.
                return self._without_values(value) if self._found == before else msgspec.json.encode(cleaned).decode()
            except _UNREADABLE:
                pass
        return self.text(value)

    def _masked(self) -> str:
        self._found += 1
        return MASKED


_UNREADABLE = (msgspec.DecodeError, ValueError, OverflowError, RecursionError)


def _read(text: str) -> Any:
    """JSON with all that any reader may find in it. Raises _UNREADABLE."""
    found, repeated = msgspec.json.decode(text), list[_Repeated]()

    def members(pairs: list[tuple[str, Any]]) -> Any:
        if len(once := dict(pairs)) == len(pairs):
            return once
        repeated.append(_Repeated(pairs))
        return repeated[-1]

    all_of_it = json.loads(text, object_pairs_hook=members)
    return all_of_it if repeated else found


def _with_all(members: Iterable[tuple[str, Any]]) -> msgspec.Raw:
    encode = msgspec.json.encode
    return msgspec.Raw(b"{%b}" % b",".join(b"%b:%b" % (encode(name), encode(each)) for name, each in members))


def _is_flag(word: Any) -> bool:
    """Whether the next word of a command line is a secret."""
    return isinstance(word, str) and word.startswith("-") and names_secret(word.lstrip("-"))


def _is_schema(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    kinds = value.get("type")
    if kinds is None:
        return not {"$ref", "anyOf", "oneOf", "allOf"}.isdisjoint(value)
    return all(each in _TYPES for each in (kinds if isinstance(kinds, list) else [kinds]))


def _forms(value: str) -> Iterable[str]:
    """A value, its lines, the password in it if it is a URL, the second word of `Bearer abc`; and how all of these look
    in JSON, in a URL and in base64."""
    value = value.strip()
    parts = {value, *(line.strip() for line in value.splitlines()[:MAX_LINES])}
    if len(words := value.split()) == 2:
        parts.add(words[1])
    if (found := re.search(r"://[^\s/@:]*:([^\s/@]+)@", value)) is not None:
        parts.add(found[1])
    for part in parts:
        if len(part) >= MIN_VALUE:
            yield part
            yield msgspec.json.encode(part).decode()[1:-1]
            yield quote(part, safe="")
            yield quote(part)
            yield from _in_base64(part.encode("utf-8", "replace"))


def _in_base64(value: bytes) -> Iterable[str]:
    """What base64 of anything that contains this has for sure, wherever in it this begins."""
    for before in range(3):
        length = before + len(value)
        text = b64encode(bytes(before) + value).decode()[(0, 2, 3)[before] : length * 8 // 6]
        yield text
        yield text.translate({ord("+"): "-", ord("/"): "_"})
