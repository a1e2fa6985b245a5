"""A pseudo-terminal for tests: what was written to it, and what its screen shows of that."""

import fcntl
import os
import pty
import re
import struct
import termios
import threading
import time
from types import TracebackType
from typing import IO, Self

ERASE = "\x1b[K"
WITHIN_S = 60.0


class Terminal:
    """Gives programs `stream` as their stderr. A thread reads, so that nobody waits who writes."""

    def __init__(self, *, columns: int = 100) -> None:
        self._ours, theirs = pty.openpty()
        self.stream: IO[bytes] = os.fdopen(theirs, "wb", buffering=0)
        self.text = os.fdopen(os.dup(theirs), "w", encoding="utf-8")  # as Python's own stderr is
        self.resize(columns)
        self._written, self._changed = bytearray(), threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stream.close()
        self.text.close()
        self._reader.join(WITHIN_S)  # ends when nobody has the other side any more
        os.close(self._ours)

    @property
    def written(self) -> str:
        return self._written.decode(errors="replace")

    @property
    def rows(self) -> list[str]:
        """The screen, without empty rows."""
        return [row for row in rows_of(self.written) if row]

    def shows(self, pattern: str) -> str:
        """Waits until a row matches; returns what has matched."""
        deadline = time.monotonic() + WITHIN_S
        with self._changed:
            while True:
                found = next((each for row in self.rows if (each := re.search(pattern, row))), None)
                if found:
                    return found[0]
                left_s = deadline - time.monotonic()
                assert left_s > 0, f"no {pattern!r} in {self.written!r}"
                self._changed.wait(left_s)

    def _read(self) -> None:
        while True:
            try:
                chunk = os.read(self._ours, 65536)
            except OSError:
                return
            with self._changed:
                self._written += chunk
                self._changed.notify_all()


def rows_of(written: str) -> list[str]:
    """What a terminal of any width makes of line feeds, carriage returns, and the one sequence that progress uses."""
    rows, at = [""], 0
    for piece in re.findall(r"\x1b\[K|\r|\n|[^\x1b\r\n]+|\x1b", written):
        if piece == "\r":
            at = 0
        elif piece == "\n":
            rows.append("")  # below the last one; what is left of the old row goes on being there
            at = 0
        elif piece == ERASE:
            rows[-1] = rows[-1][:at]
        else:
            rows[-1] = rows[-1][:at] + piece + rows[-1][at + len(piece) :]
            at += len(piece)
    return rows
