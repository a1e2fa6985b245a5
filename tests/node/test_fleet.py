"""Fleet: how long a node that died waits for its next start; and what is done with processes, small ones in place of
nodes. tests/integration/test_nodes_command.py has the real ones."""

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from app.errors import GatewayError
from app.node import fates, fleet
from app.node.fates import (
    ASK_EVERY_S,
    AT_ONCE_S,
    HUNG_AFTER,
    RARELY_AFTER,
    RARELY_S,
    SILENT_FOR,
    STARVED,
    Fate,
    Silence,
)
from app.settings.settings import Settings

ENDS_WELL = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "
SAY_READY = "import os; print('listening on http://x', flush=True)"
READY = SAY_READY + "\nwhile asked := os.read(0, 64): os.write(0, asked)"
HANGS = "import signal; " + SAY_READY + "; signal.pause()"
ANSWERS_LATE = (
    ENDS_WELL + "import time; " + SAY_READY + "\n"
    "while asked := os.read(0, 64): time.sleep(0.1); os.write(0, asked); print('answered', flush=True)"
)
GOOD = ENDS_WELL + READY
DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY
BROKEN = "import sys; sys.exit(3)"
SLOW = "import sys; sys.stdin.read()"
IMPORTS = "import sys, time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: sys.exit(130)"  # as app.cli
TALKS = ENDS_WELL + READY.replace("http://x", "http://x\\nand more")

Start = Callable[..., Any]


def test_a_node_that_lived_long_is_started_again_soon_as_often_as_need_be():
    fate = Fate()
    assert [fate.died(AT_ONCE_S) for _ in range(20)] == [0.5] * 20


def test_one_that_dies_at_once_waits_longer_each_time_and_is_tried_rarely_in_the_end():
    fate = Fate()
    delays = [fate.died(lived_s) for lived_s in (None, 0.1, 9.9, None)]
    assert len(delays) == RARELY_AFTER - 1
    assert delays == [0.5, 1.0, 2.0, 4.0]
    assert not fate.is_hopeless
    assert [fate.died(None), fate.died(None)] == [RARELY_S, RARELY_S]
    assert fate.is_hopeless


def test_a_life_in_between_makes_everything_good():
    fate = Fate()
    for _ in range(RARELY_AFTER - 1):
        assert fate.died(None) is not None
    assert fate.died(AT_ONCE_S + 1) == 0.5
    assert fate.died(None) == 0.5


def test_a_node_hangs_that_does_not_answer_for_so_many_looks_in_a_row():
    silence = Silence()
    looks = [silence.looked(answered=False, starved_s=0.0) for _ in range(HUNG_AFTER)]
    assert looks == [False] * (HUNG_AFTER - 1) + [True]


def test_an_answer_in_between_makes_it_well():
    silence = Silence()
    for _ in range(3):
        assert not any(silence.looked(answered=False, starved_s=0.0) for _ in range(HUNG_AFTER - 1))
        assert not silence.looked(answered=True, starved_s=0.0)


def test_on_a_machine_that_is_too_busy_for_the_parent_or_for_the_node_silence_means_less():
    silence, starved_s = Silence(), STARVED * ASK_EVERY_S
    assert not any(silence.looked(answered=False, starved_s=starved_s) for _ in range(SILENT_FOR - 1))
    assert silence.looked(answered=False, starved_s=starved_s)
    assert not silence.looked(answered=True, starved_s=starved_s)
    assert not any(silence.looked(answered=False, starved_s=starved_s) for _ in range(SILENT_FOR - HUNG_AFTER))
    assert not any(silence.looked(answered=False, starved_s=0.0) for _ in range(HUNG_AFTER - 1))


def test_how_long_a_process_waits_for_a_processor_is_known():
    assert fleet._processor_wait_s(os.getpid()) >= 0.0
    assert fleet._processor_wait_s(2**22 + 1) == 0.0  # no such process


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
    with anyio.fail_after(30):  # on a busy machine many looks at a node that hangs do not count
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
        with anyio.fail_after(30):
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_nodes_that_are_stopped_before_they_are_ready_have_ended_well(start, children, number):
    statuses = []

    async def run() -> None:
        statuses.append(await some.run())

    async with anyio.create_task_group() as tasks:
        some = start([IMPORTS])
        tasks.start_soon(run)
        await until(children)
        await anyio.sleep(0.5)  # it has no sign of life yet
        some.stop(number)
    assert statuses == [0]


async def test_the_first_start_that_fails_ends_them_all(start, children):
    with pytest.raises(GatewayError, match="node 2 could not be started"):
        await start([GOOD], [BROKEN]).run()
    assert not children()


@asynccontextmanager
async def running(some: Any) -> AsyncIterator[list[int]]:
    """Runs a fleet, which is ready, and stops it at the end; the list has its exit status then."""
    statuses: list[int] = []

    async def run() -> None:
        statuses.append(await some.run())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await until(some._announced.is_set)
        yield statuses
        some.stop()


async def test_one_that_dies_again_and_again_leaves_the_others_and_makes_the_end_a_failure(
    start, children, monkeypatch, caplog
):
    monkeypatch.setattr(fates, "FIRST_DELAY_S", 0.001)
    async with running(start([GOOD, BROKEN], [GOOD])) as statuses:
        children()[0].kill()
        await until(lambda: "trying again in 60 s, as others run" in caplog.text)
        assert len(children()) == 1
    assert statuses == [1]
    assert caplog.text.count("; restarting it in") == RARELY_AFTER - 1


async def test_one_that_was_hopeless_comes_back_when_it_can(start, children, monkeypatch, caplog):
    monkeypatch.setattr(fates, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(fates, "RARELY_S", 0.01)
    some = start([GOOD, *[BROKEN] * (RARELY_AFTER + 2), GOOD], [GOOD])
    async with running(some) as statuses:
        children()[0].kill()
        await until(lambda: "as others run" in caplog.text and all(each.is_well for each in some._members))
    assert statuses == [0]


async def test_one_that_is_about_to_be_started_again_counts_as_running(start, children, monkeypatch, caplog):
    monkeypatch.setattr(fates, "FIRST_DELAY_S", 8.0)
    async with running(start([GOOD, BROKEN], [GOOD])) as statuses:
        first, second = children()
        second.kill()
        await until(lambda: "restarting it in 8.0 s" in caplog.text)
        monkeypatch.setattr(fates, "FIRST_DELAY_S", 0.001)
        first.kill()
        await until(lambda: "as others run" in caplog.text)
    assert statuses == [1]
    assert "no node is left" not in caplog.text


async def test_one_that_does_not_become_ready_is_killed_and_tried_again(start, children, monkeypatch, caplog):
    monkeypatch.setattr(fleet, "START_S", 0.3)
    monkeypatch.setattr(fates, "FIRST_DELAY_S", 0.001)
    await run_until_ready(start([SLOW, GOOD]))
    assert "is not ready after" in caplog.text
    assert not children()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look counts, however busy this machine is, and a node that is only slow has fifteen of them."""
    monkeypatch.setattr(fates, "STARVED", 1e6)
    monkeypatch.setattr(fates, "HUNG_AFTER", 15)
    monkeypatch.setattr(fates, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(fates, "ASK_EVERY_S", 0.1)


@pytest.mark.usefixtures("impatient")
async def test_one_that_hangs_is_killed_and_started_again_and_the_others_go_on(start, children, caplog):
    some = start([HANGS, GOOD], [GOOD])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(some.run)
        await until(some._announced.is_set)
        hung, well = sorted(children(), key=lambda child: "signal.pause" not in child.cmdline()[-1])
        await until(lambda: len(children()) == 2 and hung.pid not in {child.pid for child in children()})
        assert well in children()
        some.stop()
    assert f"Node 1 (pid {hung.pid}) has not answered" in caplog.text
    assert "node 2" not in caplog.text.lower()
    assert not children()


async def test_one_that_ends_in_the_moment_in_which_it_is_killed_is_just_gone(start, monkeypatch):
    monkeypatch.setattr(fleet, "START_S", 0.0)
    some = start([BROKEN])
    member = fleet._Member(1, some)
    member._process = process = await anyio.open_process([sys.executable, "-I", "-S", "-c", BROKEN])
    await process.wait()
    some.stopping.set()
    monkeypatch.setattr(fleet._Fleet, "stop_within_s", 0.0)
    await member._kill_when_stuck()
    await process.aclose()


@pytest.mark.usefixtures("impatient")
async def test_one_that_answers_late_is_left_alone(start, children, caplog, capfd, monkeypatch):
    monkeypatch.setattr(fates, "HUNG_AFTER", 50)  # 5 s; it needs 0.1
    some = start([ANSWERS_LATE])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(some.run)
        printed = ""
        with anyio.fail_after(30):
            while printed.count("answered") < 5:
                printed += capfd.readouterr().out
                await anyio.sleep(0.005)
        some.stop()
    assert not caplog.text
    assert not children()


@pytest.mark.usefixtures("impatient")
async def test_one_that_hangs_at_once_again_and_again_ends_them_where_no_other_runs(start, caplog, monkeypatch):
    monkeypatch.setattr(fates, "AT_ONCE_S", 0.001)  # less than it takes to see that it hangs
    monkeypatch.setattr(fates, "HUNG_AFTER", 3)
    with anyio.fail_after(60):
        assert await start([HANGS]).run() == 1
    assert caplog.text.count("has not answered") == RARELY_AFTER
    assert "no node is left" in caplog.text


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
