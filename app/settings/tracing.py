"""Parsers of the settings for traces: text in, value out; a ValueError says what is allowed."""

import importlib.util
import math
import re
from urllib.parse import unquote, urlsplit

from app.settings._urls import AUTHORITY

EXTRA = "pip install 'trunkline[otel]'"
PATH = "/v1/traces"  # https://opentelemetry.io/docs/specs/otlp/#otlphttp-request
_PARTS = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.common.trace_encoder")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")


def is_installed() -> bool:
    """Whether the extra `otel` is there."""
    try:
        return all(importlib.util.find_spec(part) is not None for part in _PARTS)
    except (ImportError, ValueError):  # a package above it is not there
        return False


def collector(text: str) -> str:
    """The URL to which spans are sent."""
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - raises
    except ValueError:
        raise ValueError("it is not a URL; like http://127.0.0.1:4318") from None
    if parts.scheme not in ("http", "https") or not AUTHORITY.fullmatch(parts.netloc.lower()):
        raise ValueError("it is not an http or https URL without user name; like http://127.0.0.1:4318")
    if parts.query or parts.fragment or not re.fullmatch(r"[!-~]*", parts.path):
        raise ValueError("it has more than scheme, host, port and path; like http://127.0.0.1:4318")
    if not is_installed():
        raise ValueError(f"traces need what is not installed: {EXTRA}")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc.lower()}{path.removesuffix(PATH)}{PATH}"


def headers(text: str) -> tuple[tuple[str, str], ...]:
    """NAME=VALUE, comma-separated; values percent-encoded, as in OTEL_EXPORTER_OTLP_HEADERS. Errors show no value."""
    found = []
    for number, item in enumerate((each.strip() for each in text.split(",") if each.strip()), 1):
        name, equals, value = item.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not equals or not _HEADER.fullmatch(name) or not re.fullmatch(r"[ -~]*", value):
            raise ValueError(
                f"its item {number} is not of the form NAME=VALUE; in a value encode , as %2C and % as %25"
            )
        found.append((name.lower(), value))
    return tuple(found)


def ratio(text: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise ValueError(f"{text[:40]!r} is not allowed; allowed are numbers from 0 (none) to 1 (all)")
    return value
