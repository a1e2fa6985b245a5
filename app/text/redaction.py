"""Redaction: removes credentials that reach a log line, or a backend's stderr, by accident."""

import re

# JSON may have escaped the white space.
_CREDENTIAL = re.compile(
    r"(tlk_[0-9A-Za-z]{8}_)[0-9A-Za-z]+|((?i:bearer)(?:\s|\\[tnrfb]|\\u[0-9a-fA-F]{4})+"
    r"|(?i:x-api-key)\\{0,8}[\"']?\s{0,4}[:=]\s{0,4}\\{0,8}[\"']?)[^\s\"\\]+"
)


def without_credentials(text: str) -> str:
    """The text, with `***` in place of everything that looks like an API key or a bearer token."""
    return _CREDENTIAL.sub(r"\1\2***", text)
