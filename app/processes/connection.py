"""BackendConnection: a process as its session sees it."""

from typing import Protocol, runtime_checkable

from app.errors import GatewayError
from app.processes.endings import Exit


class BackendListener(Protocol):
    """Called by a process from the event loop, never concurrently. Must not block or raise."""

    def backend_sent(self, line: bytes) -> None:
        """One line of the process's stdout without its newline; blank lines are skipped."""

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        """A line exceeds the limit; only up to 4 KiB of either end are kept. Called when the line has grown over the
        limit, without `end`, and again when it has ended."""

    def backend_exited(self, exit: Exit) -> None:
        """The process is gone. Called exactly once, after everything else."""


@runtime_checkable
class CallListener(BackendListener, Protocol):
    """A listener that can be told of the failure of one call: a Session, or a connection before it."""

    def backend_failed(self, call: bytes, error: GatewayError) -> None:
        """The call with this id has failed; the session goes on."""


class BackendConnection(Protocol):
    """One process, as its only session sees it."""

    def attach(self, listener: BackendListener) -> None:
        """Calls `listener` from now on, soon also for earlier lines, and for the end if the process has ended."""

    def send(self, line: bytes) -> None:
        """Writes one message (no newline in it) to the process's stdin, without waiting.

        Raises:
            BackendBusy: too much waits to be read by the process; nothing was written.
            BackendExited: the process is gone.
        """

    def pause_reading(self) -> None:
        """Stops reading stdout: its pipe fills and the process blocks. Idempotent."""

    def resume_reading(self) -> None:
        """Undoes pause_reading. Idempotent."""

    def asked_for(self, size: int) -> None:
        """Excludes this many bytes of output from the flood limit: they answered a call."""

    def heard_noise(self, line: bytes) -> None:
        """Counts a line of output that is no JSON; a process that writes too many of them is killed."""

    def answering(self) -> bytes | None:
        """The id of the call whose answer is arriving; empty if its beginning does not name one, None if no answer is
        arriving."""
