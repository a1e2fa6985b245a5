"""Bodies of requests that arrive in pieces, and stop."""

from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from app.http.transports.arriving_bodies import LARGE_BYTES, ArrivingBodies
from app.http.transports.request import McpRequest


class Uploading:
    """A client that has sent two pieces of a body, and sends the last one when it is told to."""

    def __init__(self, tenant: str, piece: int) -> None:
        self.goes_on, self.heard = anyio.Event(), 0
        scope: Any = {"type": "http", "method": "POST", "path": f"/t/{tenant}/echo/mcp", "headers": []}
        self.request = McpRequest(scope, self._receive, self._send, (tenant, "echo", "mcp"))
        self._piece = b"x" * piece

    async def _receive(self) -> Any:
        self.heard += 1
        if self.heard == 3:
            await self.goes_on.wait()
        return {"type": "http.request", "body": self._piece, "more_body": self.heard < 3}

    async def _send(self, _: Any) -> None:
        """Nothing is answered."""


async def heard(*clients: Uploading) -> list[int]:
    """How many pieces were read of each, once nothing more is."""
    for _ in range(20):
        await checkpoint()
    return [each.heard for each in clients]


async def test_a_large_body_is_not_read_on_while_as_many_of_its_tenant_have_stopped() -> None:
    arriving, tenants = ArrivingBodies(of_tenant=1), ("acme", "acme", "zenith")
    stalled, waiting, other = (Uploading(tenant, LARGE_BYTES) for tenant in tenants)
    async with anyio.create_task_group() as tasks:
        for each in (stalled, waiting, other):
            tasks.start_soon(each.request.body, 4 * LARGE_BYTES, arriving)
        assert await heard(stalled, waiting, other) == [3, 1, 3]
        stalled.goes_on.set()
        assert await heard(stalled, waiting) == [3, 3]
        for each in (waiting, other):
            each.goes_on.set()


async def test_small_bodies_need_no_place() -> None:
    arriving = ArrivingBodies(of_tenant=1)
    clients = [Uploading("acme", LARGE_BYTES // 4) for _ in range(3)]
    async with anyio.create_task_group() as tasks:
        for each in clients:
            tasks.start_soon(each.request.body, LARGE_BYTES, arriving)
        assert await heard(*clients) == [3, 3, 3]
        for each in clients:
            each.goes_on.set()
