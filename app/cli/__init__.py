"""The command `trunkline`. Exit codes: 0 done, 1 failed or refused, 2 wrong usage or settings, 130 interrupted."""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

INTERRUPTED = 130

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the process's exit code."""
    with _ending_at_ctrl_c():  # importing takes a second
        from app.cli.running import run  # noqa: PLC0415
    try:
        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


@contextmanager
def _ending_at_ctrl_c() -> Iterator[None]:
    """While nothing has begun Ctrl-C ends the process; an exception would be raised within whatever is imported."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
