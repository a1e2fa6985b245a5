"""One dialogue of an official client with a server, written down at both of its ends.

At the client's end are the messages that the client gives to its transport and gets from it; at the server's end the
lines of its stdin and stdout (`tee.py`). Both clocks are that of the machine, so each line belongs to a step.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, MCPError
from mcp.shared.message import SessionMessage

HERE = Path(__file__).resolve().parent
TEE = [sys.executable, "-I", "-S", str(HERE / "tee.py")]
STEP_S = 60.0  # a busy machine
ON_TIME_S = 20.0  # for what has come directly before its step was over, and has another stream through the gateway


@dataclass(frozen=True, slots=True)
class Line:
    """One message."""

    at: float
    of_client: bool
    message: dict[str, Any]
    process: str = ""  # of the server, at its end: ids are its own


@dataclass(slots=True)
class Dialogue:
    """What was said in each step, by either side, at either end."""

    journals: Path
    steps: list[tuple[float, str]] = field(default_factory=list)
    at_client: list[Line] = field(default_factory=list)

    def at_server(self) -> list[Line]:
        """Of all processes that there were."""
        lines = []
        for journal in sorted(self.journals.iterdir()):
            for line in journal.read_bytes().splitlines():
                at, speaker, message = line.split(b" ", 2)
                lines.append(Line(float(at), speaker == b"client", json.loads(message), journal.name))
        return sorted(lines, key=lambda line: line.at)

    def by_step(self, lines: Sequence[Line]) -> dict[str, list[Line]]:
        ends = [*(at for at, _ in self.steps[1:]), float("inf")]
        return {
            name: [line for line in lines if began <= line.at < end]
            for (began, name), end in zip(self.steps, ends, strict=True)
        }

    def heard(self, since: int) -> Counter[str]:
        """The methods of what the server has said by itself, from this line on."""
        lines = (line for line in self.at_client[since:] if not line.of_client)
        return Counter(line.message["method"] for line in lines if "method" in line.message)

    def heard_by_step(self) -> dict[str, Counter[str]]:
        """How many of each message the server has sent by itself."""
        return {
            name: Counter(line.message["method"] for line in lines if not line.of_client and "method" in line.message)
            for name, lines in self.by_step(self.at_client).items()
        }

    async def has_heard(self, methods: Mapping[str, int], since: int) -> None:
        """Waits for as many messages. Those that do not come show in the comparison."""
        with anyio.move_on_after(ON_TIME_S):
            while not Counter(methods) <= self.heard(since):
                await anyio.sleep(0.005)

    async def step(self, name: str, act: Callable[[], Awaitable[object]], awaited: Mapping[str, int]) -> None:
        """Does one thing, and waits until as many of these messages have come."""
        began = len(self.at_client)
        self.steps.append((time.monotonic(), name))
        with anyio.move_on_after(STEP_S) as timing, suppress(MCPError):  # an error is a message like any other
            await act()
            await self.has_heard(awaited, began)
        said = [line.message for line in self.at_client[began:]]
        assert not timing.cancelled_caught, f"{name} is not over after {STEP_S} s: {said}"


class _Heard:
    """A read stream that notes what comes out of it."""

    def __init__(self, inner: Any, note: Callable[[Any], None]) -> None:
        self._inner, self._note = inner, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aenter__(self) -> "_Heard":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._inner.__aexit__(*error)

    def __aiter__(self) -> "_Heard":
        return self

    async def __anext__(self) -> Any:
        item = await self._inner.__anext__()
        self._note(item)
        return item


class _Said:
    """A write stream that notes what goes into it."""

    def __init__(self, inner: Any, note: Callable[[Any], None]) -> None:
        self._inner, self._note = inner, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aenter__(self) -> "_Said":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._inner.__aexit__(*error)

    async def send(self, item: Any) -> None:
        self._note(item)
        await self._inner.send(item)


@asynccontextmanager
async def _recorded(transport: AbstractAsyncContextManager[Any], lines: list[Line]) -> AsyncIterator[Any]:
    def note(of_client: bool) -> Callable[[Any], None]:
        def keep(item: Any) -> None:
            assert isinstance(item, SessionMessage), item
            message = item.message.model_dump(mode="json", by_alias=True, exclude_unset=True)
            lines.append(Line(time.monotonic(), of_client, message))

        return keep

    async with transport as (read, write):
        yield _Heard(read, note(False)), _Said(write, note(True))


@asynccontextmanager
async def recorded_client(
    transport: AbstractAsyncContextManager[Any], dialogue: Dialogue, **options: Any
) -> AsyncIterator[Client]:
    """The official client over this transport. Its opening is the first step."""
    dialogue.steps.append((time.monotonic(), "opening"))
    async with Client(_recorded(transport, dialogue.at_client), cache=None, **options) as client:
        yield client
