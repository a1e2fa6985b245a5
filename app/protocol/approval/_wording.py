"""The rules for text: what a new sentence says that an edit of the wording has no reason to say.

A sentence is new if the approved definition has it nowhere. New sentences are looked at alone, so that an order which
was approved does not cover another one. Such rules cannot be complete: the limit on new words stands behind them.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator

from app.protocol.approval._addresses import addresses
from app.protocol.approval._change import Finding, Reason
from app.protocol.approval._hidden import hidden_parts, visible
from app.protocol.approval._lexicon import FOREIGN, FUNCTION_WORDS, INSTRUCTION, ORDERS, READERS, SENSITIVE, TAGS
from app.protocol.approval._names import ToolNames
from app.protocol.approval._schemas import is_wording
from app.protocol.approval._words import plain, sentences, stem, words

MAX_NEW_WORDS = 8  # content words that the approved definition has nowhere; a share of the text is added
SHARE_OF_NEW_WORDS = 0.05
MAX_LOOKED_AT = 10_000  # characters of one text: a rule holds up the whole process while it looks for its pattern
MAX_MORE_CHARACTERS = 1_000  # of all texts together, however few of its words are new
_SHOWN = 200  # characters of a sentence in a finding
_UNREADABLE_FROM = 6  # words without one of English
_MULTILINE_TAGS = re.compile(TAGS.pattern, re.IGNORECASE | re.MULTILINE)


class ApprovedText:
    """What the approved definition says already, anywhere in it."""

    def __init__(self, texts: Iterable[str]) -> None:
        whole = list(texts)
        self.texts = frozenset(whole)
        raw = [each[:MAX_LOOKED_AT] for each in whole]
        plains = [plain(each) for each in raw]
        self.sentences = frozenset(_form(sentence) for text in plains for sentence in sentences(text))
        all_words = [word for text in plains for word in words(text)]
        self.words = frozenset(all_words)
        self.stems = frozenset(map(stem, all_words))
        self.addresses = frozenset(each for text in plains for each in addresses(text))
        self.hidden = frozenset(part for text in raw for part in hidden_parts(text))
        self.tags = frozenset(found.casefold() for text in plains for found in _tags(text))
        self.scripts = _scripts(" ".join(plains))
        self.is_foreign = any(_is_foreign(words(sentence)) for text in plains for sentence in sentences(text))


class NewText:
    """Collects what is found in the strings of an offered definition that the approved one does not have."""

    def __init__(self, approved: ApprovedText, names: ToolNames, own: str) -> None:
        self._approved, self._names, self._own = approved, names, own
        self._new_words: dict[str, None] = {}  # stems, in their order; a value that is new has a rule of its own
        self.findings: list[Finding] = []

    def look_at_name(self, path: str, name: str) -> None:
        """Of a member. A new one is found by its structure; this says what else is wrong with it."""
        for part in hidden_parts(self._cut(path, name)):
            self._found(Reason.HIDDEN, path, part)

    def look(self, path: str, text: str) -> None:
        """At one string: a text or a value."""
        if text in self._approved.texts:
            return
        text = self._cut(path, text)
        for part in hidden_parts(text):
            if part not in self._approved.hidden:
                self._found(Reason.HIDDEN, path, part)
        shown = plain(text)
        for address in sorted(addresses(shown) - self._approved.addresses):
            self._found(Reason.ADDRESS, path, address)
        for tag in _tags(shown):
            if tag.casefold() not in self._approved.tags:
                self._found(Reason.INSTRUCTION, path, tag)
        is_first = True
        for sentence in sentences(shown):
            if _form(sentence) not in self._approved.sentences:
                self._look_at(path, sentence, is_first)
            is_first = False

    def look_at_title(self, path: str, title: str) -> None:
        """A title that is shown to people: it may not look like another tool's."""
        self.look(path, title)
        for name in sorted(self._names.imitated(title[:MAX_LOOKED_AT], self._own)):
            self._found(Reason.IMITATION, path, name)

    def look_at_removed(self, path: str, text: str, offered: ApprovedText) -> None:
        """An order that was approved and is gone may have been what held the model back."""
        for sentence in sentences(plain(text[:MAX_LOOKED_AT])):
            if _form(sentence) not in offered.sentences and INSTRUCTION.search(_form(sentence)):
                self._found(Reason.INSTRUCTION, path, sentence)

    def look_at_growth(self, more_characters: int) -> None:
        """Last: whether all that is new is more than an edit. `more_characters`: than the approved texts have."""
        allowed = MAX_NEW_WORDS + int(SHARE_OF_NEW_WORDS * len(self._approved.stems))
        if len(self._new_words) > allowed:
            self._found(Reason.GROWTH, "", " ".join(self._new_words))
        elif more_characters > MAX_MORE_CHARACTERS:
            self._found(Reason.GROWTH, "", f"{more_characters} characters more")

    def _look_at(self, path: str, sentence: str, is_first: bool) -> None:
        found = words(sentence)
        for reason, holds in (
            (Reason.INSTRUCTION, self._is_instruction(found, is_first)),
            (Reason.SENSITIVE, any(each in SENSITIVE and each not in self._approved.words for each in found)),
            (Reason.LANGUAGE, self._is_in_another_language(sentence, found)),
        ):
            if holds:
                self._found(reason, path, sentence)
        for name in sorted(self._names.mentioned(sentence, self._own)):
            self._found(Reason.OTHER_TOOL, path, name)
        for each in found if is_wording(path.rpartition("/")[2]) else ():
            if each not in FUNCTION_WORDS and not each.isdigit() and (new := stem(each)) not in self._approved.stems:
                self._new_words[new] = None

    def _is_instruction(self, found: list[str], is_first: bool) -> bool:
        if INSTRUCTION.search(" ".join(found)):
            return True
        if any(each in READERS and each not in self._approved.words for each in found):
            return True
        return not is_first and len(found) > 2 and found[0] in ORDERS

    def _is_in_another_language(self, sentence: str, found: list[str]) -> bool:
        if _scripts(sentence) - self._approved.scripts:
            return True
        if self._approved.is_foreign:
            return False
        return _is_foreign(found) or _is_unreadable(found)

    def _cut(self, path: str, text: str) -> str:
        if len(text) > MAX_LOOKED_AT:
            self._found(Reason.TOO_LARGE, path, f"{len(text)} characters")
        return text[:MAX_LOOKED_AT]

    def _found(self, reason: Reason, path: str, what: str) -> None:
        self.findings.append(Finding(reason, path, visible(what[:_SHOWN])))


def _form(sentence: str) -> str:
    return " ".join(words(sentence))


def _tags(text: str) -> Iterator[str]:
    for found in _MULTILINE_TAGS.finditer(text):
        yield found.group().strip()


def _scripts(text: str) -> frozenset[str]:
    """The scripts of its letters, but for Latin; Latin letters with accents count as one."""
    if text.isascii():
        return frozenset()
    letters = {each for each in text if not each.isascii() and each.isalpha()}
    return frozenset(_script(each) for each in letters)


def _script(letter: str) -> str:
    return unicodedata.name(letter, "UNKNOWN").partition(" ")[0].partition("-")[0]


def _is_foreign(found: list[str]) -> bool:
    foreign = {each for each in found if each in FOREIGN}
    return len(foreign) >= 2 and len(foreign) > len({each for each in found if each in FUNCTION_WORDS})


def _is_unreadable(found: list[str]) -> bool:
    of_letters = [each for each in found if each.isalpha() and len(each) > 1]
    return len(of_letters) >= _UNREADABLE_FROM and not any(each in FUNCTION_WORDS for each in of_letters)
