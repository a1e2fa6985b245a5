"""How many large bodies of a tenant, and of all, may arrive at once."""

import anyio
import pytest
from anyio.lowlevel import checkpoint

from app.http.transports.arriving_bodies import LARGE_BYTES, ArrivingBodies


class Bodies:
    """Bodies that arrive until they are told to end."""

    def __init__(self, tasks: anyio.abc.TaskGroup, arriving: ArrivingBodies) -> None:
        self._tasks, self._arriving = tasks, arriving
        self.placed: list[str] = []

    async def begin(self, name: str, tenant: str) -> anyio.CancelScope:
        scope = anyio.CancelScope()

        async def arrive() -> None:
            with scope:
                async with self._arriving.arrival(tenant) as read_on:
                    await read_on(LARGE_BYTES)
                    self.placed.append(name)
                    await anyio.sleep_forever()

        self._tasks.start_soon(arrive)
        await checkpoint()
        await checkpoint()
        return scope


async def until_placed(bodies: Bodies, *names: str) -> None:
    with anyio.fail_after(10):
        while bodies.placed != list(names):
            await checkpoint()


@pytest.mark.parametrize("tenants", [["a", "a", "a"], ["a", "b", "c"]], ids=["of a tenant", "of the node"])
async def test_who_finds_no_place_waits_behind_those_that_came_before(tenants: list[str]) -> None:
    arriving = ArrivingBodies(of_tenant=2, of_node=2)
    async with anyio.create_task_group() as tasks:
        bodies = Bodies(tasks, arriving)
        first, _, third = [await bodies.begin(str(number), tenant) for number, tenant in enumerate(tenants)]
        fourth = await bodies.begin("3", tenants[-1])
        await until_placed(bodies, "0", "1")
        third.cancel()  # its client has gone
        first.cancel()
        await until_placed(bodies, "0", "1", "3")
        fourth.cancel()
        tasks.cancel_scope.cancel()
    assert arriving._of_tenant == {}


async def test_a_tenant_whose_places_are_taken_holds_up_no_other() -> None:
    async with anyio.create_task_group() as tasks:
        bodies = Bodies(tasks, ArrivingBodies(of_tenant=1, of_node=3))
        for name, tenant in (("0", "a"), ("1", "a"), ("2", "a"), ("3", "b"), ("4", "c")):
            await bodies.begin(name, tenant)
        await until_placed(bodies, "0", "3", "4")
        tasks.cancel_scope.cancel()
