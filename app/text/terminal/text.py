"""Text from others, as a terminal may show it, and how wide it is there."""

import unicodedata


def printable(text: str) -> str:
    """The text with control characters escaped: others could control the terminal with them."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def columns_of(text: str) -> int:
    """The width of a text on a terminal."""
    return sum(
        2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text if not unicodedata.combining(each)
    )


def cut(text: str, width: int) -> str:
    """The beginning of a text, as much as fits."""
    while columns_of(text) > width:
        text = text[: -max(1, (columns_of(text) - width) // 2)]
    return text
