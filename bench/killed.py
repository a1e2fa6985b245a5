"""How long a client waits for the error of a call whose server is killed, and whether others notice.

.venv/bin/python bench/killed.py [--times 100]
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import anyio
import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.integration.gateway import ECHO, Gateway, running_gateway
from tests.integration.wire import Wire

WITHIN_S = 30.0


async def killed(gateway: Gateway, others: set[int], session: Wire) -> float:
    """Milliseconds from the kill of the session's process to the error of its call."""
    found: list[float] = []

    async def call() -> None:
        await session.ask("sleep", ms=60_000)
        found.append(time.perf_counter())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await anyio.sleep(0.05)  # it has reached the process
        for each in gateway.backends():
            if each.pid not in others:
                each.kill()
        began = time.perf_counter()
    return (found[0] - began) * 1000


async def measure(gateway: Gateway, times: int) -> None:
    endpoint = gateway.endpoint(ECHO, timeouts={"call_s": 60})
    async with httpx2.AsyncClient(timeout=60) as http:
        bystander = Wire(http, endpoint)
        await bystander.open()
        others = {each.pid for each in gateway.backends()}
        waits = []
        for _ in range(times):
            session = Wire(http, endpoint)
            await session.open()
            with anyio.fail_after(WITHIN_S):
                waits.append(await killed(gateway, others, session))
            assert await bystander.call("echo", text="here") == "here"
    print(f"{times} kills: median {statistics.median(waits):.1f} ms, longest {max(waits):.1f} ms")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--times", type=int, default=100)
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name, running_gateway(Path(name) / "data", LOG_LEVEL="error") as gateway:
        anyio.run(measure, gateway, asked.times)


if __name__ == "__main__":
    main()
