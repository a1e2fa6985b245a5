"""The sweep: four times a second it notices deadlines, ages, and that this node has stood still."""

import time
from collections.abc import Callable

import anyio

from app.sessions.registry import SessionRegistry
from app.sessions.standstill import StandstillGuard

SWEEP_S = 0.25  # how late a deadline may be noticed
AGES_EVERY = 4  # sweeps between two looks at the ages of sessions


async def sweep_for_ever(
    registry: SessionRegistry, guard: StandstillGuard, before: Callable[[float], None] = lambda now: None
) -> None:
    """Runs in a task of the node. `before` is called first each time, with the time."""
    tick = 0
    while True:
        await anyio.sleep(SWEEP_S)
        tick += 1
        now = time.monotonic()
        if not guard.fence.tick():
            await guard.prove()
        before(now)
        registry.sweep(now, look_at_age=tick % AGES_EVERY == 0)
