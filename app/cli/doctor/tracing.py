"""Checks of traces: whether their extra is installed, and whether the collector takes what it is sent."""

import http.client
from collections.abc import Iterable
from urllib.parse import urlsplit

from app.cli.doctor.findings import Check, State
from app.settings.tracing import EXTRA, is_installed

NAME = "traces"
ANSWER_S = 3.0
_REFUSED = frozenset({401, 403})


def tracing(url: str | None, headers: Iterable[tuple[str, str]]) -> Check:
    """A node works without traces, so nothing of this is needed."""
    if url is None and not is_installed():
        return Check(NAME, State.OPTIONAL, "off, and the extra `otel` is not installed", f"For traces: {EXTRA}")
    if url is None:
        return Check(NAME, State.OK, "off; TRUNKLINE_OTLP_ENDPOINT switches them on (docs/tracing.md)")
    try:
        status = _status(url, dict(headers))
    except (OSError, http.client.HTTPException) as error:
        advice = "Check TRUNKLINE_OTLP_ENDPOINT, and that the collector runs. Until then spans are dropped."
        return Check(NAME, State.OPTIONAL, f"no answer from {url}: {str(error) or type(error).__name__}", advice)
    if status in _REFUSED:
        return Check(NAME, State.OPTIONAL, f"{url} answers {status}", "Check TRUNKLINE_OTLP_HEADERS.")
    if status >= 300:
        advice = "Check that this is the collector's address for OTLP over HTTP, usually port 4318."
        return Check(NAME, State.OPTIONAL, f"{url} answers {status}", advice)
    return Check(NAME, State.OK, f"{url} takes them")


def _status(url: str, headers: dict[str, str]) -> int:
    """The answer to a request without spans."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=ANSWER_S)
    try:
        connection.request("POST", parts.path, b"", {**headers, "content-type": "application/x-protobuf"})
        return connection.getresponse().status
    finally:
        connection.close()
