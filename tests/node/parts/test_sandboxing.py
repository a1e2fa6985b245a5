"""The sandbox of a node that is stopped while it opens: on the real kernel."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import anyio
import pytest

from app.jail.sandbox.cgroup_roots import CgroupRoots, open_roots
from app.node.parts import sandboxing
from app.node.parts.opening import Opening
from app.settings.settings import Settings
from app.telemetry.metrics import Metrics


class HalfWay:
    """Makes the control groups, and does not return until it may: `made` are their directories."""

    def __init__(self) -> None:
        self.made: list[Path] = []
        self.is_half_way, self.may_return = threading.Event(), threading.Event()

    def open(self) -> CgroupRoots:
        roots = open_roots()
        self.made = [Path(each) for each in roots.directories.values()]
        self.is_half_way.set()
        self.may_return.wait(20)
        return roots

    async def comes(self) -> None:
        with anyio.fail_after(20):
            while not self.is_half_way.is_set():
                await anyio.sleep(0.001)
        if not self.made:
            pytest.skip("no control groups on this machine")
        assert all(each.exists() for each in self.made)


@pytest.fixture
def half_way(monkeypatch: pytest.MonkeyPatch) -> Iterator[HalfWay]:
    half_way = HalfWay()
    monkeypatch.setattr(sandboxing, "open_roots", half_way.open)
    yield half_way
    half_way.may_return.set()


def of_directory(directory: Path, **more: str) -> Settings:
    return Settings.from_env({"TRUNKLINE_DATA_DIR": str(directory), "TRUNKLINE_SECRET_KEY": "ab" * 32, **more})


async def opened(directory: Path) -> None:
    """Opens the sandbox of a node, and closes it at once."""
    settings = of_directory(directory)
    async with AsyncExitStack() as stack:
        opening = Opening.of_node(stack, settings, Metrics("test"), "node")
        await sandboxing.open_sandboxes(opening, lambda tenant: None)


async def test_a_cancelled_scope_leaves_no_control_group(half_way: HalfWay, tmp_path: Path) -> None:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(opened, tmp_path)
            await half_way.comes()
            tasks.cancel_scope.cancel()
            half_way.may_return.set()
    assert not [each for each in half_way.made if each.exists()]


async def test_a_cancelled_task_leaves_no_control_group(half_way: HalfWay, tmp_path: Path) -> None:
    """As by SIGINT. The thread is still at work when nobody waits for it any more."""
    node = asyncio.create_task(opened(tmp_path))
    await half_way.comes()
    node.cancel()
    await anyio.sleep(0.05)
    assert not node.done()  # it waits for what it must close
    half_way.may_return.set()
    with anyio.fail_after(20), suppress(asyncio.CancelledError):
        await node
    assert node.cancelled()
    assert not [each for each in half_way.made if each.exists()]


async def test_a_cancellation_right_after_leaves_no_control_group(half_way: HalfWay, tmp_path: Path) -> None:
    half_way.may_return.set()
    node = asyncio.create_task(opened(tmp_path))
    await half_way.comes()
    node.cancel()
    with anyio.fail_after(20), suppress(asyncio.CancelledError):
        await node
    assert not [each for each in half_way.made if each.exists()]


@pytest.mark.parametrize(("url", "is_used"), [("http://me:s3cret@proxy:3128", True), ("https://proxy:3128", False)])
def test_a_proxy_that_is_spoken_to_with_tls_is_not_for_processes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, url: str, is_used: bool
) -> None:
    found = sandboxing.proxy_of_processes(of_directory(tmp_path, TRUNKLINE_OUTBOUND_PROXY=url))
    assert (found is not None) is is_used
    assert ("OUTBOUND_PROXY" in caplog.text) is not is_used
    assert "s3cret" not in caplog.text


def test_without_one_there_is_none(tmp_path: Path) -> None:
    assert sandboxing.proxy_of_processes(of_directory(tmp_path)) is None
