"""Text to words, and words to their stems. For English; other languages get their words as they are written."""

import re
import unicodedata
from itertools import islice
from operator import add

TERMS_KEPT = 50_000  # words; a catalogue of 3,000 tools has about 10,000. Then all are forgotten and found again
MAX_QUERY = 2_000  # characters
MAX_WORD = 40  # characters; what is longer is data (a key, a hash), and is dropped

# What nearly every question and description has, and what every document here is.
_STOP = """
a about all also am an and any are as at be been but by can could do does for from had has have he her his how i if in
into is it its just let like may me more most my need no not of on one only or other our out over please she should so
some such than that the their them then there these they this those to too up us use used uses using via want was way
we were what when where which while who will with within would you your
mcp server servers tool tools assistant
"""
STOP_WORDS = frozenset(_STOP.split())
NOT_PLURAL = frozenset({"news"})

_DASH = {code: " " for code in range(128) if not chr(code).isalnum()}
_ASCII = str.maketrans({**{chr(code): " " for code in _DASH}, **{chr(code): chr(code + 32) for code in range(65, 91)}})

# Thai, Lao, Burmese, Khmer, Japanese and Chinese put no space between words: theirs are pairs of characters.
FIRST_UNSPACED = "\u0e00"
_SCRIPTS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_UNSPACED = re.compile(f"[{_SCRIPTS}]")
_WORD = re.compile(rf"[{_SCRIPTS}]+|[^\W_{_SCRIPTS}]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def words_of(text: str) -> list[str]:
    """In lower case, in order, as they are written: no stems yet, and nothing left out."""
    if text.isascii():
        return text.translate(_ASCII).split()
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", text)
    words = _WORD.findall(text.casefold())
    return _with_pairs(words) if _UNSPACED.search(text) else words


def _with_pairs(words: list[str]) -> list[str]:
    found: list[str] = []
    for word in words:
        if word < FIRST_UNSPACED or len(word) == 1:
            found.append(word)
        else:
            found.extend(map(add, word, word[1:]))
    return found


def split_name(name: str) -> str:
    """`getUserById` as itself and as the words it is made of; nothing is added to `get_user-by.id`."""
    if name.islower():
        return name
    parts = _HUMP.sub(" ", name)
    return name if parts == name else f"{name} {parts}"


class _Terms(dict[str, str]):
    """What a word is filed under: its stem; "" for a word that says nothing. A hit runs no line of Python."""

    def __missing__(self, word: str) -> str:
        if len(word) > MAX_WORD:
            return ""
        if len(self) >= TERMS_KEPT:
            self.clear()
        term = self[word] = _term(word)
        return term


term_of = _Terms().__getitem__


def terms_of(query: str, most: int) -> list[str]:
    """What a query asks for: at most so many terms, each once, in order. Its first MAX_QUERY characters are read."""
    words = words_of(split_name(query[:MAX_QUERY]))
    return list(islice(dict.fromkeys(filter(None, map(term_of, words))), most))


def _term(word: str) -> str:
    if word in STOP_WORDS or (len(word) == 1 and word.isascii()):
        return ""
    return _stem(word) if word.isascii() and word.isalpha() else word


def _stem(word: str) -> str:
    if len(word) <= 3:
        return word
    word = _without_plural(word)
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            if word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    if word.endswith("ion") and len(word) >= 7:
        word = word[:-3]
    if word.endswith("e") and len(word) >= 4:
        return word[:-1]
    return word[:-1] + "i" if word.endswith("y") and len(word) >= 4 else word


def _without_plural(word: str) -> str:
    if not word.endswith("s") or word.endswith(("ss", "us", "is")) or word in NOT_PLURAL:
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("xes", "ches", "shes", "sses")) else word[:-1]
