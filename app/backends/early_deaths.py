"""Processes that were of no use: they did not start, or ended before a handshake. Who waited for one is told, the
breaker counts them, and the `FailureLog` keeps why.
"""

import logging
from collections.abc import Callable
from functools import partial

from app.backends.backend_stock import BackendStock
from app.backends.breaker import Breaker
from app.backends.failures import FailureLog
from app.backends.lease import Held, Lease
from app.backends.waiting_callers import WaitingCallers
from app.errors import BackendExited, BackendUnavailable, GatewayError
from app.metrics import Metrics
from app.processes.process import BackendProcess

_EARLY = ("exited", "signaled", "killed")  # one that was stopped is no early death

logger = logging.getLogger(__name__)


class EarlyDeaths:
    """What the parts of the pool tell it is told to the stock's breaker, to callers and to the log."""

    def __init__(
        self,
        waiting: WaitingCallers,
        failures: FailureLog,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self._waiting = waiting
        self._failures = failures
        self._breaker_open = metrics.breaker_open
        self._clock = clock
        self.new_breaker = partial(Breaker, chance)

    def refuse_one_more(self, stock: BackendStock) -> None:
        """For a newcomer, where no process of the backend is started for a while.

        Raises:
            BackendUnavailable: the backend dies again and again.
        """
        if stock.breaker.is_open and stock.allowance(self._clock()) == 0:
            raise self._unavailable(stock)

    # --- what has happened

    def not_started(self, stock: BackendStock, error: BackendExited) -> None:
        """The command could not be executed."""
        stock.stderr = (str(error),)
        self._failures.not_started(stock.spec, str(error))
        self._waiting.refuse_next(stock, error)
        self._count(stock)

    def not_prepared(self, process: BackendProcess, stock: BackendStock, error: GatewayError) -> None:
        """A process that is to be shared has not answered `initialize` as it should."""
        self._waiting.refuse_next(stock, error)
        if process.exit is None:  # else its end has been counted
            stock.stderr = (str(error),)
            self._failures.not_initialized(process, str(error))
            self._count(stock)

    def ended(self, process: BackendProcess, lease: Lease | None) -> None:
        """Its sessions have not heard of it yet, so that it can be said which they are."""
        self._failures.ended(process, before_handshake=lease is None or not lease.has_shaken_hands)

    def gone(self, process: BackendProcess, held: Held) -> None:
        """Its session has heard of its end before, and may have given it back."""
        stock = held.stock
        is_early = held.lease is None or not held.lease.has_shaken_hands
        is_current = process.spec.version == stock.spec.version and not stock.is_forgotten
        assert process.exit is not None
        if is_early and is_current and process.exit.reason in _EARLY:
            stock.stderr = tuple(process.exit.stderr) or (process.exit.description,)
            self._count(stock)

    def works(self, lease: Lease) -> bool:
        """A lease's handshake succeeded; returns whether that says something about the backend as it is now."""
        stock = lease.stock
        if lease.link.spec.version != stock.spec.version or stock.allowance(self._clock()) is None:
            return False
        if stock.breaker.succeeded():
            self._breaker_open.dec()
            logger.info("a backend works again", extra=stock.log_fields)
        return True

    def forget(self, stock: BackendStock) -> None:
        """As if no process of the backend had died."""
        if stock.breaker.is_open:
            self._breaker_open.dec()
        stock.breaker = self.new_breaker()
        stock.stderr = ()

    def _count(self, stock: BackendStock) -> None:
        if stock.breaker.died_early(self._clock()):
            self._breaker_open.inc()
            logger.error(
                "Backend keeps dying right after its start; not starting it for a while", extra=stock.log_fields
            )
        if stock.breaker.is_open:
            self._waiting.refuse_all(stock, lambda: self._unavailable(stock))

    def _unavailable(self, stock: BackendStock) -> BackendUnavailable:
        # While a trial is under way the delay has passed already: its outcome is known soon.
        retry_after_s = stock.breaker.retry_after_s(self._clock()) or 1.0
        return BackendUnavailable(retry_after_s=retry_after_s, stderr=stock.stderr)
