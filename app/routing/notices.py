"""Notices: one Redis stream on which every node tells the others what has changed.

The quick way, not the sure one: whoever may have missed something hears RESYNC, and the audit trail is read besides.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
from prometheus_client import Counter
from redis.exceptions import RedisError

from app.errors import GatewayError
from app.routing.notice import RESYNC, Notice, Numbers, Received, Seals, Unreadable, read, write

STREAM = "trunkline:notices"
KEPT = 10_000  # entries; more than any node is behind while its connection lives
MAX_UNSENT = 1000
TOO_OLD_S = 30.0  # what could not be sent for so long is known from the audit trail by then
BLOCK_S = 2.0  # how long a read waits: less than what a proxy in between takes for a dead connection
LATE_S = 1.0
BATCH = 500
RETRY_S = (0.05, 1.0)  # the first wait and the longest; half of it is random, so that not all nodes come at once
COMPLAIN_EVERY_S = 60.0

Hear = Callable[[Notice], None]
_Entries = Sequence[tuple[Any, dict[Any, Any]]]

log = logging.getLogger(__name__)


class BlockingClient(Protocol):
    """A connection of its own, for reads that wait."""

    async def execute_command(self, *command: Any) -> Any:
        """Raises RedisError, or OSError."""

    async def aclose(self) -> None:
        """Closes the connection."""


class Connection(Protocol):
    """Redis, as this file needs it (`redis_connection.RedisConnection`)."""

    async def execute(self, *command: Any) -> Any:
        """One command within the deadline. Raises RoutesUnavailable."""

    def blocking_client(self) -> BlockingClient:
        """A client without a time-out of its own; whoever asked closes it."""


@dataclass(frozen=True, slots=True)
class _Unsent:
    number: int
    notice: Notice
    at: float


class Notices:
    """Sends this node's notices and hears those of the others. `run` runs in a task of the node."""

    def __init__(
        self,
        connection: Connection,
        seals: Seals,
        node: str,
        errors: Counter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection, self._seals, self._node, self._clock = connection, seals, node, clock
        self._forged = errors.labels("poisoned")
        self._unsent: deque[_Unsent] = deque()
        self._number = 0
        self._has_work, self._is_done = anyio.Event(), anyio.Event()
        self._numbers = Numbers()
        self._complained_at = -COMPLAIN_EVERY_S
        self.is_connected = False

    def publish(self, notice: Notice) -> None:
        """Tells the others, as soon as possible. Neither waits nor raises; at the limit the oldest become a RESYNC."""
        if not self._unsent:
            self._is_done = anyio.Event()
        elif len(self._unsent) >= MAX_UNSENT:
            self._unsent.popleft()
            self._give_up(self._unsent.popleft())
        self._number += 1
        self._unsent.append(_Unsent(self._number, notice, self._clock()))
        self._has_work.set()

    async def flush(self, seconds: float) -> bool:
        """Waits until everything is sent, at most so long; whether it is."""
        with anyio.move_on_after(seconds):
            while self._unsent:
                await self._is_done.wait()
        return not self._unsent

    async def run(self, hear: Hear) -> None:
        """Sends, and calls `hear` for what comes from others; RESYNC whenever something may have been missed.

        `hear` neither waits nor raises. The beginning is such a moment too.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_for_ever)
            tasks.start_soon(self._read_for_ever, hear)

    def __repr__(self) -> str:
        return f"<Notices [{'connected' if self.is_connected else 'away'}, {len(self._unsent)} unsent]>"

    # --- sending

    async def _send_for_ever(self) -> None:
        failures = 0
        while True:
            await self._has_work.wait()
            self._drop_old()
            try:
                await self._send(self._unsent[0])
                failures = 0
            except GatewayError:
                failures += 1
                await anyio.sleep(_pause_s(failures))
            if not self._unsent:
                self._has_work = anyio.Event()
                self._is_done.set()

    async def _send(self, unsent: _Unsent) -> None:
        # A command that was carried out though its answer did not come is sent again: by its number it is one notice.
        sealed = write(self._seals, STREAM, Received(self._node, unsent.number, unsent.notice))
        await self._connection.execute("XADD", STREAM, "MAXLEN", "~", KEPT, "*", "n", sealed)
        if self._unsent[0] is unsent:
            self._unsent.popleft()

    def _drop_old(self) -> None:
        old, too_old = None, self._clock() - TOO_OLD_S
        while self._unsent and self._unsent[0].at < too_old:
            old = self._unsent.popleft()
        if old is not None:
            self._give_up(old)

    def _give_up(self, unsent: _Unsent) -> None:
        """RESYNC takes its place. When it is too old itself, it becomes one with what is too old behind it."""
        self._unsent.appendleft(_Unsent(unsent.number, RESYNC, self._clock()))

    # --- reading

    async def _read_for_ever(self, hear: Hear) -> None:
        failures = 0
        while True:
            client = self._connection.blocking_client()
            try:
                position = await self._mark(client)
                hear(RESYNC)
                self.is_connected, failures = True, 0
                while True:
                    position = await self._read(client, position, hear)
            except (RedisError, OSError, TimeoutError) as problem:
                if self.is_connected:
                    log.warning("Notices of other nodes do not arrive: %s", type(problem).__name__)
            except Exception:
                log.exception("Could not read notices of other nodes")
            finally:
                self.is_connected = False
                with anyio.move_on_after(LATE_S, shield=True):
                    await client.aclose()
            failures += 1
            await anyio.sleep(_pause_s(failures))

    async def _mark(self, client: BlockingClient) -> bytes | str:
        """An entry to begin behind. As long as it is there, nothing behind it was thrown away."""
        with anyio.fail_after(LATE_S):
            mark: bytes | str = await client.execute_command("XADD", STREAM, "MAXLEN", "~", KEPT, "*", "m", "")
        return mark

    async def _read(self, client: BlockingClient, position: bytes | str, hear: Hear) -> bytes | str:
        """Waits for entries and tells of them; returns where to go on."""
        command = ("XREAD", "COUNT", BATCH, "BLOCK", int(BLOCK_S * 1000), "STREAMS", STREAM, position)
        with anyio.fail_after(BLOCK_S + LATE_S):
            entries = _entries(await client.execute_command(*command))
        with anyio.fail_after(LATE_S):
            is_whole = bool(await client.execute_command("XRANGE", STREAM, position, position))
        if not is_whole:  # emptied, restarted, failed over, or overtaken by the stream's own limit
            hear(RESYNC)
            if not entries:
                return await self._mark(client)
        for _, fields in entries:
            self._take(fields, hear)
        return entries[-1][0] if entries else position

    def _take(self, fields: dict[Any, Any], hear: Hear) -> None:
        sealed = fields.get(b"n")
        if sealed is None:
            return
        try:
            received = read(self._seals, STREAM, sealed)
        except Unreadable:
            self._complain()
            return
        if received.sender == self._node:
            return
        step = self._numbers.step(received.sender, received.number)
        if step > 1:
            hear(RESYNC)
        if step >= 1:
            hear(received.notice)

    def _complain(self) -> None:
        self._forged.inc()
        if self._clock() - self._complained_at >= COMPLAIN_EVERY_S:
            self._complained_at = self._clock()
            log.error("Ignored entries in the notice stream that none of our nodes has written")


def _entries(answer: Any) -> _Entries:
    """Those of the one stream. RESP3 and RESP2 put them into different boxes."""
    if not answer:
        return []
    entries: _Entries = next(iter(answer.values()))[0] if isinstance(answer, dict) else answer[0][1]
    return entries


def _pause_s(failures: int) -> float:
    first, longest = RETRY_S
    return float(min(longest, first * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
