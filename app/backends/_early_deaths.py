"""Processes that did not start, or ended before their handshake: the breaker counts them, waiting callers are refused,
and the `FailureLog` keeps why.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from app.backends._breaker import Breaker
from app.backends._waiting_callers import WaitingCallers
from app.backends.failures import FailureLog
from app.backends.inventory import BackendStock, Held, Lease
from app.errors import BackendExited, BackendUnavailable, GatewayError
from app.processes.process import BackendProcess
from app.telemetry.metrics import Metrics

_EARLY = ("exited", "signaled", "killed")  # "stopped" is no early death

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class EarlyDeaths:
    """Passes on what the pool's parts report, to the backend's breaker, to waiting callers and to the log."""

    _waiting: WaitingCallers
    _failures: FailureLog
    _metrics: Metrics
    _clock: Callable[[], float]
    new_breaker: Callable[[], Breaker]

    def refuse_one_more(self, stock: BackendStock, patience_s: float) -> None:
        """For a new caller, who would wait for so long, while the breaker limits starts.

        Raises:
            BackendUnavailable: the breaker is open, or the next start is later than that.
        """
        breaker, now = stock.breaker, self._clock()
        if breaker.retry_after_s(now) > patience_s or (breaker.is_open and stock.allowance(now) == 0):
            raise self._unavailable(stock)

    def held_back(self, stock: BackendStock) -> BackendUnavailable | None:
        """The error for a caller who has waited in vain, if it was for this."""
        is_cause = stock.breaker.is_failing and stock.allowance(self._clock()) == 0
        return self._unavailable(stock) if is_cause else None

    # --- what has happened

    def not_started(self, stock: BackendStock, error: BackendExited) -> None:
        """The command could not be executed."""
        self._failures.not_started(stock.spec, ": ".join([str(error), *error.stderr]))
        self._waiting.refuse_next(stock, error)
        self._count(stock, str(error), tuple(error.stderr))

    def not_prepared(self, process: BackendProcess, stock: BackendStock, error: GatewayError) -> None:
        """The process of a shared backend failed at `initialize`."""
        self._waiting.refuse_next(stock, error)
        if process.exit is None:  # else its end was counted already
            self._failures.not_initialized(process, str(error))
            self._count(stock, str(error))

    def ended(self, process: BackendProcess, held: Held) -> None:
        """To be called before its sessions hear of it: afterwards it is no longer known which they were."""
        if not held.is_excused:
            self._failures.ended(process, before_handshake=held.is_before_handshake)

    def gone(self, process: BackendProcess, held: Held) -> None:
        """To be called after its session has heard of it, and may have released the lease."""
        stock = held.stock
        is_current = process.spec.version == stock.spec.version and not stock.is_forgotten
        assert process.exit is not None
        is_early = held.is_before_handshake and not held.is_excused
        if is_early and is_current and process.exit.reason in _EARLY:
            self._count(stock, process.exit.description, tuple(process.exit.stderr))

    def works(self, lease: Lease) -> bool:
        """A lease's handshake succeeded while the breaker limits starts; returns whether that proves the backend as now
        configured."""
        stock = lease.stock
        if lease.connection.spec.version != stock.spec.version:
            return False
        if stock.breaker.succeeded():
            self._metrics.breaker_open.dec()
            logger.info("Backend works again; the breaker is closed", extra=stock.log_fields)
        return True

    def forget(self, stock: BackendStock) -> None:
        """Gives the backend a new breaker."""
        if stock.breaker.is_open:
            self._metrics.breaker_open.dec()
        stock.deaths_forgotten(self.new_breaker())

    def _count(self, stock: BackendStock, why: str, stderr: tuple[str, ...] = ()) -> None:
        now = self._clock()
        if stock.died_early(why, stderr or (why,), now):
            self._metrics.breaker_open.inc()
            logger.error("Backend keeps dying at its start: it is not started for a while", extra=stock.log_fields)
        next_at = math.inf if stock.breaker.is_open else now + stock.breaker.retry_after_s(now)
        self._waiting.refuse_all(stock, lambda: self._unavailable(stock), who_leave_before=next_at)

    def _unavailable(self, stock: BackendStock) -> BackendUnavailable:
        # When the delay is over a trial is under way, which will be decided soon.
        retry_after_s = stock.breaker.retry_after_s(self._clock())
        then = f"it is started again in {math.ceil(retry_after_s)} s" if retry_after_s else "it is being tried again"
        words = f"the backend keeps dying right after its start, the last time with: {stock.why}; {then}"
        return BackendUnavailable(words, stderr=stock.stderr).again_after(retry_after_s or 1.0)
