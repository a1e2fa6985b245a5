"""Departures: which nodes are given up, and which only look as if they were gone."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import anyio
import pytest

from app.cluster.peers import dead_nodes as dead_peers
from app.cluster.peers.dead_nodes import (
    BELIEVED_S,
    LOOK_S,
    SUSPECTED_S,
    Silence,
    Suspects,
    abandon_the_dead,
    stay_acquainted,
)
from app.sessions.routes import BEAT_S, NodeRecord
from tests.cluster.routing.rig import NODES, record

A, B, C = NODES


def living(*nodes: str) -> dict[str, NodeRecord]:
    return {node: record(node) for node in nodes}


def test_who_leaves_the_list_is_looked_at_at_once_and_then_with_each_beat_for_a_while():
    suspects, now = Suspects(), 0.0
    assert suspects.of(living(A, B), now) == []
    looks = []
    while now < SUSPECTED_S + 5 * BEAT_S:
        now += LOOK_S
        looks += [(round(now, 3), each) for each in suspects.of(living(A), now)]
    assert looks[0] == (LOOK_S, record(B))
    assert {each for _, each in looks} == {record(B)}
    assert len(looks) == pytest.approx(SUSPECTED_S / BEAT_S, abs=3)
    assert looks[-1][0] < LOOK_S + SUSPECTED_S


def test_who_comes_back_or_is_known_to_be_dead_is_suspected_no_more():
    suspects = Suspects()
    suspects.of(living(A, B, C), 0.0)
    assert suspects.of(living(A), 1.0) == [record(B), record(C)]
    suspects.is_dead(C)
    assert suspects.of(living(A), 2.0) == [record(B)]
    assert suspects.of(living(A, B), 3.0) == []
    assert suspects.of(living(A), 3.1) == [record(B)]


def test_a_node_that_was_started_again_at_the_same_address_is_not_its_predecessor():
    """Requests that wait for the new node must not be given up because the old one is dead."""
    suspects = Suspects()
    suspects.of(living(A, B), 0.0)
    successor = replace(record(C), url=record(B).url)
    assert suspects.of({A: record(A), C: successor}, 1.0) == []


def test_a_node_that_has_said_that_it_leaves_is_not_given_up_when_it_is_gone():
    """Its port is closed before the last answers have come: that says nothing of the connections there are."""
    suspects = Suspects()
    suspects.of({**living(A), B: replace(record(B), draining=True)}, 0.0)
    assert suspects.of(living(A), 1.0) == []


def every_look_is_a_beat() -> Callable[[], float]:
    """A clock."""
    return partial(next, itertools.count(0.0, BEAT_S))


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
        with anyio.fail_after(30):
            while len(self.probed) < times:
                await anyio.lowlevel.checkpoint()


class Living(dict[str, NodeRecord]):
    """The list of nodes, and whether anybody has looked at it."""

    is_seen = False

    def values(self):
        self.is_seen = True
        return super().values()

    async def seen(self) -> None:
        with anyio.fail_after(30):
            while not self.is_seen:
                await anyio.lowlevel.checkpoint()


async def test_the_dead_are_abandoned_once_and_who_answers_is_not():
    peers, nodes, beats = Peers(A), Living(living(A, B, C)), every_look_is_a_beat()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            lambda: abandon_the_dead(nodes, peers.probe, peers.abandoned.append, clock=beats, every_s=0.001)
        )
        await nodes.seen()
        del nodes[A], nodes[B]
        await peers.has_probed(5)
        assert peers.abandoned == [record(B).url]
        peers.answering.clear()
        with anyio.fail_after(30):
            while len(peers.abandoned) < 2:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert peers.abandoned == [record(B).url, record(A).url]
    assert record(C).url not in peers.probed


async def test_a_successor_that_is_heard_of_during_the_probe_keeps_its_requests():
    peers, nodes, beats = Peers(), Living(living(A, B)), every_look_is_a_beat()

    async def probe(url: str) -> str | None:
        nodes[C] = replace(record(C), url=url)
        return await peers.probe(url)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: abandon_the_dead(nodes, probe, peers.abandoned.append, clock=beats, every_s=0.001))
        await nodes.seen()
        del nodes[B]
        await peers.has_probed(1)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert peers.abandoned == []


async def test_several_that_die_together_do_not_wait_for_each_other():
    nodes, beats, abandoned = Living(living(A, B, C)), every_look_is_a_beat(), list[str]()
    probed, both = list[str](), anyio.Event()

    async def probe(url: str) -> None:
        probed.append(url)
        if len(probed) == 2:
            both.set()
        await both.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: abandon_the_dead(nodes, probe, abandoned.append, clock=beats, every_s=0.001))
        await nodes.seen()
        del nodes[B], nodes[C]
        with anyio.fail_after(30):
            while len(abandoned) < 2:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert set(abandoned) == {record(B).url, record(C).url}


async def test_silence_is_believed_for_a_moment_and_an_answer_never():
    peers, now = Peers(A), 100.0
    probe = Silence(peers.probe, lambda: now)
    url = record(B).url
    assert [await probe(url), await probe(url)] == [None, None]
    peers.answering[url] = B
    assert await probe(url) is None
    assert peers.probed == [url]
    now += BELIEVED_S
    assert [await probe(url), await probe(url), await probe(record(A).url)] == [B, B, A]
    assert peers.probed == [url] * 3 + [record(A).url]


async def test_how_many_are_remembered_as_silent_is_bounded(monkeypatch):
    monkeypatch.setattr(dead_peers, "MAX_SILENT", 3)
    probe = Silence(Peers().probe, lambda: 0.0)
    for number in range(10):
        await probe(f"http://{number}")
    assert len(probe._silent) == 1


async def test_the_living_are_asked_who_they_are_before_anything_is_sent_to_them():
    peers = Peers(A)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: stay_acquainted(living(A, B), peers.probe, every_s=0.001))
        await peers.has_probed(4)
        tasks.cancel_scope.cancel()
    assert set(peers.probed) == {record(A).url, record(B).url}
