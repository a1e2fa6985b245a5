"""What idle sessions keep of a node's memory, without and with an open GET stream each.

    .venv/bin/python bench/streams.py [--sessions 500]

All have one shared process, so that what grows is the node.
"""

import argparse
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import httpx2
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.integration.gateway import ECHO, Gateway, running_gateway
from tests.integration.wire import Wire

FIRST = 50  # what the first sessions load stays


def resident(gateway: Gateway) -> int:
    return int(psutil.Process(gateway.pid).memory_info().rss)


async def measure(gateway: Gateway, count: int) -> None:
    endpoint = gateway.endpoint(ECHO, isolation="shared", max_processes=1)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=1)
    async with httpx2.AsyncClient(timeout=120, limits=limits) as http, AsyncExitStack() as streams:
        first = [Wire(http, endpoint) for _ in range(FIRST)]
        sessions = [Wire(http, endpoint) for _ in range(count)]
        for session in first:
            await session.open()
            await streams.enter_async_context(session.stream("GET"))
        before = resident(gateway)
        for session in sessions:
            await session.open()
        await anyio.sleep(2)
        idle = resident(gateway)
        for session in sessions:
            await streams.enter_async_context(session.stream("GET"))
        await anyio.sleep(2)
        with_streams = resident(gateway)
    print(f"an idle session {(idle - before) / count / 1024:.1f} KiB")
    print(f"one with an open GET stream {(with_streams - before) / count / 1024:.1f} KiB")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sessions", type=int, default=500)
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        settings = {"MAX_SESSIONS": "20000", "LOG_LEVEL": "warning"}
        with running_gateway(Path(directory) / "data", **settings) as gateway:
            anyio.run(measure, gateway, asked.sessions)


if __name__ == "__main__":
    main()
