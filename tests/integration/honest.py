"""A program of its own: honest clients, who call a tool, and now and then begin a session. It says `ready`, goes on
until its stdin ends, and then prints what it measured: a line of JSON for each act, `[kind, began at, seconds, error]`,
with the clock that all processes of a machine share.

    honest.py URL KEY SESSIONS
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
from mcp_clients import CallFailed, StreamableSession

PAUSE_S = 0.02
BETWEEN_SESSIONS_S = 0.5


class Honest:
    """The clients, and what they have measured."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self.headers = url, {"Authorization": f"Bearer {key}"}
        self.acts: list[tuple[str, float, float, str | None]] = []
        self.has_ended = asyncio.Event()

    async def measure(self, kind: str, act: Callable[[], Awaitable[object]]) -> None:
        began_at, error = time.monotonic(), None
        try:
            await act()
        except (CallFailed, OSError, TimeoutError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        self.acts.append((kind, began_at, time.monotonic() - began_at, error))

    async def open(self) -> StreamableSession:
        session = StreamableSession(self.url, self.headers)
        await session.open()
        return session

    async def call_for_ever(self, session: StreamableSession) -> None:
        while not self.has_ended.is_set():
            await self.measure("call", lambda: session.call_tool("echo", {"text": "honest"}))
            await asyncio.sleep(PAUSE_S)
        await session.close()

    async def come_and_go(self) -> None:
        while not self.has_ended.is_set():
            await self.measure("visit", self.visit)
            await asyncio.sleep(BETWEEN_SESSIONS_S)

    async def visit(self) -> None:
        """A session on a connection of its own, from its beginning to its end."""
        session = await self.open()
        try:
            await session.call_tool("echo", {"text": "honest"})
        finally:
            await session.close()


async def main() -> None:
    url, key, number = sys.argv[1:]
    honest = Honest(url, key)
    sessions = [await honest.open() for _ in range(int(number))]
    asyncio.get_running_loop().add_reader(sys.stdin, honest.has_ended.set)  # it is readable when it ends
    print("ready", flush=True)
    await asyncio.gather(honest.come_and_go(), *map(honest.call_for_ever, sessions))
    for act in honest.acts:
        print(json.dumps(act))


if __name__ == "__main__":
    asyncio.run(main())
