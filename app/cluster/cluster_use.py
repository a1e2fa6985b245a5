"""SharedUse: what each tenant uses at this moment on other nodes: processes, calls in flight, and sessions.

Each node writes what it counts into one key of its own, sealed, and reads those of the others in the same breath. What
is known is a tenth of a second old, and among more than READ_A_ROUND nodes as many times that as they are times more:
caps are exact for who comes one after the other, not for who comes at once to several nodes. The key of a node that has
died lapses.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import anyio
import msgspec

from app.errors import GatewayError
from app.limits.gates import TenantGates

EVERY_S = 0.1
LAPSES_S = 3.0  # what was not said again for so long holds no more; also what was heard before Redis went away
SAY_AGAIN_S = 1.0  # what has not changed
COMPLAIN_EVERY_S = 60.0
READ_A_ROUND = 100  # keys on average, so that what all nodes read grows with their number, not with its square
KEY = "trunkline:use:"

Pipeline = Callable[[Sequence[Sequence[Any]]], Awaitable[Sequence[Any]]]
"""Carries out several commands. Raises RoutesUnavailable."""

Used = tuple[int, int, int]  # processes, calls in flight, sessions

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Used]).decode
log = logging.getLogger(__name__)


class Seals(Protocol):
    """Makes unreadable, and refuses what others made (`auth.sealing.Sealer`)."""

    def seal(self, secret: bytes, place: str) -> bytes:
        """For this place only."""

    def open(self, sealed: bytes, place: str) -> bytes:
        """Raises an exception of its own for what was not sealed for this place."""


class ProcessCounts(Protocol):
    """Who counts processes (`backends.pool.ProcessPool`)."""

    def used(self) -> Mapping[str, int]:
        """By tenant."""

    def set_elsewhere(self, used: Mapping[str, int]) -> None:
        """So many the tenants have on other nodes: there may be more room, or less."""


class _Foreign(Exception):
    """No node of ours has written this."""


class SharedUse:
    """Says and hears. `run` runs in a task of the node; `others` are the ids of the other living nodes."""

    def __init__(
        self,
        gates: TenantGates,
        processes: ProcessCounts,
        pipeline: Pipeline,
        seals: Seals,
        node: str,
        others: Callable[[], Collection[str]],
    ) -> None:
        self._gates, self._processes, self._pipeline, self._seals = gates, processes, pipeline, seals
        self._key, self._others = KEY + node, others
        self._heard_at = self._said_at = 0.0
        self._said: dict[str, Used] = {}
        self._rounds = 0
        self._complained_at = -COMPLAIN_EVERY_S

    async def run(self) -> None:
        """Rounds until it is cancelled."""
        while True:
            await anyio.sleep(EVERY_S)
            try:
                await self.round()
            except Exception:
                log.exception("use could not be shared")

    async def round(self) -> None:
        """Says what is used here and hears what is elsewhere. Never raises for a Redis that is away."""
        mine, now = self._mine(), time.monotonic()
        commands: list[Sequence[Any]] = []
        keys = [KEY + node for node in self._others() if KEY + node != self._key]
        self._rounds += 1
        is_turn = self._rounds % math.ceil(max(1, len(keys)) / READ_A_ROUND) == 0
        if keys and is_turn:
            commands.append(("MGET", *keys))
        if mine != self._said or now - self._said_at >= SAY_AGAIN_S:
            commands.append(("SET", self._key, self._sealed(mine), "PX", int(LAPSES_S * 1000)))
            self._said, self._said_at = mine, now
        try:
            answers = await self._pipeline(commands)
        except GatewayError:
            self._said_at = 0.0
            if now - self._heard_at >= LAPSES_S:
                self._adopt({}, {}, {})
            return
        self._heard_at = now
        if is_turn:
            self._hear(keys, answers[0] if keys else ())

    def _hear(self, keys: Sequence[str], answers: Sequence[bytes | None]) -> None:
        processes, in_flight, sessions = Counter[str](), Counter[str](), Counter[str]()
        for key, sealed in zip(keys, answers, strict=True):
            for tenant, (its_processes, its_calls, its_sessions) in self._read(key, sealed).items():
                processes[tenant] += its_processes
                in_flight[tenant] += its_calls
                sessions[tenant] += its_sessions
        self._adopt(processes, in_flight, sessions)

    def _mine(self) -> dict[str, Used]:
        used = {tenant: (count, 0, 0) for tenant, count in self._processes.used().items()}
        for tenant, gate in self._gates:
            if gate.in_flight or gate.sessions:
                used[tenant] = (used.get(tenant, (0, 0, 0))[0], gate.in_flight, gate.sessions)
        return used

    def _sealed(self, mine: dict[str, Used]) -> bytes:
        return self._seals.seal(_encode(mine), self._key)

    def _read(self, key: str, sealed: bytes | None) -> dict[str, Used]:
        if sealed is None:
            return {}
        try:
            return self._open(key, sealed)
        except _Foreign:
            if time.monotonic() - self._complained_at >= COMPLAIN_EVERY_S:
                self._complained_at = time.monotonic()
                log.error("what a node uses was not written by a node of ours")
            return {}

    def _open(self, key: str, sealed: bytes) -> dict[str, Used]:
        try:
            return _decode(self._seals.open(sealed, key))
        except Exception as problem:  # the seal's own kind is not known here
            raise _Foreign from problem

    def _adopt(self, processes: Mapping[str, int], in_flight: Mapping[str, int], sessions: Mapping[str, int]) -> None:
        self._gates.set_elsewhere(in_flight, sessions)
        self._processes.set_elsewhere(processes)
