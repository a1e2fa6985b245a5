"""Three nodes, their Redis and their database under every fault at once; the history of it is checked.

Ten seconds of it with a seed that is always the same; `--chaos MINUTES` is as much as you like, with another seed each
time or with `--chaos-seed N`. A history that breaks a promise stays on disk: `python -m tests.chaos.check DIRECTORY`
checks it again.
"""

import shutil
import tempfile
from pathlib import Path

import anyio
import pytest

from tests.chaos.check import violations
from tests.chaos.history import History, Writer
from tests.chaos.rig import running_rig
from tests.chaos.storm import Storm, default_seed

ALWAYS_S, ALWAYS_SEED = 8.0, 49
AROUND_S = 240.0  # the start, what has to become well again, and the end

pytestmark = pytest.mark.timeout(24 * 3600)


async def test_what_a_storm_leaves(postgres_database: str, pytestconfig: pytest.Config) -> None:
    minutes, seed = pytestconfig.getoption("--chaos"), pytestconfig.getoption("--chaos-seed")
    seconds = minutes * 60 if minutes else ALWAYS_S
    if seed is None:
        seed = default_seed() if minutes else ALWAYS_SEED
    directory = Path(tempfile.mkdtemp(prefix="trunkline-chaos-"))  # pytest's own are not kept for long
    print(f"\nseed {seed}, {seconds:.0f} s; the history and the nodes' logs are in {directory}", flush=True)
    writer = Writer(directory)
    try:
        async with running_rig(directory, postgres_database, writer) as rig:
            with anyio.fail_after(seconds + AROUND_S):
                await Storm(rig, writer, seed, seconds).run()
    finally:
        writer.close()
    found = violations(History.load(directory))
    if not found and not minutes:
        shutil.rmtree(directory)
    assert not found, f"seed {seed}, history and logs {directory}:\n" + "\n".join(found[:50])
