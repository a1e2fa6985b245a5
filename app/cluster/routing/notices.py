"""Notices: one Redis stream in which every node tells the others what has changed.

It is fast, but not reliable: a node that may have missed something gets RESYNC, and the audit trail is read besides.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import anyio
from prometheus_client import Counter
from redis.exceptions import RedisError

from app.cluster.redis.connection import RedisConnection
from app.cluster.redis.survey import in_one_line
from app.cluster.routing.notice import RESYNC, STREAM, Notice, Numbers, Received, read, write
from app.cluster.routing.records import Seal
from app.errors import GatewayError

KEPT = 10_000  # entries; no node with a live connection lags so far behind
MAX_UNSENT = 1000
TOO_OLD_S = 30.0  # by then the other nodes know the change from the audit trail
BLOCK_S = 2.0  # how long a read waits; proxies close connections that are silent for longer
LATE_S = 1.0
BATCH = 500
RETRY_S = (0.05, 1.0)  # the first wait and the longest; half of it is random, so that nodes do not all retry at once
COMPLAIN_EVERY_S = 60.0

Hear = Callable[[Notice], None]
_Ask = Callable[..., Awaitable[Any]]  # one command on the connection that reads
_Entries = Sequence[tuple[Any, dict[Any, Any]]]

log = logging.getLogger(__name__)


class _Unsent(NamedTuple):
    number: int
    notice: Notice
    at: float


class Notices:
    """Sends this node's notices and receives those of other nodes, in a task that calls `run`."""

    def __init__(
        self,
        connection: RedisConnection,
        seal: Seal,
        node: str,
        errors: Counter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection, self._seal, self._node, self._clock = connection, seal, node, clock
        self._forged = errors.labels("poisoned")
        self._unsent: deque[_Unsent] = deque()
        self._number = 0
        self._has_work, self._is_done = anyio.Event(), anyio.Event()
        self._numbers = Numbers()
        self._complained_at = -COMPLAIN_EVERY_S
        self.is_connected = False

    def publish(self, notice: Notice) -> None:
        """Sends the notice soon. Neither waits nor raises; above MAX_UNSENT the oldest two become one RESYNC."""
        if not self._unsent:
            self._is_done = anyio.Event()
        elif len(self._unsent) >= MAX_UNSENT:
            self._unsent.popleft()
            self._give_up(self._unsent.popleft())
        self._number += 1
        self._unsent.append(_Unsent(self._number, notice, self._clock()))
        self._has_work.set()

    async def flush(self, seconds: float) -> bool:
        """Waits until everything is sent; False if that took longer."""
        with anyio.move_on_after(seconds):
            while self._unsent:
                await self._is_done.wait()
        return not self._unsent

    async def run(self, hear: Hear) -> None:
        """Sends notices, and calls `hear` with those of other nodes: with RESYNC at the start, and whenever some may
        have been missed. `hear` must neither wait nor raise."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_for_ever)
            tasks.start_soon(self._read_for_ever, hear)

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
        # If the answer gets lost it is sent again: receivers recognise the repetition by its number.
        sealed = write(self._seal, Received(self._node, unsent.number, unsent.notice.kind, unsent.notice.about))
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
        """Puts a RESYNC in its place. Once that is too old itself, it is merged with the old notices behind it."""
        self._unsent.appendleft(_Unsent(unsent.number, RESYNC, self._clock()))

    # --- reading

    async def _read_for_ever(self, hear: Hear) -> None:
        failures = 0
        while True:
            client = self._connection.blocking_client()
            ask: _Ask = client.execute_command
            try:
                position = await self._mark(ask)
                hear(RESYNC)
                self.is_connected, failures = True, 0
                while True:
                    position = await self._read(ask, position, hear)
            except (RedisError, OSError, TimeoutError) as problem:
                if self.is_connected:
                    why = in_one_line(problem)
                    log.warning("Cannot receive notices of other nodes from Redis, will retry: %s", why)
            except Exception:
                log.exception("Could not read notices of other nodes; will retry")
            finally:
                self.is_connected = False
                with anyio.move_on_after(LATE_S, shield=True):
                    await client.aclose()
            failures += 1
            await anyio.sleep(_pause_s(failures))

    async def _mark(self, ask: _Ask) -> bytes | str:
        """Adds an entry to start reading after. While it exists, no later entry was trimmed."""
        with anyio.fail_after(LATE_S):
            mark: bytes | str = await ask("XADD", STREAM, "MAXLEN", "~", KEPT, "*", "m", "")
        return mark

    async def _read(self, ask: _Ask, position: bytes | str, hear: Hear) -> bytes | str:
        """Waits for entries and passes them on; returns the position to continue from."""
        command = ("XREAD", "COUNT", BATCH, "BLOCK", int(BLOCK_S * 1000), "STREAMS", STREAM, position)
        with anyio.fail_after(BLOCK_S + LATE_S):
            entries = _entries(await ask(*command))
        with anyio.fail_after(LATE_S):
            is_whole = bool(await ask("XRANGE", STREAM, position, position))
        if not is_whole:  # Redis was emptied, restarted or failed over, or the stream was trimmed
            hear(RESYNC)
            if not entries:
                return await self._mark(ask)
        for _, fields in entries:
            self._take(fields, hear)
        return entries[-1][0] if entries else position

    def _take(self, fields: dict[Any, Any], hear: Hear) -> None:
        sealed = fields.get(b"n")
        if sealed is None:
            return
        try:
            received = read(self._seal, sealed)
        except ValueError:
            self._complain()
            return
        if received.sender == self._node:
            return
        step = self._numbers.step(received.sender, received.number)
        if step > 1:
            hear(RESYNC)
        if step >= 1:
            hear(Notice(received.kind, received.about))

    def _complain(self) -> None:
        self._forged.inc()
        if self._clock() - self._complained_at >= COMPLAIN_EVERY_S:
            self._complained_at = self._clock()
            log.error("Ignored entries of the Redis stream %s that no node with this SECRET_KEY wrote", STREAM)


def _entries(answer: Any) -> _Entries:
    """The entries of the one stream, in a reply of RESP3 (dict) or RESP2 (list)."""
    if not answer:
        return []
    entries: _Entries = next(iter(answer.values()))[0] if isinstance(answer, dict) else answer[0][1]
    return entries


def _pause_s(failures: int) -> float:
    first, longest = RETRY_S
    return float(min(longest, first * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
