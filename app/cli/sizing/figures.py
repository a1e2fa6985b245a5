"""What backends cost: as measured for the documents (figures.json), as given on the command line, or as a gateway's
REST API says."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.cli.rest import Rest, segment
from app.cli.sizing.arithmetic import Backend, NodeCosts
from app.errors import InvalidRequest

GIVEN_CALL_CPU_MS = 5.0  # of an own backend: about twice that of a call that does nothing
MOST = 10_000
MIB = 2**20


def read() -> dict[str, Any]:
    """The figures of the last kept `scripts/bench --capacity`."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("figures.json").read_text())
    return found


def node_costs(figures: Mapping[str, Any]) -> NodeCosts:
    return NodeCosts(figures["node_mib"], figures["session_kib"], figures["gateway_call_cpu_ms"])


def measured(figures: Mapping[str, Any], name: str, mode: str, park_s: float | None) -> Backend:
    """One of those that were measured; executed, where it was not measured in this mode.

    Raises:
        InvalidRequest: it was not measured.
    """
    servers = figures["servers"]
    if name not in servers:
        known = ", ".join(servers)
        raise InvalidRequest(f"{name} was not measured; give its numbers with --own. Measured are {known}")
    modes = servers[name]["modes"]
    mode = mode if mode in modes else "exec"
    if mode not in modes:
        raise InvalidRequest(f"{name} was not measured with {mode}")
    source = f"{servers[name]['language']}, {servers[name]['version']}"
    return Backend(name=name, mode=mode, park_s=park_s, source=source, **modes[mode])


def given(name: str, memory_mb: float, start_cpu_s: float, mode: str, park_s: float | None) -> Backend:
    """An own one. As a shared process its memory is there once on each node."""
    is_shared = mode == "shared"
    return Backend(
        name=name,
        mode=mode,
        process_mib=0.0 if is_shared else memory_mb,
        fixed_mib=memory_mb if is_shared else 0.0,
        start_cpu_s=start_cpu_s,
        start_s=start_cpu_s,
        call_cpu_ms=GIVEN_CALL_CPU_MS,
        park_s=park_s,
        source="given",
    )


def of_gateway(rest: Rest, tenant: str, names: Sequence[str]) -> list[Backend]:
    """A tenant's backends with what their processes use now, as they are configured; all, or those with these names.

    Raises:
        InvalidRequest: there is none of that name, or none of its processes is there to be measured.
    """
    at = f"/tenants/{segment(tenant)}"
    specs, _ = rest.items(f"{at}/backends", query={}, most=MOST)
    processes, _ = rest.items(f"{at}/processes", query={}, most=MOST)
    local = {str(each["name"]): each for each in specs if each.get("command")}
    if missing := [name for name in names if name not in local]:
        raise InvalidRequest(f"{tenant} has no backend {', '.join(missing)} whose processes a node starts")
    return [_of_processes(local[name], _of(processes, name)) for name in names or local]


def _of(processes: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [
        each
        for each in processes
        if each["backend"] == name
        and each["start"] != "template"
        and each["resident_bytes"]
        and each["state"] != "starting"
    ]


def _of_processes(spec: Mapping[str, Any], processes: Sequence[Mapping[str, Any]]) -> Backend:
    """The median of their memory; the least CPU time of one is at most that of a start."""
    name = spec["name"]
    if not processes:
        raise InvalidRequest(
            f"no process of {name} is there to be measured: open a session with it, or name only others"
        )
    mib = statistics.median(each["resident_bytes"] for each in processes) / MIB
    start = min(each["cpu_s"] for each in processes)
    calls = sum(each["calls_total"] for each in processes)
    spent = sum(each["cpu_s"] - start for each in processes)
    is_shared = spec["isolation"] == "shared"
    mode: str = "shared" if is_shared else "fork" if any(each["start"] == "fork" for each in processes) else "exec"
    return Backend(
        name=name,
        mode=mode,
        process_mib=0.0 if is_shared else mib,
        fixed_mib=mib if is_shared else 0.0,
        start_cpu_s=start,
        start_s=start,
        call_cpu_ms=spent / calls * 1000 if calls and spent else GIVEN_CALL_CPU_MS,
        park_s=(spec.get("timeouts") or {}).get("park_s"),
        source=f"{len(processes)} processes of the gateway",
    )
