"""One backend's stock of processes: how many there are, and those that nobody has leased."""

from collections import deque
from dataclasses import dataclass, field

from app.backends import plan
from app.backends.breaker import Breaker
from app.domain import BackendSpec
from app.processes.process import BackendProcess


@dataclass(slots=True, eq=False)
class BackendStock:
    """One backend's processes, in numbers; only those nobody has leased are held by name."""

    spec: BackendSpec
    breaker: Breaker
    warm: deque[BackendProcess] = field(default_factory=deque)
    alive: int = 0
    starting: int = 0
    unproven: int = 0  # leased, and the handshake has not succeeded yet
    refill_at: float = 0.0
    reclaim_at: float = 0.0  # until then no session of it has been idle for long enough to make room
    is_filled: bool = False  # once: the first filling is not spaced out
    is_forgotten: bool = False
    generation: int = 0  # grows when processes of now are no longer those to hand out
    stderr: tuple[str, ...] = ()  # the last words of the process that died early last

    @property
    def key(self) -> plan.Key:
        """The backend it belongs to."""
        return self.spec.key

    @property
    def log_fields(self) -> dict[str, object]:
        """Which backend a log line is about."""
        return {"backend": self.spec.name, "backend_tenant": self.spec.tenant}

    @property
    def warm_target(self) -> int:
        """How many processes should wait for a session."""
        return self.spec.warm if self.spec.enabled and not self.is_forgotten else 0

    def allowance(self, now: float) -> int | None:
        """How many more processes the breaker lets start; None is any number."""
        allowed = self.breaker.allowance(now, unproven=self.unproven, warm=len(self.warm))
        return allowed if allowed is None else max(0, allowed - self.starting)

    def numbers(self, now: float, stopping: int = 0) -> plan.BackendNumbers:
        """What a plan is made from."""
        return plan.BackendNumbers(
            max_processes=self.spec.max_processes,
            alive=self.alive,
            stopping=stopping,
            warm=len(self.warm),
            starting=self.starting,
            warm_target=self.warm_target,
            start_allowance=self.allowance(now),
            refill_at=self.refill_at,
        )
