"""keep_running: what a failed job costs the node, and when the node ends with it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import anyio
import pytest
from prometheus_client import CollectorRegistry, Counter

from app.node import jobs
from app.node.gateway import Gateway, open_gateway
from app.node.jobs import MOST_FAILURES, keep_running, pause_after
from tests.node.test_gateway import Make, alone

__all__ = ["alone"]  # a fixture


class _Bug(Exception):
    pass


@pytest.fixture
def failures() -> Counter:
    return Counter("job_failures", "of a test", ["job"], registry=CollectorRegistry())


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PAUSE_S", 0.01)
    monkeypatch.setattr(jobs, "LONGEST_PAUSE_S", 0.02)


def failing(times: int) -> tuple[Callable[[], Awaitable[None]], list[int]]:
    """A job that fails so often, and the numbers of its runs."""
    runs: list[int] = []

    async def job() -> None:
        runs.append(len(runs) + 1)
        if len(runs) <= times:
            raise _Bug(f"run {len(runs)}")

    return job, runs


async def test_a_job_that_fails_is_started_again(failures: Counter, caplog: pytest.LogCaptureFixture) -> None:
    job, runs = failing(2 * MOST_FAILURES)
    await keep_running("note activity", job, failures)
    assert len(runs) == 2 * MOST_FAILURES + 1
    assert failures.labels("note activity")._value.get() == 2 * MOST_FAILURES
    first = caplog.records[0]
    assert (first.levelno, first.exc_info is not None) == (logging.ERROR, True)
    assert "'note activity' failed; it is started again" in first.getMessage()


def test_pauses_get_longer_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pauses = [pause_after(number) for number in (1, 2, 3, 6, 7, 10_000)]
    assert pauses == [1.0, 2.0, 4.0, 32.0, 60.0, 60.0]


async def test_a_vital_job_that_fails_again_and_again_ends_the_node(
    failures: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    job, runs = failing(100)
    with pytest.raises(_Bug, match=f"run {MOST_FAILURES}"):
        await keep_running("heartbeat", job, failures, is_vital=True)
    assert len(runs) == MOST_FAILURES
    assert caplog.records[-1].levelno == logging.CRITICAL
    assert "'heartbeat'" in caplog.records[-1].getMessage()


async def test_a_failure_long_after_the_last_is_the_first_again(
    failures: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "STEADY_S", -1.0)  # each run was long enough
    job, runs = failing(3 * MOST_FAILURES)
    await keep_running("heartbeat", job, failures, is_vital=True)
    assert len(runs) == 3 * MOST_FAILURES + 1


async def test_a_cancelled_job_has_not_failed(failures: Counter) -> None:
    with anyio.move_on_after(0.01) as scope:
        await keep_running("heartbeat", anyio.sleep_forever, failures, is_vital=True)
    assert scope.cancelled_caught
    assert failures.labels("heartbeat")._value.get() == 0


async def test_a_job_that_waits_for_what_another_one_cancels_has_failed_and_others_go_on(failures: Counter) -> None:
    runs, others = 0, 0

    async def job() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            waited_for = asyncio.get_running_loop().create_future()
            waited_for.cancel()
            await waited_for

    async def other() -> None:
        nonlocal others
        while runs < 3:
            await anyio.sleep(0.001)
        others += 1

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_running, "heartbeat", job, failures)
            tasks.start_soon(other)
    assert (runs, others) == (3, 1)
    assert failures.labels("heartbeat")._value.get() == 2


async def test_a_node_serves_on_without_one_of_its_jobs(alone: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_gateway(alone()) as gateway:
        overload, decided = gateway.sessions.overload, anyio.Event()

        def fails_once(now: float) -> None:
            monkeypatch.setattr(overload, "decide", lambda now: decided.set())
            raise _Bug

        monkeypatch.setattr(overload, "decide", fails_once)
        with anyio.fail_after(60):
            await decided.wait()
        assert gateway.metrics.job_failures.labels("measure the load")._value.get() == 1
        assert (await gateway.check())["sessions"] == "ok"


async def test_a_node_ends_that_can_no_longer_end_sessions(alone: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(now: float) -> None:
        raise _Bug

    async def run(ready: Callable[[Gateway], None]) -> None:
        async with open_gateway(alone()) as gateway:
            ready(gateway)
            await anyio.sleep(60)

    with pytest.raises(ExceptionGroup) as ended:
        await run(lambda gateway: monkeypatch.setattr(gateway.sessions.registry.sweeping, "sweep", fails))
    assert ended.value.subgroup(_Bug) is not None
