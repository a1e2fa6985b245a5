"""Which fault strikes when, decided by a seed, and how it is done and undone."""

import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from tests.chaos.history import Fault, Finding, Writer
from tests.chaos.rig import LINES, Place, Rig

REDIS = -1
DRAINED_WITHIN_S = (
    20.0  # DRAIN_S is 3; then hand-overs, the last responses, processes and writes, with Redis away or not
)
# What strikes how often, and for how long: a lease runs 5 s, a node that stood still is fenced after 3.
WEIGHTS = {
    "kill": (16, (0.2, 6.0)),
    "pause": (10, (0.5, 12.0)),
    "pause and cut": (10, (2.0, 12.0)),
    "drain": (12, (0.0, 3.0)),
    "flush": (2, (0.0, 0.0)),
    "restart": (2, (0.0, 3.0)),
    "freeze": (4, (0.3, 6.0)),
    "lose the database": (4, (0.5, 12.0)),
    "cut": (20, (0.0, 0.0)),
    "refuse": (10, (0.5, 8.0)),
    "stall": (15, (0.5, 12.0)),
    "slow": (10, (1.0, 8.0)),
}
NODE = ("kill", "pause", "pause and cut", "drain")
DATABASE = ("lose the database",)
OF_REDIS = ("flush", "restart", "freeze")


@dataclass(frozen=True)
class Strike:
    """One fault of the plan. `line` is for faults of lines; `share` of its connections is cut."""

    at: float
    what: str
    place: int
    seconds: float
    line: str = ""
    share: float = 1.0
    up: bool = True
    down: bool = True
    delay_s: float = 0.0


def plan(seed: int, seconds: float, gap_s: float = 0.9) -> list[Strike]:
    """The same seed and length are the same plan. A fault ends with the plan at the latest."""
    chance, at, found = random.Random(seed), 0.3, list[Strike]()
    while at < seconds - 0.5:
        what = chance.choices(list(WEIGHTS), [weight for weight, _ in WEIGHTS.values()])[0]
        up, down = chance.choice([(True, True), (True, False), (False, True)])
        found.append(
            Strike(
                at=at,
                what=what,
                place=REDIS if what in OF_REDIS else chance.randrange(3),
                seconds=min(chance.uniform(*WEIGHTS[what][1]), seconds - at),
                line=chance.choice(LINES),
                share=chance.choice([0.3, 1.0]),
                up=up,
                down=down,
                delay_s=chance.choice([0.02, 0.1, 0.3, 1.0]),
            )
        )
        at += min(chance.expovariate(1 / gap_s), 4 * gap_s)
    return found


class Faults:
    """Carries a plan out. At most one node is away at a time; what cannot be done is left out."""

    def __init__(self, rig: Rig, history: Writer, seed: int) -> None:
        self._rig, self._history, self._chance = rig, history, random.Random(seed)
        self._busy: set[str] = set()

    async def strike_all(self, strikes: list[Strike]) -> None:
        """Until the last one is over."""
        began_at = time.monotonic()
        async with anyio.create_task_group() as tasks:
            for strike in strikes:
                await anyio.sleep(max(0.0, began_at + strike.at - time.monotonic()))
                key = _key(strike)
                if key not in self._busy:
                    self._busy.add(key)
                    tasks.start_soon(self._strike, strike, key)

    async def _strike(self, strike: Strike, key: str) -> None:
        doing: dict[str, Callable[[Strike, Place], Awaitable[None]]] = {
            "kill": self._kill,
            "pause": self._pause,
            "pause and cut": self._pause_and_cut,
            "drain": self._drain,
        }
        try:
            if strike.what in doing:
                await doing[strike.what](strike, self._rig.places[strike.place])
            elif strike.what in DATABASE:
                await self._lose_the_database(strike)
            elif strike.place == REDIS:
                await self._harm_redis(strike)
            else:
                await self._harm_line(strike)
        finally:
            self._busy.discard(key)

    # --- nodes

    async def _kill(self, strike: Strike, place: Place) -> None:
        began = time.monotonic()
        await self._rig.end(place, signal.SIGKILL)
        await self._start_again(strike, place, began)

    async def _drain(self, strike: Strike, place: Place) -> None:
        began = time.monotonic()
        await self._rig.end(place, signal.SIGTERM)
        if (took := time.monotonic() - began) > DRAINED_WITHIN_S:
            self._history.add(Finding(f"node {place.number} drains in time", f"it took {took:.1f} s"))
        await self._start_again(strike, place, began)

    async def _start_again(self, strike: Strike, place: Place, began: float) -> None:
        await anyio.sleep(strike.seconds)
        with anyio.CancelScope(shield=True):
            await self._rig.start(place)
        self._note("node", place.number, strike.what, began)

    async def _pause(self, strike: Strike, place: Place) -> None:
        node, began = place.node, time.monotonic()
        assert node is not None
        node.process.send_signal(signal.SIGSTOP)
        try:
            await anyio.sleep(strike.seconds)
        finally:
            node.process.send_signal(signal.SIGCONT)
            self._note("node", place.number, "pause", began)

    async def _pause_and_cut(self, strike: Strike, place: Place) -> None:
        """It wakes to dead sockets, and finds nobody for a moment."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._pause, strike, place)
            await anyio.sleep(strike.seconds * self._chance.uniform(0.2, 0.95))
            for name in LINES:
                if self._chance.random() < 0.6:
                    place.lines[name].cut()
                    self._note(name, place.number, "cut", time.monotonic())

    # --- Redis

    async def _harm_redis(self, strike: Strike) -> None:
        redis, began = self._rig.redis, time.monotonic()
        if strike.what == "flush":
            await anyio.to_thread.run_sync(redis.flush)
        elif strike.what == "freeze":
            redis.freeze()
            try:
                await anyio.sleep(strike.seconds)
            finally:
                redis.thaw()
        else:
            await anyio.to_thread.run_sync(redis.kill)
            with anyio.CancelScope(shield=True):
                await anyio.sleep(strike.seconds)
                await anyio.to_thread.run_sync(redis.start)
        self._note("redis", REDIS, strike.what, began)

    # --- lines

    async def _lose_the_database(self, strike: Strike) -> None:
        """For all nodes: refused, or silent."""
        began = time.monotonic()
        for place in self._rig.places:
            line = place.lines["database-line"]
            if strike.share < 1:
                line.stall(up=True, down=True)
            else:
                line.refuse()
        try:
            await anyio.sleep(strike.seconds)
        finally:
            for place in self._rig.places:
                place.lines["database-line"].heal()
                self._note("database-line", place.number, "lost", began)

    async def _harm_line(self, strike: Strike) -> None:
        line, began = self._rig.places[strike.place].lines[strike.line], time.monotonic()
        if strike.what == "cut":
            line.cut(strike.share, self._chance)
        elif strike.what == "refuse":
            line.refuse()
        elif strike.what == "stall":
            line.stall(up=strike.up, down=strike.down)
        else:
            line.slow(strike.delay_s)
        try:
            await anyio.sleep(strike.seconds)
        finally:
            line.heal()
            self._note(strike.line, strike.place, strike.what, began)

    def _note(self, part: str, place: int, what: str, began: float) -> None:
        self._history.add(Fault(part, place, what, began, time.monotonic()))


def _key(strike: Strike) -> str:
    """What two faults cannot have at the same time."""
    if strike.what in NODE:
        return "node"
    if strike.what in DATABASE:
        return "database"
    return "redis" if strike.place == REDIS else f"{strike.line} {strike.place}"
