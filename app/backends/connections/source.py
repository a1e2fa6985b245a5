"""What a session sees of its process: where the connection to it comes from, and what it reports."""

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from app.domain import BackendSpec, Limits, Principal
from app.domain.resources.guides import Guide
from app.domain.resources.recipes import Recipe
from app.errors import BackendExited, GatewayError
from app.processes.connection import BackendConnection
from app.processes.endings import Exit


class NoProcess:
    """The lease of a connection that has no process yet, or none for now; and its connection."""

    id, was_warm = "", False

    @property
    def connection(self) -> "NoProcess":
        return self

    def send(self, line: bytes) -> None:
        raise BackendExited

    def _do_nothing(self, *args: object, **named: object) -> None:
        pass

    attach = pause_reading = resume_reading = asked_for = heard_noise = answering = _do_nothing
    handshake_succeeded = release = _do_nothing


class ProcessConnection(BackendConnection, Protocol):
    """A connection with the id of its process."""

    @property
    def id(self) -> str: ...


class ConnectionLease(Protocol):
    """One session's claim on a connection; ends with `release`. A connection may be its own lease."""

    @property
    def connection(self) -> ProcessConnection: ...

    @property
    def was_warm(self) -> bool:
        """Whether the process ran already when the session asked for one."""

    def handshake_succeeded(self) -> None:
        """The backend has answered `initialize`. Idempotent."""

    def release(self, reason: str) -> None:
        """Gives the connection back; its listener is not called any more. Idempotent, never waits."""


@runtime_checkable
class Probed(Protocol):
    """A lease of a process that may end because of what the gateway asks it."""

    def probed(self) -> None:
        """The process is asked which revision it speaks, as nobody knows. Older servers end at a first message that is
        not `initialize`: if this one ends before a handshake, that counts for nothing."""


@runtime_checkable
class CallerSeen(Protocol):
    """A lease that depends on who uses it."""

    def caller_is(self, principal: Principal) -> None:
        """What the principal of the session may use may be something else now."""


class ConnectionSource(Protocol):
    """Leases connections (ProcessLeasing)."""

    async def lease(self, spec: BackendSpec, limits: Limits, principal: Principal) -> ConnectionLease:
        """A connection to a process of this backend, for a session of this principal.

        Raises:
            BackendError, ShuttingDown: no process is available.
        """


class Keeper(Protocol):
    """Who has parked or frozen a connection: it is told once how that ended, with `woken` or `gone`. Must not raise."""

    def stopped(self, error: OSError | None) -> None:
        """The process of a connection that was frozen stands still, or cannot be stopped: then `gone` follows. By then
        it may have been thawed, or given back."""

    def woken(self, *, was_warm: bool, waited_s: float) -> None:
        """The connection has a process again, or its process goes on, after a message had waited for so long."""

    def not_woken(self, error: GatewayError) -> None:
        """There was no process for a message, which has failed without being sent: the connection stays parked. Or a
        frozen one cannot go on: then it ends."""

    def gone(self) -> None:
        """The connection was given back, or its process could not be stopped."""


@runtime_checkable
class Parkable(Protocol):
    """A lease whose connection lives on without its process, or while that stands still."""

    def park(self, keeper: Keeper, with_news: bool = True) -> bool:
        """Gives the process back, or stops it, until the next message; returns whether it did. It does not while
        something is under way that the next process would know nothing of, or this one could not do. `with_news`:
        after another process was taken, the session is told that lists may have changed."""

    @property
    def has_process(self) -> bool:
        """Whether there is one to give back: not while it is parked, or waits for another one."""

    def unsent(self) -> Collection[bytes]:
        """The ids of requests that wait for a process."""


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


class MemberSide(Protocol):
    """The toolset's connection, as its members see it."""

    @property
    def hello(self) -> dict[str, msgspec.Raw]:
        """The params of the session's `initialize`."""

    def opened(self, member: int) -> Iterable[bytes]:
        """The member is initialized: the lines that it gets next."""

    def member_sent(self, member: int, line: bytes, among: tuple[bytes, ...] | None = None) -> None:
        """A line of the member. With `among` it is a question that belongs to one of these calls."""

    def member_sent_too_much(self, member: int, beginning: bytes, end: bytes) -> None:
        """As BackendListener.backend_sent_too_much."""

    def member_failed(self, call: bytes, error: GatewayError) -> None:
        """A call that was passed to the member has failed."""

    def member_lost(self, member: int, error: GatewayError, exit: Exit | None) -> None:
        """The process is gone, or could not be started."""


class Written(Protocol):
    """What administrators of a tenant have written."""

    @property
    def guides(self) -> Sequence[Guide]: ...

    @property
    def recipes(self) -> Sequence[Recipe]: ...


class Writings(Protocol):
    """Of all tenants (`catalog.knowledge.Knowledge`)."""

    async def of(self, tenant: str) -> Written:
        """What the tenant has: the same object as long as nothing has changed. Raises StorageUnavailable."""

    def cached(self, tenant: str) -> Written:
        """As `of`, without waiting."""
