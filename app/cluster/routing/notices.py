"""Notices: one Redis stream in which a node tells the others to look at the audit trail, or that it leaves.

One may get lost: without any, a node looks at the trail and at the list of nodes once a second.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import anyio
from redis.exceptions import RedisError

from app.cluster.redis.connection import RedisConnection
from app.cluster.redis.survey import in_one_line
from app.cluster.routing.records import Seal
from app.errors import GatewayError
from app.telemetry.logs import Seldom

STREAM = "trunkline:notices"
KEPT = 1000  # entries; nobody reads old ones
BLOCK_MS = 2000  # how long a read waits; proxies close connections that are silent for longer
LATE_S = 1.0
RETRY_S = (0.05, 1.0)  # the first wait and the longest; half of it is random, so that nodes do not all retry at once

_Ask = Callable[..., Awaitable[Any]]  # one command on the connection that reads
_Entries = Sequence[tuple[bytes, dict[bytes, bytes]]]

log = logging.getLogger(__name__)


class Notices:
    """Sends this node's notices and receives those of other nodes, in a task that calls `run`."""

    def __init__(self, connection: RedisConnection, seal: Seal, node: str) -> None:
        self._connection, self._seal, self._node = connection, seal, node
        self._must_say = anyio.Event()
        self._forged = Seldom()

    def say_look(self) -> None:
        """Tells the others soon. Neither waits nor raises."""
        self._must_say.set()

    async def say_leaving(self) -> None:
        """Tells the others that this node stops, if Redis answers."""
        with suppress(GatewayError):
            await self._add("leaves", self._seal.seal(self._node.encode(), STREAM))

    async def run(self, look: Callable[[], None], on_leaving: Callable[[str], None]) -> None:
        """Calls these when other nodes say so. They must neither wait nor raise."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._say_for_ever)
            tasks.start_soon(self._hear_for_ever, look, on_leaving)

    async def _say_for_ever(self) -> None:
        while True:
            await self._must_say.wait()
            self._must_say = anyio.Event()  # what is said while this is under way is said once more
            with suppress(GatewayError):
                await self._add("look", self._node)

    async def _add(self, what: str, value: str | bytes) -> None:
        await self._connection.execute("XADD", STREAM, "MAXLEN", "~", KEPT, "*", what, value)

    async def _hear_for_ever(self, look: Callable[[], None], on_leaving: Callable[[str], None]) -> None:
        failures = 0
        while True:
            client, position = self._connection.blocking_client(), b"$"  # from now on
            ask: _Ask = client.execute_command
            try:
                while True:
                    with anyio.fail_after(BLOCK_MS / 1000 + LATE_S):
                        entries = _entries(await ask("XREAD", "BLOCK", BLOCK_MS, "STREAMS", STREAM, position))
                    failures = 0
                    for _, fields in entries:
                        self._take(fields, look, on_leaving)
                    position = entries[-1][0] if entries else position
            except (RedisError, OSError, TimeoutError) as problem:
                if not failures:
                    why = in_one_line(problem)
                    log.warning("Cannot receive notices of other nodes from Redis, will retry: %s", why)
            except Exception:
                log.exception("Could not read notices of other nodes; will retry")
            finally:
                with anyio.move_on_after(LATE_S, shield=True):
                    await client.aclose()
            failures += 1
            await anyio.sleep(_pause_s(failures))

    def _take(self, fields: dict[bytes, bytes], look: Callable[[], None], on_leaving: Callable[[str], None]) -> None:
        if fields.get(b"look", self._node.encode()) != self._node.encode():
            look()
        if (sealed := fields.get(b"leaves")) is not None:
            try:
                node = self._seal.open(sealed, STREAM).decode()
            except ValueError:
                self._connection.note_forged()
                self._forged.error(log, f"Ignored an entry of the Redis stream {STREAM} that no node of ours wrote")
            else:
                if node != self._node:
                    on_leaving(node)


def _entries(answer: Any) -> _Entries:
    """The entries of the one stream, in a reply of RESP3 (dict) or RESP2 (list)."""
    if not answer:
        return []
    entries: _Entries = next(iter(answer.values()))[0] if isinstance(answer, dict) else answer[0][1]
    return entries


def _pause_s(failures: int) -> float:
    first, longest = RETRY_S
    return float(min(longest, first * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
