"""The command `size`: reads what backends cost, computes, and shows the arithmetic."""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from app.cli.rest import open_rest
from app.cli.sizing import arithmetic, figures, settings
from app.cli.sizing.arithmetic import Answer, Backend, Demand, Machine
from app.cli.tables import table
from app.config.environment import PREFIX
from app.domain import is_name
from app.errors import InvalidRequest

MOST_BACKENDS = 100
OWN_MB, OWN_START_S = (1, 1_048_576), (0, 3600)


def size_nodes(options: argparse.Namespace) -> int:
    """Prints how much is needed.

    Raises:
        GatewayError: a backend was not measured, or a node is too small.
    """
    known = figures.read()
    backends = _backends(options, known)
    demand = Demand(options.users, options.concurrent / 100, options.calls, options.arrive_min)
    cores, memory_gib = options.node
    machine = Machine(cores, memory_gib * 1024)
    answer = arithmetic.answer(backends, demand, machine, figures.node_costs(known))
    if options.json:
        print(json.dumps(as_json(answer, demand, machine, known), indent=2))
    else:
        print("\n".join(as_text(answer, demand, machine, known)))
    return 0


def _backends(options: argparse.Namespace, known: dict[str, Any]) -> list[Backend]:
    names = [name for name, _ in options.backends]
    if options.from_gateway:
        if any(mode for _, mode in options.backends):
            raise InvalidRequest("a gateway's backends are sized as they are configured: give names without a mode")
        with open_rest(options) as rest:
            found = figures.of_gateway(rest, options.tenant, names)
    else:
        found = [figures.measured(known, name, mode or options.mode, options.park_s) for name, mode in options.backends]
    found += [_given(each, options) for each in options.own]
    if not 1 <= len(found) <= MOST_BACKENDS:
        raise InvalidRequest(f"name 1 to {MOST_BACKENDS} backends; measured are {', '.join(known['servers'])}")
    if doubled := {each.name for each in found if sum(each.name == other.name for other in found) > 1}:
        raise InvalidRequest(f"named twice: {', '.join(sorted(doubled))}")
    return found


def _given(words: list[str], options: argparse.Namespace) -> Backend:
    name, memory_mb, start_cpu_s = words
    if not is_name(name):
        raise InvalidRequest(f"--own {name!r}: a backend's name is lower-case letters, digits and hyphens, 63 at most")
    memory, start = (_number(text, *bounds) for text, bounds in ((memory_mb, OWN_MB), (start_cpu_s, OWN_START_S)))
    return figures.given(name, memory, start, options.mode, options.park_s)


def _number(text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:  # so NaN is refused
        raise InvalidRequest(f"--own {text!r}: allowed are {least:g} to {most:g}")
    return value


def as_json(answer: Answer, demand: Demand, machine: Machine, known: dict[str, Any]) -> dict[str, Any]:
    return {
        "demand": asdict(demand) | {"users_at_once": demand.at_once},
        "node": asdict(machine) | {"memory_share": arithmetic.MEMORY_SHARE, "cpu_share": arithmetic.CPU_SHARE},
        "memory_mib": math.ceil(answer.memory_mib),
        "cores": round(answer.cores, 2),
        "nodes": answer.nodes,
        "spare_nodes": arithmetic.SPARE,
        "binds": answer.binds,
        "nodes_by_limit": {name: round(load, 2) for name, load in answer.loads.items()},
        "backends": [
            asdict(part.backend)
            | {name: value for name, value in asdict(part).items() if name != "backend"}
            | {"settings": settings.of_backend(part, answer)}
            for part in answer.parts
        ],
        "settings": settings.of_each_node(answer),
        "measured": {name: known[name] for name in ("date", "machine", "load")},
        "assumptions": list(_assumptions(answer, demand)),
    }


def as_text(answer: Answer, demand: Demand, machine: Machine, known: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{demand.at_once} of {demand.users} users at the same time, {demand.calls_per_hour:g} calls an hour each, "
        f"all there within {demand.arrive_min:g} min; a session with each of {len(answer.parts)} backends"
    )
    yield ""
    yield table([_row(part) for part in answer.parts])[0]
    yield ""
    yield from _sums(answer, machine)
    yield ""
    yield "Settings of each node"
    for name, value in settings.of_each_node(answer).items():
        yield f"  {PREFIX}{name}={value}"
    yield "Settings of the backends"
    for part in answer.parts:
        words = " ".join(f"{name}={value}" for name, value in settings.of_backend(part, answer).items())
        yield f"  trunkline backends set {part.backend.name} {words}"
    yield ""
    yield "Assumed"
    yield from (f"  {each}" for each in _assumptions(answer, demand))
    load = known["load"]
    yield (
        f"  Measured on {known['date']} on {known['machine']}, which other programs kept busy "
        f"(load {load['least']:g} to {load['most']:g}); a faster core needs less CPU time, not less memory."
    )


def _row(part: arithmetic.Part) -> dict[str, Any]:
    backend = part.backend
    return {
        "backend": backend.name,
        "mode": backend.mode,
        "sessions": part.sessions,
        "processes": f"{part.processes} + 1 a node" if backend.mode == "shared" else part.processes,
        "MiB each": round(backend.process_mib or backend.fixed_mib),
        "GiB": f"{part.memory_mib / 1024:.1f}",
        "cores: starts": f"{part.starts_cores + part.wakes_cores:.2f}",
        "calls": f"{part.calls_cores:.2f}",
        "from": backend.source,
    }


def _sums(answer: Answer, machine: Machine) -> Iterator[str]:
    starts = sum(part.starts_cores + part.wakes_cores for part in answer.parts)
    calls, idle = (sum(getattr(part, f"{name}_cores") for part in answer.parts) for name in ("calls", "idle"))
    yield (
        f"Memory  {answer.memory_mib / 1024:.1f} GiB = processes {answer.processes_mib / 1024:.1f} "
        f"+ sessions {answer.sessions_mib / 1024:.2f} + {answer.needed} x {answer.node_mib / 1024:.2f} "
        "of a node itself (with templates, shared and warm processes)"
    )
    yield (
        f"Cores   {answer.cores:.1f} = starts {starts:.2f} + calls {calls:.2f} + idle processes {idle:.2f} "
        f"+ gateway {answer.gateway_cores:.2f}"
    )
    yield (
        f"A node  {machine.cores:g} cores, {machine.memory_mib / 1024:g} GiB: carries "
        f"{answer.usable_mib / 1024:.1f} GiB of processes and sessions, "
        f"and {machine.cores * arithmetic.CPU_SHARE:.1f} cores"
    )
    loads = ", ".join(f"{name} {load:.2f}" for name, load in answer.loads.items())
    yield f"Nodes   {answer.nodes} = {answer.needed} ({loads}, rounded up) + {arithmetic.SPARE} spare"
    yield f"Limit   {answer.binds}"


def _assumptions(answer: Answer, demand: Demand) -> Iterator[str]:
    yield f"Calls are spread evenly over the backends ({demand.calls_per_hour / len(answer.parts):.3g} an hour each)."
    yield (
        f"{arithmetic.MEMORY_SHARE:.0%} of a node's memory and {arithmetic.CPU_SHARE:.0%} of its cores are used; "
        "the event loop has one of them. One node may be away."
    )
    yield "Start, calls and memory are those of real servers whose calls do little: work that a tool does comes on top."
    if any(part.backend.park_s is not None for part in answer.parts):
        yield "Calls of a parked session come at random (a process is there for 1 - e^(-calls x park_s) of the time)."
    if any(part.backend.source == "given" for part in answer.parts):
        yield f"A call of a backend that was given takes {figures.GIVEN_CALL_CPU_MS:g} ms of CPU."
    if any(part.backend.source.endswith("of the gateway") for part in answer.parts):
        yield "Memory of the gateway's processes is resident: what they share is counted for each, so it is the most."
