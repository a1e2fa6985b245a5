"""One row: a server behind a gateway, in one way of giving sessions their processes."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from capacity.costs import Costs
from capacity.gateways import PEERS, Endpoint, Node, peer, trunkline
from capacity.phases import SETTLED_S, Load, Plan, Report
from capacity.servers import Installed

MODES = ("exec", "fork", "parked", "shared")
PARK_S = 1.0
PATIENCE = {"initialize_s": 120, "call_s": 120}  # on a machine that is busy
WAIT_S = 90.0
SETTLED_CPU_S = 0.03
_FIELDS: dict[str, dict[str, Any]] = {
    "exec": {"timeouts": PATIENCE},
    "fork": {"timeouts": PATIENCE, "start": "fork"},
    "parked": {"recovery": "respawn", "timeouts": {"park_s": PARK_S, **PATIENCE}},
    "shared": {"timeouts": PATIENCE, "isolation": "shared"},
}


def modes_of(server: Installed) -> tuple[str, ...]:
    """Only what is written in Python can be forked."""
    return tuple(mode for mode in MODES if mode != "fork" or server.server.language == "Python")


async def measure(server: Installed, mode: str, plan: Plan, supergateway: Path | None) -> Report:
    """`mode` is one of MODES, or one of PEERS."""
    if mode in PEERS:
        with peer(mode, server.argv, supergateway) as endpoint:
            return await _row(Load(endpoint, server.tool, server.arguments), server, mode, plan)
    report = await _of_trunkline(server, mode, plan, _FIELDS[mode])
    if mode == "fork" and report["start"] != "fork":
        # Where its tier of the sandbox does not allow a fork, what a fork costs is measured without one.
        report = await _of_trunkline(server, mode, plan, _FIELDS[mode] | {"sandbox": {"mode": "off"}})
    return report


async def _of_trunkline(server: Installed, mode: str, plan: Plan, fields: dict[str, Any]) -> Report:
    opened: AbstractContextManager[Node] = trunkline(server.argv, fields)
    with opened as node:
        load = Load(node, server.tool, server.arguments)
        started = await _first(load, node, mode)
        if mode == "fork" and started["start"] != "fork" and "sandbox" not in fields:
            return {"start": started["start"]}
        report = await _row(load, server, mode, plan, node)
        if mode == "exec":
            report["opening_warm"] = await _warm(load, node, plan, report["start_cpu_s"])
        return report | {"tier": started["tier"], "start": started["start"]}


async def _first(load: Load, node: Node, mode: str) -> dict[str, Any]:
    """How a process is started, once the first ones have been: that of `fork` is executed, as its template is made."""
    deadline = time.monotonic() + WAIT_S
    while True:
        session, _ = await load.opened()
        (process,) = [each for each in node.processes() if each["start"] != "template"][:1]
        await session.close()
        if mode != "fork" or process["start"] == "fork" or time.monotonic() > deadline:
            return process
        if process["start_reason"] and "template" not in process["start_reason"]:
            return process
        await asyncio.sleep(0.5)


async def _row(load: Load, server: Installed, mode: str, plan: Plan, node: Node | None = None) -> Report:
    await load.one_by_one(1)  # whatever the gateway loads only then
    await _settled(load)
    await load.without_sessions(plan.idle_s / 2)
    began = await load.costs()
    report: Report = {"server": server.server.name, "mode": mode, "opening": await load.one_by_one(plan.one_by_one)}
    await _settled(load)
    start = ((await load.costs()).backends_cpu_s - began.backends_cpu_s) / plan.one_by_one
    count = {"parked": plan.parked, "shared": plan.shared}.get(mode, plan.sessions)
    report |= {"sessions": count, "memory": await _grown(load, count, mode, node)}
    # Whoever starts servers through a shell does not hear what those have used that are gone.
    living = report["memory"].pop("cpu_s_per_session")
    report["start_cpu_s"] = round(start if mode == "parked" else max(0.0, living), 3)
    report["idle"] = await load.idle(plan.idle_s)
    if mode == "parked":
        report["chatting"] = await load.one_after_the_other(plan.one_by_one)
        await _all_parked(load, node)
    else:
        report["chatting"] = await load.chatting(plan.chat_s, plan.chat_every_s)
    report["bursting"] = await load.bursting(plan.burst_s)
    report["failures"] = dict(load.failures)
    await load.close_all()
    return report


async def _grown(load: Load, count: int, mode: str, node: Node | None) -> Report:
    """Memory with more and more sessions; what each adds is the slope, and what is there without any the rest."""
    points = list[tuple[int, Costs]]()
    for some in sorted({max(1, count // 4), count // 2, count * 3 // 4, count}):
        await load.open_until(some)
        if mode == "parked":
            await _all_parked(load, node)
        await _settled(load)
        points.append((some, (await load.costs())))
    gateway, node_mib = _line([(some, each.gateway_mib) for some, each in points])
    backends, fixed = _line([(some, each.backends_mib) for some, each in points])
    started, _ = _line([(some, each.backends_cpu_s) for some, each in points])
    return {
        "cpu_s_per_session": started,
        "points": [[some, round(each.gateway_mib, 1), round(each.backends_mib, 1)] for some, each in points],
        "backends": points[-1][1].backends,
        "gateway_kib_per_session": round(gateway * 1024, 1),
        "backend_mib_per_session": round(backends, 2),
        "node_mib": round(node_mib, 1),
        "fixed_mib": round(max(0.0, fixed), 1),
    }


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Slope and intercept."""
    slope, intercept = statistics.linear_regression([some for some, _ in points], [each for _, each in points])
    return slope, intercept


async def _settled(load: Load) -> None:
    """Processes that start, or end, have done so: for a second they have used next to no time of a processor."""
    deadline, spent = time.monotonic() + WAIT_S, (await load.costs()).backends_cpu_s
    while True:
        await asyncio.sleep(SETTLED_S)
        before, spent = spent, (await load.costs()).backends_cpu_s
        if spent - before < SETTLED_CPU_S or time.monotonic() > deadline:
            return


async def _all_parked(load: Load, node: Node | None) -> None:
    assert node is not None

    async def parked() -> bool:
        return node.parked() >= len(load.sessions) and (await load.costs()).backends == 0

    await _until(parked)


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not await condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {WAIT_S:.0f} s")
        await asyncio.sleep(0.5)


async def _warm(load: Load, node: Node, plan: Plan, start_cpu_s: float) -> Report:
    """As one_by_one, with a process that is ready for each: one is warm when it has been started, and its program may
    still be importing."""
    count = plan.one_by_one
    before = (await load.costs()).backends_cpu_s
    node.set(warm=count)

    async def ready() -> bool:
        is_there = sum(each["state"] == "warm" for each in node.processes()) >= count
        return is_there and (await load.costs()).backends_cpu_s - before > 0.7 * count * start_cpu_s

    await _until(ready)
    await _settled(load)
    report = await load.one_by_one(count)
    node.set(warm=0)
    return report


async def curve(name: str, load_of: Callable[[Endpoint], Load], opened: Endpoint, plan: Plan) -> list[Report]:
    """Calls as fast as they are answered, by more and more sessions of the echo server."""
    load, found = load_of(opened), list[Report]()
    for count in plan.concurrency:
        await load.open_until(count)
        await load.bursting(0.3)
        found.append({"system": name, "sessions": count, **await load.bursting(plan.curve_s)})
    await load.close_all()
    return found
