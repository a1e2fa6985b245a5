"""Freezer: has processes of this node stand still, by their control groups, and go on; pushes their memory out."""

import asyncio
import errno
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread

from app.jail.spawner.cgroups import Group

BATCH = 64  # orders that are carried out in one turn of the thread; and trees that are looked at
_LOOK_S = 0.02  # between two looks whether they stand still
WITHIN_S = 5.0  # how long a tree may take for that: on a busy machine each of its processes waits for its turn
_STEP_BYTES = 16 << 20  # of memory that is pushed out before it is asked again whether the process still stands still
_SWAPS = Path("/proc/swaps")

Told = Callable[[OSError | None], None]  # whether an order could be carried out; must not raise

log = logging.getLogger(__name__)


class _Order(NamedTuple):
    group: Group
    is_to_freeze: bool
    told: Told


class _Stopping(NamedTuple):
    told: Told
    until: float


class Freezer:
    """One per node. Orders are carried out in a thread, in the order in which they came: the kernel may hold a writer
    up while processes start. Memory is pushed out in another one, where there is swap."""

    def __init__(self, *, has_swap: Callable[[], bool] | None = None) -> None:
        self._has_swap = has_swap or has_swap_now
        self._orders = deque[_Order]()
        self._stopping = dict[Group, _Stopping]()  # what was told to stand still, and may not do so yet
        self._to_push_out = deque["Freezable"]()
        self._is_asked, self._is_frozen = asyncio.Event(), asyncio.Event()
        self._has_warned = False

    def order(self, group: Group, told: Told, *, freeze: bool) -> None:
        """Carried out soon."""
        self._orders.append(_Order(group, freeze, told))
        self._is_asked.set()

    def push_out(self, process: "Freezable") -> None:
        """Has its memory pushed out, unless it has gone on before its turn."""
        self._to_push_out.append(process)
        self._is_frozen.set()

    def warn(self) -> None:
        """Says once that a process should have been frozen and cannot be."""
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "Idle sessions of servers with state keep running: their processes have no control group that can be "
                "frozen. `trunkline doctor` says why"
            )

    async def run(self) -> None:
        """Carries out orders, and pushes memory out, until it is cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run_pushing_out)
            await self._run_orders()

    async def _run_orders(self) -> None:
        while True:
            with anyio.move_on_after(_LOOK_S if self._stopping else math.inf):
                await self._is_asked.wait()
            batch = [self._orders.popleft() for _ in range(min(BATCH, len(self._orders)))]
            if not self._orders:
                self._is_asked.clear()
            stopping, looked_at = list(islice(self._stopping, BATCH)), time.monotonic()
            outcomes, still = await anyio.to_thread.run_sync(_carry_out, batch, stopping)
            for order, outcome in zip(batch, outcomes, strict=True):
                self._carried_out(order, outcome)
            for group in still:
                if group in self._stopping:
                    self._stopping.pop(group).told(None)
            self._give_up(stopping, looked_at)

    def _carried_out(self, order: _Order, outcome: OSError | None) -> None:
        overtaken = self._stopping.pop(order.group, None)
        if overtaken is not None:
            overtaken.told(None)
        if order.is_to_freeze and outcome is None:
            self._stopping[order.group] = _Stopping(order.told, time.monotonic() + WITHIN_S)
        else:
            order.told(outcome)

    def _give_up(self, looked_at: Sequence[Group], now: float) -> None:
        """Of those that were looked at then, what does not stand still in time goes on. The others are looked at first:
        it may be this node that stood still."""
        for group in looked_at:
            if group not in self._stopping:
                continue
            told, until = self._stopping[group]
            if now < until:
                return  # nor is it time for those that came later
            del self._stopping[group]
            self._orders.appendleft(_Order(group, False, lambda error: None))
            self._is_asked.set()
            told(OSError(errno.EBUSY, os.strerror(errno.EBUSY)))

    async def _run_pushing_out(self) -> None:
        while True:
            await self._is_frozen.wait()
            self._is_frozen.clear()
            while self._to_push_out:
                process = self._to_push_out.popleft()
                if process.is_frozen and self._has_swap():
                    await anyio.to_thread.run_sync(process.push_out)


class Freezable:
    """A process that can be frozen, with all it has started, if it runs in a group."""

    def __init__(self, freezer: Freezer, group: Group | None = None) -> None:
        self._freezer, self.group = freezer, group
        self.is_frozen = False  # or will be in a moment
        self._times = 0

    def freeze(self, told: Told) -> bool:
        """Stops it soon; then `told` is called, also if it does not stop and goes on. False, and nobody is told, if
        there is nothing to freeze it by."""
        if self.group is None or not self.group.can_freeze:
            self._freezer.warn()
            return False
        self.is_frozen = True
        self._times += 1
        times = self._times

        def done(error: OSError | None) -> None:
            if self.is_frozen and times == self._times:
                if error is None:
                    self._freezer.push_out(self)
                else:
                    self.is_frozen = False
            told(error)

        self._freezer.order(self.group, done, freeze=True)
        return True

    def thaw(self, told: Told = lambda error: None) -> None:
        """It goes on soon. Does nothing, and tells nobody, if it is not frozen."""
        if self.is_frozen and self.group is not None:
            self.is_frozen = False
            self._freezer.order(self.group, told, freeze=False)

    def push_out(self) -> None:
        """Pushes its memory out, as long as it stands still. Blocks: call it in a thread."""
        try:
            while self.is_frozen and self.group is not None and self.group.push_out(_STEP_BYTES):
                pass
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOENT):  # there is no more; it has ended
                log.debug("Could not push out the memory of a frozen process: %s", error)


def has_swap_now(swaps: Path = _SWAPS) -> bool:
    """Whether this machine has swap, zram included. Without it only pages of files could be pushed out, which the
    kernel takes anyway when it needs memory, and which the next call would wait for."""
    try:
        return len(swaps.read_text().splitlines()) > 1
    except OSError:
        return False


def _carry_out(orders: Sequence[_Order], stopping: Sequence[Group]) -> tuple[list[OSError | None], list[Group]]:
    """What became of each order; and which of the others stand still by now. Blocks."""
    outcomes = [_tried(order.group.freeze if order.is_to_freeze else order.group.thaw) for order in orders]
    ordered = {order.group for order in orders}
    return outcomes, [group for group in stopping if group not in ordered and group.is_frozen()]


def _tried(do: Callable[[], None]) -> OSError | None:
    try:
        do()
    except OSError as error:
        return error
    return None
