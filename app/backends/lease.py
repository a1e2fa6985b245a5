"""Leases: one session's claim on one process."""

from dataclasses import dataclass
from typing import Any, Protocol

from app.backends.backend_stock import BackendStock
from app.processes.process import BackendProcess


class LeaseHolder(Protocol):
    """What a lease tells, and whom: the pool."""

    def on_handshake(self, lease: "Lease") -> None:
        """The process has answered `initialize`."""

    def on_release(self, lease: "Lease", reason: str) -> None:
        """The session is done with the process."""


class Lease:
    """One claim on one process. Ends with `release`; the process serves nobody after that.

    `prepared` is what the pool's `prepare` made of the process of a shared backend. `was_warm`: nobody had to wait.
    """

    __slots__ = (
        "_generation",
        "_holder",
        "_is_released",
        "_is_settled",
        "has_shaken_hands",
        "link",
        "prepared",
        "stock",
        "was_warm",
    )

    def __init__(
        self,
        holder: LeaseHolder,
        stock: BackendStock,
        link: BackendProcess,
        prepared: Any = None,
        *,
        was_warm: bool = False,
    ) -> None:
        self.link, self.was_warm = link, was_warm
        self.prepared = prepared
        self._generation = stock.generation
        self._holder = holder
        self.stock = stock
        self.has_shaken_hands = False  # a process that ends by itself before has died early
        self._is_settled = False
        self._is_released = False
        stock.unproven += 1

    def __repr__(self) -> str:
        return f"<Lease {self.link!r}{' released' if self._is_released else ''}>"

    @property
    def is_current(self) -> bool:
        """Whether the backend has been neither changed nor restarted nor removed since."""
        return self._generation == self.stock.generation and not self.stock.is_forgotten

    def handshake_succeeded(self) -> None:
        """The backend has answered `initialize`: it works, so the breaker starts anew. Idempotent."""
        self.has_shaken_hands = True
        if self.settle():
            self._holder.on_handshake(self)

    def release(self, reason: str) -> None:
        """Stops the process in the background; its listener hears nothing more. Idempotent, never waits."""
        if not self._is_released:
            self._is_released = True
            self.settle()
            self._holder.on_release(self, reason)

    def settle(self) -> bool:
        """Ends the time in which it counts as unproven; returns whether that was still running."""
        if self._is_settled:
            return False
        self._is_settled = True
        self.stock.unproven -= 1
        return True


@dataclass(slots=True)
class Held:
    """A process the pool answers for."""

    stock: BackendStock
    lease: Lease | None = None
    prepared: Any = None
