"""at_once: two waits that do not wait for each other."""

from collections.abc import Awaitable
from typing import TypeVar

import anyio

_A = TypeVar("_A")
_B = TypeVar("_B")


async def at_once(one: Awaitable[_A], other: Awaitable[_B]) -> tuple[_A, _B]:
    """What both return. Of two look-ups at all nodes a silent node is waited for once. Raises what the first that
    fails raises; the other is cancelled."""
    found: list[_B] = []

    async def wait() -> None:
        found.append(await other)

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            first = await one
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return first, found[0]
