"""Departures: which nodes are given up, and which only look as if they were gone."""

from dataclasses import replace

import anyio

from app.routing.departures import SUSPECTED_BEATS, Suspects, abandon_the_dead
from app.routing.routes import NodeRecord
from tests.routing.rig import NODES, record

A, B, C = NODES


def living(*nodes: str) -> dict[str, NodeRecord]:
    return {node: record(node) for node in nodes}


def test_who_leaves_the_list_is_suspected_for_a_while():
    suspects = Suspects()
    assert suspects.of(living(A, B)) == []
    looked_at = [suspects.of(living(A)) for _ in range(SUSPECTED_BEATS + 5)]
    assert looked_at[:SUSPECTED_BEATS] == [[record(B)]] * SUSPECTED_BEATS
    assert looked_at[SUSPECTED_BEATS:] == [[]] * 5


def test_who_comes_back_or_is_known_to_be_dead_is_suspected_no_more():
    suspects = Suspects()
    suspects.of(living(A, B, C))
    assert suspects.of(living(A)) == [record(B), record(C)]
    suspects.is_dead(C)
    assert suspects.of(living(A)) == [record(B)]
    assert suspects.of(living(A, B)) == []
    assert suspects.of(living(A)) == [record(B)]


def test_a_node_that_was_started_again_at_the_same_address_is_not_its_predecessor():
    """Requests that wait for the new node must not be given up because the old one is dead."""
    suspects = Suspects()
    suspects.of(living(A, B))
    successor = replace(record(C), url=record(B).url)
    assert suspects.of({A: record(A), C: successor}) == []


class Peers:
    """Nodes that answer, by address. `abandoned` are those that were given up."""

    def __init__(self, *nodes: str) -> None:
        self.answering = {record(node).url: node for node in nodes}
        self.probed: list[str] = []
        self.abandoned: list[str] = []

    async def probe(self, url: str) -> str | None:
        await anyio.lowlevel.checkpoint()
        self.probed.append(url)
        return self.answering.get(url)

    async def has_probed(self, times: int) -> None:
        with anyio.fail_after(5):
            while len(self.probed) < times:
                await anyio.lowlevel.checkpoint()


class Living(dict[str, NodeRecord]):
    """The list of nodes, and whether anybody has looked at it."""

    is_seen = False

    def values(self):
        self.is_seen = True
        return super().values()

    async def seen(self) -> None:
        with anyio.fail_after(5):
            while not self.is_seen:
                await anyio.lowlevel.checkpoint()


async def test_the_dead_are_abandoned_once_and_who_answers_is_not():
    peers, nodes = Peers(A), Living(living(A, B, C))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: abandon_the_dead(nodes, peers.probe, peers.abandoned.append, every_s=0.001))
        await nodes.seen()
        del nodes[A], nodes[B]
        await peers.has_probed(5)
        assert peers.abandoned == [record(B).url]
        peers.answering.clear()
        with anyio.fail_after(5):
            while len(peers.abandoned) < 2:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert peers.abandoned == [record(B).url, record(A).url]
    assert record(C).url not in peers.probed


async def test_a_successor_that_is_heard_of_during_the_probe_keeps_its_requests():
    peers, nodes = Peers(), Living(living(A, B))

    async def probe(url: str) -> str | None:
        nodes[C] = replace(record(C), url=url)
        return await peers.probe(url)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: abandon_the_dead(nodes, probe, peers.abandoned.append, every_s=0.001))
        await nodes.seen()
        del nodes[B]
        await peers.has_probed(1)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert peers.abandoned == []
