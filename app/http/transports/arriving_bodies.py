"""ArrivingBodies: how many large bodies of requests may arrive at once, for a tenant and for the node. A client that
sends slowly, or stops, keeps what has arrived in memory until the deadline of its body."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

LARGE_BYTES = 64 << 10  # so much may arrive without a place
OF_TENANT, OF_NODE = 16, 128  # with MAX_BODY_BYTES as it is by default: 64 and 512 MiB


class ArrivingBodies:
    """Of one node. Who finds no place waits for one, behind those that came before; the rest is not read until then."""

    def __init__(self, of_tenant: float = OF_TENANT, of_node: float = OF_NODE) -> None:
        self._places_of_tenant, self._of_node = of_tenant, anyio.CapacityLimiter(of_node)
        self._of_tenant: dict[str, anyio.CapacityLimiter] = {}

    @asynccontextmanager
    async def arrival(self, tenant: str) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
        """Around the arrival of a body. Await what it yields, with how many bytes have arrived, before more is read."""
        is_placed = False

        async def read_on(arrived: int) -> None:
            nonlocal is_placed
            if arrived >= LARGE_BYTES and not is_placed:
                is_placed = True
                await stack.enter_async_context(self._place(tenant))

        async with AsyncExitStack() as stack:
            yield read_on

    @asynccontextmanager
    async def _place(self, tenant: str) -> AsyncIterator[None]:
        places = self._of_tenant.get(tenant)
        if places is None:
            places = self._of_tenant[tenant] = anyio.CapacityLimiter(self._places_of_tenant)
        try:
            async with places, self._of_node:
                yield
        finally:
            if not places.borrowed_tokens and not places.statistics().tasks_waiting:
                self._of_tenant.pop(tenant, None)


ALL_AT_ONCE = ArrivingBodies(math.inf, math.inf)  # from other nodes, which have counted them
