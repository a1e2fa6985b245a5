"""Logging: one JSON object a line on stderr, with what is known of the request it belongs to.

`current` is set where a request comes in; the `extra=` of a log call has precedence.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Hashable, Mapping
from contextvars import Context, ContextVar
from typing import BinaryIO, Protocol

from app.telemetry.tracing.context import Traced
from app.text.redaction import without_credentials
from app.text.terminal.output import Output


class Ids(Traced, Protocol):
    """The ids of a request."""

    def names(self) -> tuple[str, str]:
        """The request id and the trace id."""


class LogContext:
    """The fields of one request's log lines, computed only when a line is written, and its ids.

    Tasks and callbacks that the request has started keep the context after `end`; it has no fields then.
    """

    __slots__ = ("_fields", "ids")

    def __init__(self, fields: Callable[[], Mapping[str, object]], ids: Ids | None = None) -> None:
        self._fields: Callable[[], Mapping[str, object]] | None = fields
        self.ids = ids

    def fields(self) -> Mapping[str, object]:
        return {} if self._fields is None else self._fields()

    def end(self) -> None:
        """The request is over."""
        self._fields = self.ids = None


current: ContextVar[LogContext | None] = ContextVar("current", default=None)

_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}

# Loggers that say more than an operator wants to know, with their lowest level.
_QUIET = {
    "aiosqlite": logging.WARNING,
    "alembic": logging.WARNING,
    "asyncio": logging.WARNING,
    "authlib": logging.WARNING,  # writes every token that is issued
    "httpcore2": logging.WARNING,  # writes the headers of every answer
    "httpx2": logging.WARNING,  # writes every request
    "opentelemetry": logging.ERROR,  # writes what is wrong with the `tracestate` of clients
    "sqlalchemy": logging.WARNING,
    "sse_starlette": logging.WARNING,  # writes every answer
    "uvicorn": logging.WARNING,
    "uvicorn.access": logging.CRITICAL,  # the gateway has an access log of its own
}

# uvicorn logs this as an error of the application. Ours ends an answer in the middle on purpose, where a client no
# longer reads or another node is lost, and logs that itself.
_UNFINISHED = "ASGI callable returned without completing response."

log = logging.getLogger(__name__)


stderr = Output()


class _Text:
    """An output, as the stream of a StreamHandler."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def write(self, line: str) -> None:
        self._output.write(line.encode("ascii"))


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of ASCII JSON: control characters and line separators are escaped."""

    def __init__(self, of_every_line: Mapping[str, object]) -> None:
        super().__init__()
        self._of_every_line = of_every_line

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._of_every_line,
        }
        context = current.get()
        if context is not None:
            line |= context.fields()
        line |= {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return without_credentials(json.dumps(line, default=str, separators=(",", ":")))


def configure(level: str, stream: BinaryIO | None = None, *, of_every_line: Mapping[str, object] | None = None) -> None:
    """Sends all logging from this level on to `stream` (default: stderr). Replaces what was set up before.

    `of_every_line` are fields of every line: which node writes. uvicorn must be started with `log_config=None`, or it
    installs its own handlers again.
    """
    handler = logging.StreamHandler(_Text(stderr if stream is None else Output(stream)))
    handler.setFormatter(JsonFormatter(of_every_line or {}))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    for name, least in _QUIET.items():
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(max(least, root.level))


def _is_news(record: logging.LogRecord) -> bool:
    return record.getMessage() != _UNFINISHED


def _free_name(name: str) -> str:
    """The name as a key of `extra`, where names of the record's own attributes are not allowed."""
    return f"{name}_" if name in _OF_EVERY_RECORD else name


class Seldom:
    """Logs a line that every request would cause during an outage once in EVERY_S, with how many were left out."""

    EVERY_S = 10.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said_at, self._kept_back = -math.inf, 0

    def error(self, logger: logging.Logger, message: str) -> None:
        """Logs the message, or counts it for the next time."""
        now = self._clock()
        if now - self._said_at < self.EVERY_S:
            self._kept_back += 1
            return
        logger.error("%s (%d more since the last such line)", message, self._kept_back)
        self._said_at, self._kept_back = now, 0


class Thinned:
    """Logs at most PER_S lines of each kind a second, and a second later how many were left out.

    At most MAX_KINDS kinds a second are told apart; all others count as one. On the event loop only.
    """

    PER_S, MAX_KINDS = 20, 1000

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._since = -math.inf
        self._lines: dict[Hashable, int] = {}
        self._left_out: dict[Hashable, tuple[str, int]] = {}

    def info(self, kind: Hashable, message: str, fields: Mapping[str, object]) -> None:
        """Logs `message` with these fields, or counts it."""
        if not self._logger.isEnabledFor(logging.INFO):
            return
        now = time.monotonic()
        if now - self._since >= 1.0:
            self._tell()
            self._since = now
        if kind not in self._lines and len(self._lines) >= self.MAX_KINDS:
            kind = None
        count = self._lines[kind] = self._lines.get(kind, 0) + 1
        if count > self.PER_S:
            if not self._left_out:
                asyncio.get_running_loop().call_later(self._since + 1.0 - now, self._tell, context=Context())
            self._left_out[kind] = message, count - self.PER_S
            return
        self._logger.info(message, extra={_free_name(name): value for name, value in fields.items()})

    def _tell(self) -> None:
        left_out, self._lines, self._left_out = self._left_out, {}, {}
        for message, count in left_out.values():
            self._logger.info("%s (and %d more within a second)", message, count, extra={"more": count})
