"""BackendLink: all that a session knows of the process behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. `reason` is a closed set: exited, signaled, spawn_failed, spawner_lost, stopped, killed."""

    reason: str
    description: str  # for people: "exit status 3", "signal 9 (SIGKILL)", "No such file or directory: 'uvx'"
    stderr: Sequence[str] = ()


class BackendListener(Protocol):
    """Who hears a process. Calls come from the event loop, never concurrently, and must not block or raise."""

    def backend_sent(self, line: bytes) -> None:
        """One whole line of the process's stdout, without its newline; blank lines are left out."""

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        """A line over the limit is discarded, but for up to 4 KiB of either end: told once when it has grown over the
        limit, without its end, and once more when it has ended."""

    def backend_exited(self, exit: Exit) -> None:
        """The process is gone; nothing more will be heard of it. Called exactly once."""


class BackendLink(Protocol):
    """One process, as its only session sees it."""

    def attach(self, listener: BackendListener) -> None:
        """From now on `listener` hears the process. If it has died already, `backend_exited` comes soon after."""

    def send(self, line: bytes) -> None:
        """Writes one message (no newline in it) to the process's stdin, without waiting.

        Raises:
            BackendBusy: more than the write limit is waiting to be read by the process; nothing was written.
            BackendExited: the process is gone.
        """

    def pause_reading(self) -> None:
        """Stops reading the process's stdout, so that its pipe fills and it waits. Idempotent."""

    def resume_reading(self) -> None:
        """Undoes pause_reading. Idempotent."""

    def asked_for(self, size: int) -> None:
        """So many bytes of its output were the answer to a call: they do not count as a flood."""

    def answering(self) -> bytes | None:
        """The id of the call whose answer has begun to arrive and is not whole yet; empty where it does not say so
        at its beginning, None where nothing has begun that is an answer."""
