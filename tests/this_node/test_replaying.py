"""Replaying with real processes: it asks what they offer before it calls, is bounded, and leaves nothing."""

from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest

from app.errors import Conflict, QuotaExceeded
from app.inspections.masking import Mask
from app.protocol.toolset.offer import Offer
from app.this_node import replaying as module
from app.this_node.replaying import Replaying, ToolsCall
from tests.backends.rig import NO_LIMITS, make_pool, total
from tests.processes.rig import eventually, metrics, running, spec_of

pytestmark = pytest.mark.real

__all__ = ["make_pool", "metrics", "running"]

CALL: dict[str, Any] = {"name": "say", "arguments": {"text": "hi"}}


async def allow(offer: Offer) -> None:
    """Whatever it offers."""


@pytest.fixture
async def pool(make_pool: Any) -> Any:
    return await make_pool()


@pytest.fixture
def replaying(pool: Any) -> Replaying:
    upstreams: Any = SimpleNamespace(forget=lambda key: None)
    return Replaying(pool, upstreams)


async def nothing_is_left(running: Any, pool: Any, replaying: Replaying) -> None:
    await eventually(lambda: not running.supervisor.processes)
    assert pool.snapshot() == {}
    assert not replaying._running


async def test_the_tool_is_looked_up_in_what_the_new_process_offers(running, pool, replaying):
    offered = list[Offer]()

    async def look(offer: Offer) -> None:
        offered.append(offer)

    found = await replaying.replay(spec_of("turncoat", "poisoned"), NO_LIMITS, ToolsCall(CALL, None, look), Mask())
    assert "called say" in found.answer
    assert [each.name for each in found.steps] == ["start", "initialize", "tools/list", "tools/call"]
    assert [msgspec.json.decode(item)["name"] for item in offered[0].items("tools/list")] == ["say", "turn", "evil"]
    await nothing_is_left(running, pool, replaying)


async def test_what_must_not_be_called_is_not(running, pool, replaying):
    async def refuse(offer: Offer) -> str:
        return "it has changed"

    with pytest.raises(Conflict, match="it has changed"):
        await replaying.replay(spec_of("toolbox", "red"), NO_LIMITS, ToolsCall(CALL, None, refuse), Mask())
    await nothing_is_left(running, pool, replaying)


async def test_one_that_does_not_say_what_it_offers_is_not_called(running, pool, replaying):
    for wrong, words in (("endless", "more than 100 pages"), ("error", "out of tools"), ("dies", "exit status 3")):
        found = await replaying.replay(spec_of("offers", wrong), NO_LIMITS, ToolsCall(CALL, None, allow), Mask())
        assert (found.answer, found.steps[-1].name) == (None, "tools/list")
        assert words in found.failure
    await nothing_is_left(running, pool, replaying)


@pytest.mark.parametrize("place", ["initialize", "refusal"])
async def test_cancelled_half_way_it_leaves_nothing(running, pool, replaying, place):
    async def hang(offer: Offer) -> None:
        await anyio.sleep_forever()

    spec = spec_of("offers", "silent") if place == "initialize" else spec_of("toolbox", "red")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(replaying.replay, spec, NO_LIMITS, ToolsCall(CALL, None, hang), Mask())
        await eventually(lambda: total(pool, "leased"))
        assert replaying._running == {"acme": 1}
        tasks.cancel_scope.cancel()
    await nothing_is_left(running, pool, replaying)


async def test_of_a_hundred_at_once_a_few_run_and_the_others_are_told_to_wait(running, pool, replaying):
    go_on = anyio.Event()

    async def wait(offer: Offer) -> None:
        await go_on.wait()

    refused, done = list[QuotaExceeded](), list[str]()

    async def one(number: int) -> None:
        spec = spec_of("toolbox", "red", tenant=f"tenant-{number % 10}", name=f"b-{number}")
        try:
            found = await replaying.replay(spec, NO_LIMITS, ToolsCall(CALL, None, wait), Mask())
            done.append(str(found.answer))
        except QuotaExceeded as error:
            refused.append(error)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(one, number)
            await eventually(lambda: len(refused) == 100 - module.MAX_AT_ONCE)
            assert len(running.supervisor.processes) <= module.MAX_AT_ONCE
            go_on.set()
    assert len(done) == module.MAX_AT_ONCE
    assert all("red: hi" in answer for answer in done)
    assert {(error.limit, error.retry_after_s) for error in refused} == {("replays", module.BUSY_S)}
    assert "wait for the end of one" in str(refused[0])
    await nothing_is_left(running, pool, replaying)


async def test_one_tenant_may_have_fewer_than_all(replaying):
    with replaying._counted("acme"), replaying._counted("acme"):
        with pytest.raises(QuotaExceeded, match="2 replays of this tenant"), replaying._counted("acme"):
            pass
        with replaying._counted("zenith"):
            pass
    assert not replaying._running
