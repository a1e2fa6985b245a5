"""Words and sentences of a text, read as a model reads it: whatever hides them from people is taken away first."""

import re
import unicodedata
from collections.abc import Iterator

# Letters that look like Latin ones: enough for names, whose disguise is the danger.
_LOOK_ALIKE = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u04bb\u0501\u051b\u051d\u0432\u043a\u043c\u043d\u0442"
    "\u03b1\u03b5\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7\u0131\u0261\u057d\u0578\u0585",
    "aeopcyxijshdqwbkmht" + "aeikvoptuxigsno",
)
_DROPPED = ("Cf", "Mn", "Co", "Cn", "Cs")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
# Ends of lines do not end a sentence (descriptions are wrapped), empty lines and items of a list do.
_SENTENCE_END = re.compile(r"(?<=[.!?\u3002\uff01\uff1f])\s*(?=\s|[^\x00-\x7f])|;|\n\s*(?:\n|(?=[-*\u2022#\d]))|:\s")


def plain(text: str) -> str:
    """In the compatibility form, without characters that are not seen."""
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", text).replace("\u2019", "'")
    return "".join(each for each in text if unicodedata.category(each) not in _DROPPED)


def words(text: str) -> list[str]:
    """Of a plain text: in lower case, without apostrophes."""
    return [each.replace("'", "").casefold() for each in _WORD.findall(text)]


def sentences(text: str) -> Iterator[str]:
    """Of a plain text: what stands between full stops, semicolons, colons, items of a list and paragraphs."""
    for each in _SENTENCE_END.split(text):
        if each and (sentence := each.strip()):
            yield sentence


def key(name: str) -> str:
    """What is left of a name when spelling, separators and look-alike letters do not count."""
    decomposed = unicodedata.normalize("NFKD", plain(name)).casefold().translate(_LOOK_ALIKE)
    return "".join(each for each in decomposed if each.isalnum())


def stem(word: str) -> str:
    """Without the endings of a plural or a verb, so that `sends` is not new beside `send`. Crude on purpose."""
    for ending in ("ings", "ing", "ies", "es", "ed", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word.removesuffix(ending)
    return word
