"""Parked sessions of a node that is gone: they are parked at the next one, until their client sends something."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from app.sessions.session import Session, SessionState
from tests.cluster.durable import SPEC, FlakyStore, Node, nodes, request

PARKED = replace(SPEC, timeouts=replace(SPEC.timeouts, park_s=60.0))


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Node, Node]]:
    async with nodes(FlakyStore()) as (first, second):
        yield first, second


async def parked(node: Node) -> Session:
    session = await node.open(PARKED)
    session.request(request("logging/setLevel", 1, level="error"), session.reply(1, may_stream=False))
    node.process.answer()
    assert node.parking.park(session, session.last_seen)
    return session


def count(node: Node) -> float | None:
    return node.metrics.registry.get_sample_value("trunkline_sessions_parked")


async def greeted(node: Node) -> None:
    with anyio.fail_after(20):
        while not (node.connections.leases and node.process.sent):
            await anyio.lowlevel.checkpoint()
    node.process.answer({"capabilities": {}})


@pytest.mark.parametrize("how", ["killed", "handed over"])
async def test_it_has_no_process_before_its_client_sends_something(pair: tuple[Node, Node], how: str) -> None:
    first, second = pair
    old = await parked(first)
    if how == "killed":
        await first.flush(old)
        first.abandon()
    else:
        old.close("handed_over")
        await first.durability.hand_over(old)
        assert count(first) == 0
    session = await second.restore(old.id, 2)
    assert session is not None
    await anyio.wait_all_tasks_blocked()
    assert (session.state, session.connection.rest, second.connections.leases) == (SessionState.OPEN, "parked", [])
    assert (count(second), session.gate.resting["parked"]) == (1, 1)
    reply = session.reply(1, may_stream=True)
    session.request(request("tools/call", 3), reply)
    await greeted(second)
    said: Any = second.process.sent
    assert [each["method"] for each in said] == [
        "initialize", "notifications/initialized", "logging/setLevel", "tools/call",
    ]  # fmt: skip
    second.process.answer({"ok": True})
    assert reply.outcomes
    assert (session.connection.rest, count(second), session.gate.resting["parked"]) == (None, 0, 0)


async def test_one_that_was_woken_again_gets_its_process_at_once(pair: tuple[Node, Node]) -> None:
    first, second = pair
    old = await parked(first)
    await first.flush(old)
    old.request(request("ping", 2), old.reply(1, may_stream=False))
    with anyio.fail_after(20):
        while len(first.connections.leases) < 2 or not first.process.sent:
            await anyio.lowlevel.checkpoint()
    first.process.answer({"capabilities": {}})
    await first.flush(old)
    first.abandon()
    session = await second.take_over(old.id)
    assert (session.connection.rest, count(second)) == (None, 0)


async def test_a_node_that_dies_while_it_wakes_one_leaves_it_parked(pair: tuple[Node, Node]) -> None:
    first, second = pair
    old = await parked(first)
    old.request(request("tools/call", 2), old.reply(1, may_stream=False))
    await anyio.lowlevel.checkpoint()
    await first.flush(old)
    first.abandon()
    session = await second.restore(old.id, 2)
    assert session is not None
    assert session.connection.rest == "parked"
    session.request(request("tools/call", 5), session.reply(1, may_stream=False))
    await greeted(second)
    assert [each["params"] for each in second.process.sent if each["method"] == "tools/call"] == [{}]
