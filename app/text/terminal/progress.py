"""Progress: what a command is doing, in one line of a terminal that is rewritten in place and removed at the end.

Where stderr is no terminal (a pipe, CI, systemd), or one that cannot erase a line (`TERM=dumb`), none of this writes
anything. It has no colour, so `NO_COLOR` changes nothing.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Self, TextIO

from app.text.terminal.output import Unblocked
from app.text.terminal.text import cut, printable

FIRST_S = 1.0  # what is done sooner needs no line
LOOK_S = 0.2  # between two looks whether the line has changed
WIDTH = 80  # of a terminal that does not know its own
MOST = 400  # characters of a line: accents have no width, and there may be many

_ERASE = "\r\x1b[K"


class Line:
    """The line itself. The cursor stays at its beginning, so that whatever else is written there replaces it: log
    lines, those of child processes too, and the echo of Ctrl-C."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """`stream` is stderr by default."""
        self._descriptor = _terminal(sys.stderr if stream is None else stream)
        # Of a terminal that stands still (Ctrl-S, a lost connection) nobody waits for the line.
        self._output = None if self._descriptor is None else Unblocked(self._descriptor, os.fstat(self._descriptor))
        self._is_shown = False

    @property
    def is_possible(self) -> bool:
        return self._descriptor is not None

    def show(self, text: str) -> None:
        """Replaces the line. In the background, as after Ctrl-Z and `bg`, nothing is shown."""
        if self._descriptor is None or not _is_in_front(self._descriptor):
            return
        width = _width(self._descriptor) - 1  # the last column would have some terminals begin a new line
        self._write(f"{_ERASE}{cut(printable(text[:MOST]), width)}\r")
        self._is_shown = True

    def clear(self) -> None:
        """Removes the line, if it is there."""
        if self._is_shown:
            self._is_shown = False
            self._write(_ERASE)

    def _write(self, text: str) -> None:
        # Not through `sys.stderr`: what is in its buffer is not this thread's business.
        assert self._output is not None
        with suppress(OSError):  # the terminal is gone
            self._output.write(text.encode("utf-8", "replace"))


class Progress:
    """What a command is doing, from its second second on. As a context manager it removes the line at the end, also
    after an error or Ctrl-C: what the command prints then stands alone.

    Where there is a terminal a thread draws the line, because what takes long is often one call into a library.
    """

    def __init__(self, line: Line | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._line, self._clock = Line() if line is None else line, clock
        self._lock, self._over = Lock(), Event()
        self._doing = ("", clock())
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        if self._line.is_possible:
            self._thread = Thread(target=self._keep_drawing, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        try:
            if self._thread is not None:
                self._thread.join()
        finally:
            self._line.clear()

    @property
    def is_possible(self) -> bool:
        """Whether anybody sees it."""
        return self._line.is_possible

    def begin(self, doing: str) -> None:
        """What the command does from now on, such as `checking 3 of 7: redis`."""
        self._doing = (doing, self._clock())

    def say(self, line: str) -> None:
        """Prints a line on stderr that stays, above the progress."""
        with self._lock:
            self._line.clear()
            print(printable(line), file=sys.stderr, flush=True)

    def _keep_drawing(self) -> None:
        drawn, wait_s = "", FIRST_S
        while not self._over.wait(wait_s):
            wait_s = LOOK_S
            text = self._words()
            if text != drawn:
                with self._lock:
                    self._line.show(text)
                drawn = text

    def _words(self) -> str:
        doing, since = self._doing
        seconds = int(self._clock() - since)
        return f"{doing} ({seconds} s)" if doing and seconds else doing


def _terminal(stream: TextIO | None) -> int | None:
    """The descriptor of a terminal that can erase a line; None if it is none."""
    try:
        if stream is None or not stream.isatty() or os.environ.get("TERM", "") in ("", "dumb"):
            return None
        return stream.fileno()
    except (OSError, ValueError):  # it has no descriptor, or is closed
        return None


def _is_in_front(descriptor: int) -> bool:
    """Whether this process is in the foreground; also where that terminal is not the one that controls it."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True


def _width(descriptor: int) -> int:
    try:
        return os.get_terminal_size(descriptor).columns or WIDTH
    except OSError:
        return WIDTH
