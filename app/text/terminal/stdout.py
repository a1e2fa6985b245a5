"""Stdout: that it is closed, or takes no more, is said in one line, and never by Python at the end of the process."""

import errno
import io
import logging
import os
import sys

from app.errors import GatewayError

_STANDARD = (0, 1, 2)

log = logging.getLogger(__name__)


class Stdout(io.TextIOWrapper):
    """The process's stdout, which remembers why a write has failed."""

    _failure: Exception | None = None  # one for the process, as its stdout

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except (OSError, UnicodeEncodeError) as error:
            Stdout._failure = error
            raise

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            Stdout._failure = error
            raise

    @classmethod
    def problem(cls, error: Exception) -> str | None:
        """Why stdout takes no more, if this error says so."""
        if isinstance(error, UnicodeEncodeError) and error is cls._failure:
            what = error.object[error.start : error.end]
            return f"{error.encoding} has no {what!a} (set PYTHONIOENCODING=utf-8)"
        if isinstance(error, OSError) and (error is cls._failure or isinstance(error, BrokenPipeError)):
            return "it is closed" if error.errno == errno.EBADF else error.strerror or str(error)
        return None


class _Closed(io.RawIOBase):
    """What the process has as stdout if it was started without one."""

    is_over = False

    def end(self) -> None:
        """Takes everything from now on, without a word."""
        self.is_over = True

    def writable(self) -> bool:
        return True

    def write(self, content: object, /) -> int:
        if not self.is_over:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return len(memoryview(content))  # type: ignore[arg-type]


def opened_streams() -> None:
    """Puts a `Stdout` in the place of the process's own. Standard streams with which it was not started lead nowhere:
    their numbers would be given to files and connections, and what is for stderr would be printed on stdout."""
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    if sys.stderr is None:
        vars(sys).update(stderr=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
    if sys.stdout is None:
        vars(sys).update(stdout=Stdout(io.BufferedWriter(_Closed()), encoding="utf-8", write_through=True))
    elif (own := sys.__stdout__) is not None and sys.stdout is own:
        raw = io.BufferedWriter(io.FileIO(own.fileno(), "wb", closefd=False))
        ours = Stdout(raw, encoding=own.encoding, errors=own.errors, line_buffering=own.isatty())
        vars(sys).update(stdout=ours)


def give_up() -> None:
    """What was not written is dropped, as is what comes: Python would fail to write it when the process ends."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Closed):
        raw.end()
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def announce(text: str, *, end: str = "\n") -> None:
    """Prints what nobody may be there to read; where that fails, a line in the log says so."""
    try:
        print(text, end=end, flush=True)
    except (OSError, UnicodeEncodeError) as error:
        log.warning("Cannot write to stdout: %s", Stdout.problem(error) or error)
        give_up()


def show_once(text: str, what: str, how_to_undo: str) -> None:
    """Prints what cannot be shown again.

    Raises:
        GatewayError: it could not be written; says how to undo what it is of.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        problem = Stdout.problem(error)
        if problem is None:
            raise
        give_up()
        hint = f"remove it: {how_to_undo}"
        raise GatewayError(f"{what} was made, and cannot be shown: stdout: {problem}", hint=hint) from None
