"""ClusterUse: the processes, calls in flight and sessions that each tenant has on other nodes.

Each node writes its numbers, sealed, into a key of its own and reads those of the others in the same round. So numbers
are 0.1 s old, and proportionally older among more than READ_A_ROUND nodes: limits are exact for calls that come one
after the other, not for calls that reach several nodes at once. The key of a dead node expires.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from app.auth.sealing import Sealer
from app.cluster.periodic import repeat
from app.errors import GatewayError
from app.limits.gates import TenantGates
from app.redis.connection import RedisConnection

EVERY_S = 0.1
LAPSES_S = 3.0  # numbers expire after so long, also those read before Redis went away
SAY_AGAIN_S = 1.0  # how often unchanged numbers are written again
COMPLAIN_EVERY_S = 60.0
READ_A_ROUND = 100  # keys on average, so that the load of Redis grows with the number of nodes, not with its square
KEY = "trunkline:use:"

Used = tuple[int, int, int]  # processes, calls in flight, sessions

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Used]).decode
log = logging.getLogger(__name__)


class ProcessCounts(Protocol):
    """Counts processes by tenant (`backends.pool.ProcessPool`)."""

    def used(self) -> Mapping[str, int]:
        """On this node."""

    def note_remote_use(self, used: Mapping[str, int]) -> None:
        """On all other nodes."""


class ClusterUse:
    """`run` is a task of the node; `others` are the ids of the other living nodes."""

    def __init__(
        self,
        gates: TenantGates,
        processes: ProcessCounts,
        redis: RedisConnection,
        sealer: Sealer,
        node: str,
        others: Callable[[], Collection[str]],
    ) -> None:
        self._gates, self._processes, self._redis, self._sealer = gates, processes, redis, sealer
        self._key, self._others = KEY + node, others
        self._heard_at = self._said_at = 0.0
        self._said: dict[str, Used] = {}
        self._rounds = 0
        self._complained_at = -COMPLAIN_EVERY_S

    async def run(self) -> None:
        await repeat(self.round, EVERY_S, "Could not share what tenants use with other nodes; will retry")

    async def round(self) -> None:
        """Writes the numbers of this node and reads those of others. Does not raise if Redis is away."""
        mine, now = self._mine(), time.monotonic()
        commands: list[Sequence[Any]] = []
        keys = [KEY + node for node in self._others() if KEY + node != self._key]
        self._rounds += 1
        is_turn = self._rounds % math.ceil(max(1, len(keys)) / READ_A_ROUND) == 0
        if keys and is_turn:
            commands.append(("MGET", *keys))
        if mine != self._said or now - self._said_at >= SAY_AGAIN_S:
            sealed = self._sealer.seal(_encode(mine), self._key)
            commands.append(("SET", self._key, sealed, "PX", int(LAPSES_S * 1000)))
            self._said, self._said_at = mine, now
        try:
            answers = await self._redis.pipeline(commands)
        except GatewayError:
            self._said_at = 0.0
            if now - self._heard_at >= LAPSES_S:
                self._adopt({}, {}, {})
            return
        self._heard_at = now
        if is_turn:
            self._hear(keys, answers[0] if keys else ())

    def _hear(self, keys: Sequence[str], answers: Sequence[bytes | None]) -> None:
        sums = Counter[str](), Counter[str](), Counter[str]()
        for key, sealed in zip(keys, answers, strict=True):
            for tenant, used in self._read(key, sealed).items():
                for each, amount in zip(sums, used, strict=True):
                    each[tenant] += amount
        self._adopt(*sums)

    def _mine(self) -> dict[str, Used]:
        used = {tenant: (count, 0, 0) for tenant, count in self._processes.used().items()}
        for tenant, gate in self._gates:
            if gate.in_flight or gate.sessions:
                used[tenant] = (used.get(tenant, (0, 0, 0))[0], gate.in_flight, gate.sessions)
        return used

    def _read(self, key: str, sealed: bytes | None) -> dict[str, Used]:
        if sealed is None:
            return {}
        try:
            return _decode(self._sealer.open(sealed, key))
        except ValueError:
            if time.monotonic() - self._complained_at >= COMPLAIN_EVERY_S:
                self._complained_at = time.monotonic()
                self._redis.note_forged()
                log.error("Ignored the Redis key %s: no node with this SECRET_KEY wrote it", key)
            return {}

    def _adopt(self, processes: Mapping[str, int], in_flight: Mapping[str, int], sessions: Mapping[str, int]) -> None:
        self._gates.note_remote_use(in_flight, sessions)
        self._processes.note_remote_use(processes)
