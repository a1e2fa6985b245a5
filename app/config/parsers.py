"""Values as settings write them: text in, value out; a ValueError says what is wrong and what is allowed."""

import binascii
import math
import re
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
ACCESS_LOGS = ("off", "errors", "all")
SECRET_KEY_BYTES = 32


def whole(least: int, most: int) -> Callable[[str], int]:
    """A parser of whole numbers in these bounds."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise ValueError(f"{text[:40]!r} is not a whole number; allowed are {least} to {most}")
        if not least <= int(text) <= most:
            raise ValueError(f"{text} is out of range; allowed are {least} to {most}")
        return int(text)

    return parse


def seconds(text: str) -> float:
    """More than none."""
    value = _number(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{text[:40]!r} is not a number of seconds; allowed are positive, finite numbers")
    return value


def delay(text: str) -> float:
    """Seconds, or none."""
    value = _number(text)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{text[:40]!r} is not a number of seconds; allowed are 0 and positive, finite numbers")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def path(text: str) -> Path:
    """Made absolute; `~` is the home of the user."""
    if "\0" in text:
        raise ValueError("a path has no NUL character")
    return Path(text).expanduser().absolute()


def list_of(pattern: re.Pattern[str], example: str) -> Callable[[str], tuple[str, ...]]:
    """A parser of lists whose items have a form."""

    def parse(text: str) -> tuple[str, ...]:
        items = tuple(item.strip().lower() for item in text.split(",") if item.strip())
        for item in items:
            if not pattern.fullmatch(item):
                raise ValueError(f"{item[:200]!r} is not of the form {example}; wildcards are not allowed")
        return items

    return parse


def secret_key(text: str) -> bytes:
    """Hex or base64."""
    try:
        key = bytes.fromhex(text) if re.fullmatch(r"[0-9a-fA-F]+", text) else _from_base64(text)
    except (ValueError, binascii.Error):
        raise ValueError("it is neither hex nor base64") from None
    if len(key) < SECRET_KEY_BYTES:
        raise ValueError(
            f"it has {len(key)} bytes; needed are {SECRET_KEY_BYTES} random bytes or more, in hex or base64 "
            "(`openssl rand -hex 32` makes them)"
        )
    return key


def _from_base64(text: str) -> bytes:
    standard = text.replace("-", "+").replace("_", "/").rstrip("=")
    return b64decode(standard + "=" * (-len(standard) % 4), validate=True)


def access_log(text: str) -> str:
    """Which requests are written down."""
    if text.lower() not in ACCESS_LOGS:
        raise ValueError(f"{text[:40]!r} is none of {', '.join(ACCESS_LOGS)}")
    return text.lower()


def log_level(text: str) -> str:
    """From which level on."""
    if text.lower() not in LOG_LEVELS:
        raise ValueError(f"{text[:40]!r} is not a level; allowed are {', '.join(LOG_LEVELS)}")
    return text.lower()
