"""Hangup: SIGHUP asks to read the certificate again, or says that the terminal of this process was closed."""

import logging
import os
import signal
from collections.abc import Callable

log = logging.getLogger(__name__)


class Hangup:
    """Make it before SIGHUP is handled: with `nohup`, which has it ignored, the terminal does not matter."""

    def __init__(self, *, read_again: Callable[[], None] | None, stop: Callable[[], None]) -> None:
        """`read_again` is None without a certificate. `stop` is called once: shells send the signal as well."""
        self._read_again, self._stop = read_again, stop
        self._needs_terminal = has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        self._is_stopped = False

    def take(self) -> None:
        """Does what one SIGHUP asks for."""
        if self._needs_terminal and not has_terminal():
            if not self._is_stopped:
                self._is_stopped = True
                log.warning("The terminal was closed; stopping")
                self._stop()
        elif self._read_again is not None:
            self._read_again()
        else:
            log.warning("Ignoring SIGHUP: there is no TLS certificate to read again (TLS_CERT is not set)")


def has_terminal() -> bool:
    """Whether a terminal controls this process: closing it, or Ctrl-C there, sends signals."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
