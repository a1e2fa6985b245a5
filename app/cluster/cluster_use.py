"""ClusterUse: the processes, calls in flight, sessions and memory that each tenant has on other nodes.

Each node writes its numbers, sealed, into a key of its own and reads those of the others in the same round. So numbers
are 0.1 s old, and proportionally older among more than READ_A_ROUND nodes: limits are exact for calls that come one
after the other, not for calls that reach several nodes at once. The key of a dead node expires.
"""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from app.auth.sealing import Sealer
from app.cluster._periodic import repeat
from app.errors import GatewayError
from app.limits.tenant_budgets import NO_MEMORY, MemoryUse, TenantBudgets
from app.limits.tenant_limits import TenantGates

if TYPE_CHECKING:
    from app.cluster.redis.connection import RedisConnection

EVERY_S = 0.1
LAPSES_S = 3.0  # numbers expire after so long, also those read before Redis went away
SAY_AGAIN_S = 1.0  # how often unchanged numbers are written again
COMPLAIN_EVERY_S = 60.0
READ_A_ROUND = 100  # keys on average, so that the load of Redis grows with the number of nodes, not with its square
KEY = "trunkline:use:"

Used = tuple[int, int, int, int, int]  # processes, calls in flight, sessions, memory, that of the largest process

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

    def __init__(  # noqa: PLR0913 - once, of what is shared and how
        self,
        gates: TenantGates,
        budgets: TenantBudgets,
        processes: ProcessCounts,
        redis: "RedisConnection",
        sealer: Sealer,
        node: str,
        others: Callable[[], Collection[str]],
    ) -> None:
        self._gates, self._budgets, self._processes = gates, budgets, processes
        self._redis, self._sealer = redis, sealer
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
                self._adopt({})
            return
        self._heard_at = now
        if is_turn:
            self._hear(keys, answers[0] if keys else ())

    def _hear(self, keys: Sequence[str], answers: Sequence[bytes | None]) -> None:
        uses = defaultdict[str, list[Used]](list)
        for key, sealed in zip(keys, answers, strict=True):
            for tenant, used in self._read(key, sealed).items():
                uses[tenant].append(used)
        self._adopt(uses)

    def _mine(self) -> dict[str, Used]:
        processes, memory = self._processes.used(), self._budgets.memory()
        gates = {tenant: gate for tenant, gate in self._gates if gate.in_flight or gate.sessions}
        used: dict[str, Used] = {}
        for tenant in {*processes, *memory, *gates}:
            gate, held = gates.get(tenant), memory.get(tenant, NO_MEMORY)
            calls, sessions = (0, 0) if gate is None else (gate.in_flight, gate.sessions)
            used[tenant] = (processes.get(tenant, 0), calls, sessions, held.total, held.largest)
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

    def _adopt(self, uses: Mapping[str, Sequence[Used]]) -> None:
        processes, in_flight, sessions = (_sums(uses, each) for each in range(3))
        self._gates.note_remote_use(in_flight, sessions)
        self._budgets.note_remote_memory(
            {name: sum((MemoryUse(*each[3:]) for each in of_nodes), NO_MEMORY) for name, of_nodes in uses.items()}
        )
        self._processes.note_remote_use(processes)


def _sums(uses: Mapping[str, Sequence[Used]], which: int) -> dict[str, int]:
    return {tenant: sum(used[which] for used in of_nodes) for tenant, of_nodes in uses.items()}
