"""What 10^4, 10^5 and 10^6 sessions do to Redis and to the nodes, from the gateway's constants and measured costs.

    .venv/bin/python bench/simulate_cluster.py                    # all tables, seconds, the same numbers each time
    .venv/bin/python bench/simulate_cluster.py --per-node 2000 --cores 4 --tables death
    .venv/bin/python bench/simulate_cluster.py --costs costs.json # of measure_routes.py, on your machine

Nothing is started and nothing is sent: a simulation of events with a seeded generator. Redis is one core that serves in
order of arrival; its load is reported, and fed back only in the table `flush`. Time on the network is left out.
"""

import argparse
import heapq
import json
import math
import random
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.cluster.cluster_use import EVERY_S, READ_A_ROUND
from app.cluster.peers.client import PROBE_S
from app.cluster.redis._waiting_commands import DEADLINE_S
from app.cluster.routing._node_list import beats_between
from app.cluster.routing._session_counts import TURN_BEATS
from app.cluster.routing.heartbeat import LOT
from app.cluster.routing.redis_store import ROUTE_TTL_MS, SETTLING_MS
from app.errors import NodeUnavailable
from app.http.remote.remote_sessions import AGAIN_S, MAX_WAITING, PATIENCE_S
from app.sessions._draining import TICK_S, streams_per_tick
from app.sessions.endings import DRAIN_RETRY_MS
from app.sessions.routes import BEAT_S, LEASE_S
from app.settings.settings import Settings

SIZES = (10_000, 100_000, 1_000_000)
COSTS = Path(__file__).with_name("cluster_costs.json")
DEFAULTS = {each.name: each.metadata["default"] for each in fields(Settings)}
POOL_WAIT_S, DRAIN_S = DEFAULTS["pool_wait_s"], DEFAULTS["drain_s"]
RECONNECT_S = 1.0  # what an SDK waits after a stream broke of which the server has said nothing
CALL_EVERY_S = 30.0  # a client without a stream notices at its next call
BUCKET_S = 0.1
OPEN_WARM_S = 0.0011  # of a node, where no process must be started (docs/performance.md)


class Costs:
    """The measured figures, in seconds."""

    def __init__(self, path: Path) -> None:
        self.figures: dict[str, Any] = json.loads(path.read_text())
        self.script = self.redis("find")  # of a script that has little to do
        lot = LOT * self.redis("refresh_per_route")
        # What is left of a whole beat is the recount of a lot of principals.
        self.recount = max(0.0, self.redis("whole_beat") - self.redis("beat_300") - self.redis("nodes_2") - lot)

    def redis(self, name: str, nodes: int = 0) -> float:
        return self._of(name, "redis_us", nodes)

    def node(self, name: str, nodes: int = 0) -> float:
        return self._of(name, "node_us", nodes)

    def _of(self, name: str, whose: str, nodes: int) -> float:
        """What reads all nodes is a straight line through the smallest and the largest measurement."""
        if not nodes:
            return self.figures[name][whose] / 1e6
        few, most = (self.figures[f"{name}_{measured}"][whose] / 1e6 for measured in (2, 300))
        return few + (most - few) / 298 * nodes


# --- printing


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    cells = [list(heads), *([str(each) for each in row] for row in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(heads))]
    print(f"\n{title}\n")
    for number, row in enumerate(cells):
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))


def percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def size(number: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


# --- 1. every second, with nothing happening


def steady(costs: Costs, per_node: Sequence[int]) -> None:
    rows: list[tuple[str, ...]] = []
    for sessions in SIZES:
        for held in per_node:
            nodes = math.ceil(sessions / held)
            lot = min(LOT, math.ceil(held / TURN_BEATS))
            looks, hears = BEAT_S / beats_between(nodes), 1 / (EVERY_S * math.ceil(nodes / READ_A_ROUND))  # a second
            beat = (costs.redis("beat_300") + costs.script + costs.recount * lot / LOT) / BEAT_S
            refresh = (costs.script + lot * costs.redis("refresh_per_route")) / BEAT_S
            others = looks * costs.redis("nodes", nodes) + hears * costs.redis("use", nodes)
            at_node = (
                (costs.node("beat_300") + costs.node("find") + lot * costs.node("refresh_per_route")) / BEAT_S
                + looks * costs.node("nodes", nodes)
                + hears * costs.node("use", nodes)
            )
            read = (
                costs.figures["bytes_of_a_whole_beat"] * lot / LOT / BEAT_S
                + (costs.figures["bytes_of_a_node_record"] * looks + costs.figures["bytes_of_use"] * hears) * nodes
            )
            rows.append(
                (
                    f"{sessions:,}",
                    f"{held:,}",
                    f"{nodes:,}",
                    f"{(3 / BEAT_S + looks + hears) * nodes:,.0f}",
                    percent(nodes * beat),
                    percent(nodes * refresh),
                    percent(nodes * others),
                    percent(nodes * (beat + refresh + others)),
                    percent(at_node),
                    size(nodes * read) + "/s",
                    f"{math.ceil(held / lot) * BEAT_S:.0f} of {ROUTE_TTL_MS // 1000} s",
                )
            )
    table(
        "1. Every second, with nothing happening: one lease for each node (Redis has one core: 100 %)",
        (
            "sessions",
            "per node",
            "nodes",
            "commands/s",
            "beats",
            "+ refresh",
            "+ others",
            "= Redis",
            "a node",
            "network",
            "rotation",
        ),
        rows,
    )
    rows = [
        (
            f"{sessions:,}",
            f"{sessions / BEAT_S:,.0f}",
            percent(sessions * costs.redis("lease_per_session") / BEAT_S),
            percent(sessions * costs.redis("refresh_per_route") / BEAT_S),
            size(sessions * costs.figures["redis_bytes_per_session"]),
            size(sessions * costs.figures["redis_bytes_of_a_journal_with_1_event"]),
            size(sessions * costs.figures["redis_bytes_of_a_journal_with_10_events"]),
        )
        for sessions in SIZES
    ]
    table(
        "2. The same with a lease for each session, and what either keeps in Redis",
        (
            "sessions",
            "renewals/s",
            "Redis, bare PEXPIRE",
            "Redis, token checked",
            "routes",
            "+ journals, 1 event",
            "+ journals, 10 events",
        ),
        rows,
    )


# --- 2. a node dies


@dataclass
class Death:
    """What came of one death."""

    waits: list[float]
    refused: int
    finds_per_s: float
    redis_share: float


@dataclass(frozen=True)
class Rush:
    """Who comes, and what a session costs the node that takes it over. `silent`: the machine is gone, none refuses."""

    sessions: int
    survivors: int
    start_s: float
    cores: int
    streams: float = 0.5
    silent: bool = False


class _Survivors:
    """The nodes that are left: who waits there for the lease to lapse, and how far their processors are booked."""

    def __init__(self, rush: Rush, costs: Costs, lapse: float, rng: random.Random) -> None:
        self.rush, self.costs, self.lapse, self.rng = rush, costs, lapse, rng
        self.waiting = [0] * rush.survivors
        self.busy_until = [0.0] * rush.survivors
        self.finds: Counter[int] = Counter()
        self.redis: Counter[int] = Counter()  # microseconds by bucket
        self.refused = 0
        self.waits: list[float] = []  # from the first request to its answer
        self.events: list[tuple[float, bool, int, float]] = []  # when, whether it waited there, where, first request

    def come(self, at: float, since: float) -> None:
        heapq.heappush(self.events, (at, False, self.rng.randrange(self.rush.survivors), since))

    def run(self) -> None:
        while self.events:
            at, has_waited, node, since = heapq.heappop(self.events)
            if has_waited:
                self.waiting[node] -= 1
                self.take_over(at, node, since)
            elif at >= self.lapse:
                self.take_over(at + self.probe_s(), node, since)
            elif self.waiting[node] < MAX_WAITING:
                self.wait(at, node, since)
            else:
                self.refuse(at, since)

    def probe_s(self) -> float:
        return PROBE_S if self.rush.silent else 0.0

    def wait(self, at: float, node: int, since: float) -> None:
        assert self.lapse + PROBE_S + AGAIN_S - at <= PATIENCE_S
        until = self.lapse + self.rng.uniform(0, AGAIN_S) + self.probe_s()
        self.waiting[node] += 1
        heapq.heappush(self.events, (until, True, node, since))
        for n in range(int((until - at) / AGAIN_S)):
            bucket = int((at + n * AGAIN_S) / BUCKET_S)
            self.finds[bucket] += 1
            self.redis[bucket] += round(self.costs.redis("find") * 1e6)

    def refuse(self, at: float, since: float) -> None:
        self.refused += 1
        self.come(at + (NodeUnavailable.retry_after_s or 1.0) * self.rng.uniform(1, 1.5), since)

    def take_over(self, at: float, node: int, since: float) -> None:
        work = sum(self.costs.redis(step) for step in ("find", "take_over", "journal_take", "journal_first_write"))
        self.redis[int(at / BUCKET_S)] += round(work * 1e6)
        start = max(at, self.busy_until[node])
        if start - at > POOL_WAIT_S:
            self.refuse(at + POOL_WAIT_S, since)
            return
        self.busy_until[node] = start + OPEN_WARM_S + self.rush.start_s / self.rush.cores
        self.waits.append(self.busy_until[node] - since)


def die(rush: Rush, costs: Costs, rng: random.Random) -> Death:
    survivors = _Survivors(rush, costs, LEASE_S - rng.uniform(0, BEAT_S), rng)
    for n in range(rush.sessions):
        has_stream = n < rush.streams * rush.sessions
        first = RECONNECT_S + rng.uniform(0, 0.1) if has_stream else rng.expovariate(1 / CALL_EVERY_S)
        survivors.come(first, first)
    survivors.run()
    busiest = max(survivors.redis.values(), default=0) / 1e6 / BUCKET_S
    finds = max(survivors.finds.values(), default=0) / BUCKET_S
    return Death(sorted(survivors.waits), survivors.refused, finds, busiest)


def deaths(costs: Costs, per_node: Sequence[int], cores: int, seed: int) -> None:
    small = costs.figures["start_of_a_small_backend"]["cpu_s"]
    sdk = costs.figures["start_of_a_backend_on_the_sdk"]["cpu_s"]
    kinds = (("shared, no start", 0.0), (f"small, {small * 1000:.0f} ms", small), (f"SDK, {sdk:.2f} s", sdk))
    rng = random.Random(seed)
    lapses = sorted(LEASE_S - rng.uniform(0, BEAT_S) + rng.uniform(0, AGAIN_S) for _ in range(10_000))
    print(
        f"\nA death is known after {lapses[0]:.1f} to {lapses[-1]:.1f} s (median {statistics.median(lapses):.1f}), "
        f"{PROBE_S} s later if its machine is gone and refuses no connection."
    )
    rows = []
    for sessions in SIZES:
        for held in per_node:
            survivors = math.ceil(sessions / held) - 1
            for kind, start_s in kinds if survivors else ():
                death = die(Rush(held, survivors, start_s, cores), costs, random.Random(seed))
                rows.append(
                    (
                        f"{sessions:,}",
                        f"{survivors:,}",
                        f"{held:,}",
                        f"{held / survivors:,.1f}",
                        kind,
                        f"{at(death.waits, 0.25):.1f}",
                        f"{at(death.waits, 0.5):.1f}",
                        f"{at(death.waits, 0.99):.1f}",
                        f"{death.waits[-1]:.0f}",
                        f"{death.refused:,}",
                        f"{death.finds_per_s:,.0f}",
                        percent(death.redis_share),
                    )
                )
    table(
        f"3. One node dies; {cores} cores for starts at each survivor; half of its clients have a stream and return "
        f"after {RECONNECT_S:.0f} s,\n   the others with their next call ({CALL_EVERY_S:.0f} s on average). "
        "Seconds that they wait;\n   Redis in its busiest 100 ms",
        (
            "sessions",
            "survivors",
            "moved",
            "each gets",
            "process",
            "25 %",
            "50 %",
            "99 %",
            "the last",
            "503s",
            "find/s",
            "Redis",
        ),
        rows,
    )


def at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# --- 3. all come back at once


def herd(per_node: Sequence[int], seed: int) -> None:
    low, high = (each / 1000 for each in DRAIN_RETRY_MS)
    rows = []
    for held in per_node:
        rng = random.Random(seed)
        a_tick = streams_per_tick(held, DRAIN_S)
        kinds = {
            "the node is killed: an SDK's 1 s": [RECONNECT_S + rng.uniform(0, 0.01) for _ in range(held)],
            f"all at once, `retry:` of {low:.0f} to {high:.0f} s": [rng.uniform(low, high) for _ in range(held)],
            "a drain: one by one, and the same": [n // a_tick * TICK_S + rng.uniform(low, high) for n in range(held)],
        }
        for name, arrivals in kinds.items():
            a_second = Counter(int(each) for each in arrivals)
            a_bucket = Counter(int(each / BUCKET_S) for each in arrivals)
            rows.append(
                (
                    f"{held:,}",
                    name,
                    f"{max(a_bucket.values()):,}",
                    f"{max(a_second.values()):,}",
                    f"{max(arrivals):.0f} s",
                )
            )
    table(
        "4. Streams that end with their node: reconnections within the busiest 100 ms and the busiest second",
        ("streams", "how they end", "in 100 ms", "in 1 s", "the last"),
        rows,
    )


# --- 4. Redis comes back empty


def flush(costs: Costs, per_node: Sequence[int], seed: int) -> None:
    rows = []
    for sessions in SIZES:
        for held in per_node:
            nodes = math.ceil(sessions / held)
            done, longest, late = prove_all(nodes, held, costs, random.Random(seed))
            rows.append(
                (
                    f"{sessions:,}",
                    f"{held:,}",
                    f"{nodes:,}",
                    f"{done:.2f} s",
                    f"{longest * 1000:,.0f} ms",
                    f"{late:,}",
                    "yes" if done > SETTLING_MS / 1000 else "no",
                )
            )
    table(
        f"5. Redis comes back empty and all nodes write their routes, {LOT} in a command: time until all are written, "
        f"the\n   longest wait for an answer (the deadline is {DEADLINE_S * 1000:.0f} ms), and whether it took longer "
        f"than the {SETTLING_MS // 1000} s\n   for which missing routes are answered with 503",
        ("sessions", "per node", "nodes", "all written", "longest wait", "late answers", "too late"),
        rows,
    )


def prove_all(nodes: int, held: int, costs: Costs, rng: random.Random) -> tuple[float, float, int]:
    """Each node asks for one lot at a time, first without the values, then with them. Late answers count as given."""
    lots = [min(LOT, held - start) for start in range(0, held, LOT)]
    steps = [(size, name) for size in lots for name in ("refresh_per_route", "rewrite_per_route")]
    asked = [(rng.uniform(0, BEAT_S), node, 0) for node in range(nodes)]
    heapq.heapify(asked)
    free = longest = 0.0
    late = 0
    while asked:
        came, node, step = heapq.heappop(asked)
        routes, name = steps[step]
        free = max(free, came) + routes * costs.redis(name)
        longest, late = max(longest, free - came), late + (free - came > DEADLINE_S)
        if step + 1 < len(steps):
            heapq.heappush(asked, (free + routes * costs.node(steps[step + 1][1]), node, step + 1))
    return free, longest, late


# --- the command line

TABLES = ("steady", "death", "herd", "flush")


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-node", type=int, nargs="+", default=[200, 2_000, 10_000], metavar="SESSIONS")
    parser.add_argument("--cores", type=int, default=2, help="of each survivor, for starts of processes")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--costs", type=Path, default=COSTS, help="what measure_routes.py has printed")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    asked = options(arguments)
    costs = Costs(asked.costs)
    work = {
        "steady": lambda: steady(costs, asked.per_node),
        "death": lambda: deaths(costs, asked.per_node, asked.cores, asked.seed),
        "herd": lambda: herd(asked.per_node, asked.seed),
        "flush": lambda: flush(costs, asked.per_node, asked.seed),
    }
    for name in asked.tables:
        work[name]()


if __name__ == "__main__":
    main()
