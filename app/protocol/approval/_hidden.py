"""Text that people do not see as a model reads it: invisible and look-alike letters, comments, padding, encodings."""

import re
import unicodedata
from collections.abc import Iterator

_PICTURE = ("So", "Sk")  # categories of emoji
_JOINERS = "\u200d\ufe0f\u20e3"  # between and behind emoji they are ordinary
_INVISIBLE = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u2028\u2029\u2800\u3164\uffa0\ufffc"
    + "".join(map(chr, range(0xFE00, 0xFE10)))
    + "".join(map(chr, range(0xE0100, 0xE01F0)))
)
_INVISIBLE_CATEGORIES = ("Cf", "Cc", "Co", "Cs", "Cn")
_ORDINARY_CONTROLS = "\t\n\r"
_SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "HEBREW", "ARABIC", "LISU", "GEORGIAN")

# Each is looked for in the offered text; what the approved text has as well does not count.
_PATTERNS = tuple(
    re.compile(each)
    for each in (
        r"<!--|-->",
        r"^\s{0,3}\[[^\]\n]{0,80}\]:\s*\S{0,80}",  # a reference definition of Markdown: not shown
        r"\s{40}|(?:[ \t]*\n){6}",  # pushes the rest out of view
        r"[A-Za-z0-9+/_-]{40,}={0,2}",  # an encoding; shorter ones have little room
        r"(?:\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|%[0-9A-Fa-f]{2}|&#x?[0-9A-Fa-f]{1,6};?){3}",
        r"(?:\b[0-9A-Fa-f]{2}[ ,:]){7}[0-9A-Fa-f]{2}\b",
        r"(?<!\w)(?:\w[^\w\n]{1,3}){5}\w(?!\w)",  # s p a c e d or d.o.t.t.e.d letters
        r"(?<!\w)\w(?:[.*_|~-]\w){2,}(?!\w)",
        r"(?i)display\s*:\s*none|font-size\s*:\s*0|visibility\s*:\s*hidden|opacity\s*:\s*0",
        r"(?i)<(?:details|span|div|font|img|iframe|script|style|svg|a|p|input)\b[^>]{0,200}>?",
        r"!\[[^\]\n]{0,200}\]\s?[(\[]",  # an image: its address is asked for when the text is shown
    )
)


def visible(text: str) -> str:
    """The text with characters that people do not see as `\\u{200b}`; line breaks and tabs stay."""
    return "".join(f"\\u{{{ord(each):x}}}" if _is_invisible(each) else each for each in text)


def hidden_parts(text: str) -> Iterator[str]:
    """Pieces of the text that are hidden, or not what they look like."""
    yield from _invisible_characters(text)
    yield from _look_alikes(text)
    for pattern in _PATTERNS:
        for found in pattern.finditer(text):
            yield found.group()[:80]


def _is_invisible(character: str) -> bool:
    if character.isascii():
        return (character < " " and character not in _ORDINARY_CONTROLS) or character == "\x7f"
    return character in _INVISIBLE or unicodedata.category(character) in _INVISIBLE_CATEGORIES


def _invisible_characters(text: str) -> Iterator[str]:
    if text.isascii() and text.isprintable():
        return
    for index, character in enumerate(text):
        if _is_invisible(character) and not _belongs_to_a_picture(text, index):
            yield character


def _belongs_to_a_picture(text: str, index: int) -> bool:
    """Whether this joiner or variation selector stands behind an emoji, alone."""
    if text[index] not in _JOINERS or index == 0:
        return False
    before = text[index - 1]
    return unicodedata.category(before) in _PICTURE or before in "#*0123456789" or before == "\ufe0f" != text[index]


def _look_alikes(text: str) -> Iterator[str]:
    """Words of several scripts, and letters that are another form of ordinary ones."""
    if text.isascii():
        return
    for word in re.findall(r"\w+", text):
        if not word.isascii() and len({script for each in word if (script := _script(each))}) > 1:
            yield word
    for character in text:
        if not character.isascii() and _is_disguised_letter(character):
            yield character


def _script(character: str) -> str:
    if character.isascii():
        return "LATIN" if character.isalpha() else ""
    name = unicodedata.name(character, "").partition(" ")[0]
    return name if name in _SCRIPTS else ""


def _is_disguised_letter(character: str) -> bool:
    """Fullwidth, mathematical, circled and superscript letters, ligatures: NFKC makes ASCII letters of them."""
    plain = unicodedata.normalize("NFKC", character)
    return plain != character and plain.isascii() and any(each.isalpha() for each in plain)
