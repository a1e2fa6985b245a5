"""Parsers of settings: text in, value out; the ValueError says what is wrong and what is allowed."""

import binascii
import math
import re
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

from app.text.pem import PemRefused, only_certificates

MOST_PEM_BYTES = 1 << 20
SECRET_KEY_BYTES = 32
LONGEST_S = 366 * 86_400  # of any wait: longer ones are slips, and too large for a timer
SHORTEST_S = 0.001  # an interval of nothing would be an endless loop
KEY_FORM = "32 random bytes or more, in hex or base64 (`openssl rand -hex 32` makes them)"


def whole(least: int, most: int) -> Callable[[str], int]:
    """A parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise ValueError(f"{text[:40]!r} is not a whole number; allowed are {least} to {most}")
        if not least <= int(text) <= most:
            raise ValueError(f"{text} is out of range; allowed are {least} to {most}")
        return int(text)

    return parse


def seconds(text: str) -> float:
    """A number of seconds: a millisecond at least."""
    value = delay(text)
    if value < SHORTEST_S:
        raise ValueError(f"{text[:40]!r} is not allowed; allowed are numbers of seconds from {SHORTEST_S} on")
    return value


def delay(text: str) -> float:
    """A number of seconds, or 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{text[:40]!r} is not a number of seconds; allowed are positive, finite numbers")
    if value > LONGEST_S:
        raise ValueError(f"{text[:40]!r} is more than a year; allowed are numbers of seconds up to {LONGEST_S}")
    return value


def path(text: str) -> Path:
    """An absolute path; `~` is the user's home."""
    if "\0" in text:
        raise ValueError("a path cannot contain NUL characters")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise ValueError(f"{text[:100]!r} names a user who is not known here: give an absolute path") from None
    except FileNotFoundError:
        raise ValueError("the working directory was removed: give an absolute path") from None


def program(text: str) -> str:
    """The name or the path of a program."""
    if text.startswith("-") or any(each.isspace() or each == "\0" for each in text):
        raise ValueError(f"{text[:100]!r} is not the name or the path of a program, without its arguments")
    return text


def certificates(text: str) -> str:
    """The certificates of a file."""
    file = path(text)
    try:
        if not file.is_file():
            raise ValueError(f"{str(file)!r} is no file")
        with file.open("rb") as opened:
            content = opened.read(MOST_PEM_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise ValueError(f"cannot read {str(file)!r}: {error.strerror}") from None
    try:
        return only_certificates(content)
    except PemRefused as problem:
        raise ValueError(f"{str(file)!r} {problem}") from None


def list_of(pattern: re.Pattern[str], example: str) -> Callable[[str], tuple[str, ...]]:
    """A parser of comma-separated lists. `example` shows the form of an item."""

    def parse(text: str) -> tuple[str, ...]:
        items = tuple(item.strip().lower() for item in text.split(",") if item.strip())
        for item in items:
            if not pattern.fullmatch(item):
                raise ValueError(f"{item[:200]!r} is not of the form {example}; wildcards are not allowed")
        return items

    return parse


def secret_key(text: str) -> bytes:
    """From hex or base64."""
    try:
        key = bytes.fromhex(text) if re.fullmatch(r"[0-9a-fA-F]+", text) else _from_base64(text)
    except (ValueError, binascii.Error):
        raise ValueError("it is neither hex nor base64") from None
    if len(key) < SECRET_KEY_BYTES:
        raise ValueError(f"it has {len(key)} bytes; needed are {KEY_FORM}")
    return key


def _from_base64(text: str) -> bytes:
    standard = text.replace("-", "+").replace("_", "/").rstrip("=")
    return b64decode(standard + "=" * (-len(standard) % 4), validate=True)


def one_of(*words: str) -> Callable[[str], str]:
    """A parser of these words, in upper or lower case."""

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"{text[:40]!r} is not allowed; allowed are {', '.join(words)}")
        return text.lower()

    return parse
