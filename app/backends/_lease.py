"""Leases: one session's claim on one process."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from app.backends._backend_stock import BackendStock
from app.processes.process import BackendProcess


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """One session's claim on one process, which serves nobody else after `release`.

    `prepared` is what the pool's `prepare` returned for the process of a shared backend. `asked_at`: when the caller
    came, by the pool's clock. `was_warm`: it did not wait. `on_handshake` is called once, when the process has answered
    `initialize`.
    """

    stock: BackendStock
    link: BackendProcess
    prepared: Any
    asked_at: float
    was_warm: bool
    on_handshake: Callable[["Lease"], None]
    on_release: Callable[["Lease", str], None]
    has_shaken_hands: bool = False
    was_probed: bool = False
    _generation: int = field(init=False)
    _is_settled: bool = False
    _is_released: bool = False

    def __post_init__(self) -> None:
        self._generation = self.stock.generation
        self.stock.handshake_begun()

    @property
    def is_current(self) -> bool:
        """Whether the backend has not been changed, restarted or removed since."""
        return self._generation == self.stock.generation and not self.stock.is_forgotten

    def probed(self) -> None:
        """As links.source.Probed."""
        self.was_probed = True

    def handshake_succeeded(self) -> None:
        """The process has answered `initialize`: the backend works, so its breaker is reset. Idempotent."""
        self.has_shaken_hands = True
        if self.settle():
            self.on_handshake(self)

    def release(self, reason: str) -> None:
        """Stops the process in the background; its listener is called no more. Idempotent, never waits."""
        if not self._is_released:
            self._is_released = True
            self.settle()
            self.on_release(self, reason)

    def settle(self) -> bool:
        """Stops counting the process as unproven; returns whether it still was."""
        if self._is_settled:
            return False
        self._is_settled = True
        self.stock.handshake_over()
        return True


@dataclass(slots=True)
class Held:
    """A process that the pool answers for."""

    stock: BackendStock
    lease: Lease | None = None
    prepared: Any = None

    @property
    def is_before_handshake(self) -> bool:
        """Whether its end, now, would be an early death."""
        return self.lease is None or not self.lease.has_shaken_hands

    @property
    def is_excused(self) -> bool:
        """Whether it may end because of what the gateway has asked."""
        return self.lease is not None and self.lease.was_probed and self.is_before_handshake

    def became_ready(self, prepared: Any) -> None:
        """The process of a shared backend can serve sessions."""
        self.prepared = prepared

    def leased(self, lease: Lease) -> Lease:
        self.lease = lease
        return lease
