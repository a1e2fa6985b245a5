"""What a session sees of its process: where the link to it comes from, and what it reports."""

from typing import Protocol, runtime_checkable

from app.domain import BackendSpec, Limits, Principal
from app.processes.link import BackendLink


class ProcessLink(BackendLink, Protocol):
    """A link with the id of its process."""

    @property
    def id(self) -> str: ...


class LinkLease(Protocol):
    """One session's claim on a link; ends with `release`. A link may be its own lease."""

    @property
    def link(self) -> ProcessLink: ...

    @property
    def was_warm(self) -> bool:
        """Whether the process ran already when the session asked for one."""

    def handshake_succeeded(self) -> None:
        """The backend has answered `initialize`. Idempotent."""

    def release(self, reason: str) -> None:
        """Gives the link back; its listener is not called any more. Idempotent, never waits."""


class LinkSource(Protocol):
    """Leases links (ProcessLeasing)."""

    async def lease(self, spec: BackendSpec, limits: Limits, principal: Principal) -> LinkLease:
        """A link to a process of this backend, for a session of this principal.

        Raises:
            BackendError, ShuttingDown: no process is available.
        """


@runtime_checkable
class StepGate(Protocol):
    """A listener whose tenant's limits hold for the calls of recipes too: a Session."""

    def step_begins(self, call: bytes) -> None:
        """A recipe that works on this call is about to call a tool; counted until `step_ends`.

        Raises:
            QuotaExceeded, Overloaded, RateLimited: as for a call of the client.
            CredentialExpired, RoutesUnavailable: it may not go on.
        """

    def step_ends(self) -> None:
        """Undoes `step_begins`."""
