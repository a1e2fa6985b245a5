"""Logging: one JSON object a line on stderr, with the ids of the request it belongs to.

`request_id`, `tenant` and `session_id` are set where a request comes in; `extra=` of one call wins over them.
"""

import json
import logging
import math
import re
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import IO

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
tenant: ContextVar[str | None] = ContextVar("tenant", default=None)
session_id: ContextVar[str | None] = ContextVar("session_id", default=None)

_CONTEXT = {"request": request_id, "tenant": tenant, "session": session_id}
_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}

# Loggers that say more than an operator wants to know, and the least level they may use.
_QUIET = {
    "aiosqlite": logging.WARNING,
    "alembic": logging.WARNING,
    "asyncio": logging.WARNING,
    "sqlalchemy": logging.WARNING,
    "uvicorn": logging.WARNING,
    "uvicorn.access": logging.CRITICAL,  # the gateway has an access log of its own
}

# uvicorn says it as an error of the program. Ours ends an answer in the middle on purpose, where a client takes nothing
# any more or another node is lost, and says so there.
_UNFINISHED = "ASGI callable returned without completing response."

# The second wall: nothing logs credentials, and if something does after all, they do not get out.
_CREDENTIAL = re.compile(r"(tlk_[0-9A-Za-z]{8}_)[0-9A-Za-z]+|(\b[Bb]earer )[^\s\"\\]+")


class JsonFormatter(logging.Formatter):
    """A record as one line of ASCII JSON: control characters and line separators leave escaped."""

    def __init__(self, node: str | None = None) -> None:
        super().__init__()
        self._of_every_line = {} if node is None else {"node": node}

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its newline."""
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._of_every_line,
        }
        line |= {name: value for name, variable in _CONTEXT.items() if (value := variable.get()) is not None}
        line |= {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return _CREDENTIAL.sub(r"\1\2***", json.dumps(line, default=str))


def configure(level: str, stream: IO[str] | None = None, *, node: str | None = None) -> None:
    """Sends all logging to `stream` (stderr) from this level on. Replaces what was set up before.

    `node` is on every line, where several nodes write to one stream.
    uvicorn must be started with `log_config=None`, or it puts its own handlers back.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(node))
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


class Seldom:
    """For a line that would come with every request while something is away: one in EVERY_S, which says how many came
    since the last one."""

    EVERY_S = 10.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said_at, self._kept_back = -math.inf, 0

    def error(self, logger: logging.Logger, message: str) -> None:
        """Logs it, or counts it for the next time."""
        now = self._clock()
        if now - self._said_at < self.EVERY_S:
            self._kept_back += 1
            return
        logger.error("%s (%d times more since it was last said)", message, self._kept_back)
        self._said_at, self._kept_back = now, 0
