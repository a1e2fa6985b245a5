"""Meter: what the processes of a node use. It looks often where only a look holds a limit."""

import time
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

import anyio.to_thread

from app.concurrency.event import Event
from app.processes.measuring import Use, look
from app.processes.process import BackendProcess
from app.telemetry.metrics import Metrics

MEASURE_EVERY_S = 10.0
FROZEN_EVERY_S = 60.0  # frozen ones do nothing: only their memory may still be pushed out
WATCHED_EVERY_S = 2.0  # while an administrator looks at it
WATCHED_S = 15.0  # for so long after the last look
LOOKING_SHARE = 0.01  # of one core, for processes whose memory no control group limits


class _Told(NamedTuple):
    """What the counters know of a process."""

    sent: int = 0
    received: int = 0
    use: Use = Use()


class Meter:
    """Measures processes, ends those that are over their memory, and keeps the metrics of their use."""

    def __init__(self, metrics: Metrics) -> None:
        self.measured = Event[[]]()
        self._metrics = metrics
        self._told: dict[BackendProcess, _Told] = {}
        self._shown: set[tuple[str, str]] = set()
        self._watched_until = self._measured_at = self._frozen_at = self._cost_s = 0.0

    def watch(self) -> None:
        """Measures more often for a while."""
        self._watched_until = time.monotonic() + WATCHED_S

    async def sweep(self, processes: Collection[BackendProcess], now: float) -> None:
        """Measures if it is time to; to be called a few times a second."""
        every_s = WATCHED_EVERY_S if now < self._watched_until else MEASURE_EVERY_S
        if not all(process.is_limited_by_kernel for process in processes):
            every_s = min(every_s, self._cost_s / LOOKING_SHARE)
        if now - self._measured_at >= every_s:
            are_due = now < self._watched_until or now - self._frozen_at >= FROZEN_EVERY_S
            self._frozen_at = now if are_due else self._frozen_at
            await self.measure(processes, with_frozen=are_due)

    async def measure(self, processes: Collection[BackendProcess], *, with_frozen: bool = True) -> None:
        """What is not looked at keeps its last use."""
        looked_at = (process for process in processes if with_frozen or not process.is_frozen)
        targets = {process: process.target() for process in looked_at if process.pid}
        uses, self._cost_s = await anyio.to_thread.run_sync(look, list(targets.values()))
        self._measured_at = now = time.monotonic()
        for process, use in zip(targets, uses, strict=True):
            if process.exit is None:  # else it has been counted for the last time meanwhile
                process.used(use, now)
                self.count(process)
        self._show(processes)
        self.measured.tell()

    def count(self, process: BackendProcess) -> None:
        """Brings the counters up to date; for the last time when it is gone."""
        use, metrics = process.use, self._metrics
        told = self._told.get(process, _Told())
        self._told[process] = _Told(process.sent_bytes, process.received_bytes, use)
        if process.exit is not None:
            del self._told[process]
        if process.received_bytes and not told.received and (first_byte_s := process.first_byte_s()) is not None:
            metrics.process_spawn_phase_seconds.labels("first_byte").observe(first_byte_s)
        for kind, times in process.take_denied().items():
            metrics.denials.labels(kind).inc(times)
        labels = metrics.backend_labels.of(process.spec.key)
        metrics.backend_sent.labels(*labels).inc(process.sent_bytes - told.sent)
        metrics.backend_received.labels(*labels).inc(process.received_bytes - told.received)
        metrics.messages_dropped.labels("notification_rate").inc(process.take_dropped())
        metrics.backend_cpu.labels(*labels).inc(max(0.0, use.cpu_s - told.use.cpu_s))
        throttled_us = max(0, use.throttled_us - told.use.throttled_us)
        metrics.cpu_throttled.inc(throttled_us / 1e6)
        metrics.limits_hit.labels("cpu").inc(throttled_us > 0)
        metrics.limits_hit.labels("pids").inc(max(0, use.refused_forks - told.use.refused_forks))
        metrics.oom_kills.inc(max(0, use.oom_kills - told.use.oom_kills))

    def _show(self, processes: Collection[BackendProcess]) -> None:
        """Sets the gauges, also of backends that have no process any more."""
        sizes = Counter[tuple[str, str]]()
        for process in processes:
            sizes[self._metrics.backend_labels.of(process.spec.key)] += process.resident_bytes
        for labels in self._shown | sizes.keys():
            self._metrics.backend_resident.labels(*labels).set(sizes[labels])
        self._shown = set(sizes)
        self._metrics.process_resident_bytes.set(sizes.total())
