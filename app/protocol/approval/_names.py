"""The names of all tools beside the one that is looked at, however a text spells them."""

import re
from collections.abc import Iterable

from app.protocol.approval._words import key, plain, words

MAX_NAMES = 20_000
_SHORTEST = 4
_TOKEN = re.compile(r"[^\W_]+(?:[_./:-]+[^\W_]+)*")
_QUOTED = re.compile(r"[`\"'\u201c\u2018\u00ab]([^`\"'\u201d\u2019\u00bb\n]{2,64})[`\"'\u201d\u2019\u00bb]")
_CALLED = re.compile(r"(?<![\w-])([\w-]{1,64})\s?\(")
_KINDS = frozenset({"tool", "tools", "function", "command"})
_LONGEST_WORDS = 6  # of a name that is spelt with spaces


class ToolNames:
    """Made once for a tenant or a toolset. Titles may be given as well. Those above MAX_NAMES are left out."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: dict[str, str] = {}
        for name in names:
            if len(self._names) >= MAX_NAMES:
                break
            if len(each := key(name)) >= _SHORTEST:
                self._names.setdefault(each, name)

    def __repr__(self) -> str:
        return f"<ToolNames [{len(self._names)}]>"

    def mentioned(self, text: str, own: str) -> set[str]:
        """The tools that a plain text names, but for `own`. A name of one plain word, such as `search`, counts where
        the text marks it as a name: quoted, called, or beside the word tool."""
        found = {each for each in _marked(text) if each in self._names}
        for token in _TOKEN.findall(text):
            if _looks_like_a_name(token) and (each := key(token)) in self._names:
                found.add(each)
        return {self._names[each] for each in found - {key(own)}}

    def imitated(self, title: str, own: str) -> set[str]:
        """The tools whose name is a part of this title, but not of the tool's `own` name."""
        found = {each for each in _runs(words(plain(title))) | {key(title)} if each in self._names}
        return {self._names[each] for each in found if each not in key(own)}


def _looks_like_a_name(token: str) -> bool:
    """Whether it has a separator inside, or capitals behind its first letter, or letters that pass for others."""
    return any(each in "_./:-" for each in token) or (token[1:] != token[1:].lower()) or not token.isascii()


def _marked(text: str) -> set[str]:
    found = {key(each) for each in _QUOTED.findall(text)} | {key(each) for each in _CALLED.findall(text)}
    all_words = words(text)
    for index, word in enumerate(all_words):
        if word in _KINDS:
            before = all_words[max(0, index - _LONGEST_WORDS) : index]
            after = all_words[index + 1 : index + 1 + _LONGEST_WORDS]
            found |= {key("".join(before[start:])) for start in range(len(before))}
            found |= {key("".join(after[:end])) for end in range(1, len(after) + 1)}
    return found


def _runs(all_words: list[str]) -> set[str]:
    """Up to six words in a row, as one."""
    some = all_words[:40]
    return {
        key("".join(some[start : start + length]))
        for start in range(len(some))
        for length in range(1, _LONGEST_WORDS + 1)
        if start + length <= len(some)
    }
