"""Fleet: how long a node that died waits for its next start; and what is done with processes, small ones in place of
nodes. tests/integration/test_nodes_command.py has the real ones."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from app import fleet
from app.errors import GatewayError
from app.fleet import AT_ONCE_S, GIVE_UP_AFTER, Fate
from app.settings import Settings

ENDS_WELL = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "
READY = "print('listening on http://x', flush=True); sys.stdin.read()"
GOOD = ENDS_WELL + READY
DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY
BROKEN = "import sys; sys.exit(3)"
SLOW = "import sys; sys.stdin.read()"
TALKS = ENDS_WELL + READY.replace("http://x", "http://x\\nand more")

Start = Callable[..., Any]


def test_a_node_that_lived_long_is_started_again_soon_as_often_as_need_be():
    fate = Fate()
    assert [fate.died(AT_ONCE_S) for _ in range(20)] == [0.5] * 20


def test_one_that_dies_at_once_waits_longer_each_time_and_is_given_up():
    fate = Fate()
    delays = [fate.died(lived_s) for lived_s in (None, 0.1, 9.9, None, None)]
    assert len(delays) == GIVE_UP_AFTER
    assert delays == [0.5, 1.0, 2.0, 4.0, None]


def test_a_life_in_between_makes_everything_good():
    fate = Fate()
    for _ in range(GIVE_UP_AFTER - 1):
        assert fate.died(None) is not None
    assert fate.died(AT_ONCE_S + 1) == 0.5
    assert fate.died(None) == 0.5


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Makes a fleet whose nodes run these pieces of Python; a node that has used up its own runs the last again."""
    environ = {"TRUNKLINE_DATA_DIR": str(tmp_path), "TRUNKLINE_DRAIN_S": "0.1", "TRUNKLINE_MAX_PROCESSES": "9"}
    settings = Settings.from_env(environ)
    with socket.create_server(("127.0.0.1", 0)) as port:

        class Small(fleet._Fleet):
            def __init__(self, *programs: list[str]) -> None:
                super().__init__(settings, port, len(programs), demo=False)
                self.programs = programs

            def command(self, number: int) -> list[str]:
                mine = self.programs[number - 1]
                return [sys.executable, "-I", "-S", "-c", mine.pop(0) if len(mine) > 1 else mine[0]]

        yield Small


@pytest.fixture
def children() -> Callable[[], list[psutil.Process]]:
    before = {child.pid for child in psutil.Process().children()}
    return lambda: [child for child in psutil.Process().children() if child.pid not in before]


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.005)


async def run_until_ready(some: Any) -> None:
    """Stops the fleet as soon as all its nodes have said that they are ready."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(some.run)
        await until(some._announced.is_set)
        some.stop()


async def test_the_ready_line_is_printed_once_when_all_are_ready_and_before_what_else_they_say(start, children, capfd):
    some = start([TALKS], [GOOD])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(some.run)
        printed = ""
        with anyio.fail_after(10):
            while "and more" not in printed:
                printed += capfd.readouterr().out
                await anyio.sleep(0.005)
        some.stop()
    assert printed.splitlines() == [f"listening on http://127.0.0.1:{some._port}", "and more"]
    assert not children()


async def test_a_node_that_dies_is_replaced_and_the_end_is_good_all_the_same(start, children):
    some, statuses = start([GOOD], [GOOD]), []

    async def run() -> None:
        statuses.append(await some.run())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await until(some._announced.is_set)
        first = children()[0]
        first.kill()
        await until(lambda: len(children()) == 2 and first.pid not in {child.pid for child in children()})
        some.stop()
    assert not children()
    assert statuses == [0]  # stopped before it was ready, or well


async def test_the_first_start_that_fails_ends_them_all(start, children):
    with pytest.raises(GatewayError, match="node 2 could not be started"):
        await start([GOOD], [BROKEN]).run()
    assert not children()


async def test_one_that_is_given_up_leaves_the_others_and_makes_the_end_a_failure(start, children, monkeypatch, caplog):
    monkeypatch.setattr(fleet, "FIRST_DELAY_S", 0.001)
    some, statuses = start([GOOD, BROKEN], [GOOD]), []

    async def run() -> None:
        statuses.append(await some.run())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await until(some._announced.is_set)
        children()[0].kill()
        await until(lambda: "it is not started again" in caplog.text)
        assert len(children()) == 1
        some.stop()
    assert statuses == [1]
    assert caplog.text.count("it is started again in") == GIVE_UP_AFTER - 1


async def test_one_that_does_not_become_ready_is_killed_and_tried_again(start, children, monkeypatch, caplog):
    monkeypatch.setattr(fleet, "START_S", 0.3)
    monkeypatch.setattr(fleet, "FIRST_DELAY_S", 0.001)
    await run_until_ready(start([SLOW, GOOD]))
    assert "is not ready after" in caplog.text
    assert not children()


async def test_one_that_does_not_stop_is_killed(start, children, monkeypatch, caplog):
    monkeypatch.setattr(fleet, "STOP_LADDER_S", 0.1)
    await run_until_ready(start([DEAF]))
    assert "does not stop" in caplog.text
    assert not children()


async def test_a_fleet_that_is_cancelled_leaves_no_process_and_no_descriptor(start, children):
    async def cancelled() -> None:
        some = start([GOOD], [SLOW])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(some.run)
            await until(lambda: len(children()) == 2)
            tasks.cancel_scope.cancel()
        await until(lambda: not children())  # the loop reaps them

    await cancelled()  # the loop keeps a descriptor of its own from the first process on
    before = len(os.listdir("/proc/self/fd"))
    await cancelled()
    assert len(os.listdir("/proc/self/fd")) == before


def test_nodes_share_what_the_machine_has_unless_told_otherwise(start, monkeypatch):
    some = start([GOOD], [GOOD])
    assert some.environment["TRUNKLINE_MAX_PROCESSES"] == "4"
    monkeypatch.setenv("TRUNKLINE_MAX_PROCESSES", "9")
    assert start([GOOD], [GOOD]).environment["TRUNKLINE_MAX_PROCESSES"] == "9"
