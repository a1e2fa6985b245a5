"""How long a template may take to fork."""

import time

import anyio
import pytest

from app.processes.forking.start import NoFork, fork_deadline

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.processes.forking.start.FORK_S", 0.1)


async def test_a_standstill_of_the_node_is_not_the_template_s_fault() -> None:
    """Its answer is there, and is read only now."""
    async with fork_deadline():
        time.sleep(0.2)
        await anyio.sleep(0.01)


async def test_one_that_does_not_answer_has_failed() -> None:
    with pytest.raises(NoFork, match="no answer in 0 s"):
        async with fork_deadline():
            await anyio.sleep(60)
