"""The settings that go with an answer. Pure."""

import math
from typing import Any

from app.cli.sizing.arithmetic import Answer, Part

ROOM = 1.1  # clients that come back before what they had is gone
STEP_MB = 64
LEAST_LIMIT_MB = 256  # half the default: what a server loads at its first odd call must not end it
MAX_SESSIONS = 10_000  # the default: docs/settings.md
FORK_TEMPLATES, WARM_MEMORY_MB = 16, 1024  # likewise


def of_each_node(answer: Answer) -> dict[str, int]:
    """Environment variables without their prefix. Those whose default is enough are left out, except MAX_PROCESSES."""
    sessions = sum(part.sessions for part in answer.parts)
    templates = sum(part.backend.mode == "fork" for part in answer.parts)
    warm_mb = _up(sum(part.warm * part.backend.process_mib for part in answer.parts))
    found = {
        "MAX_PROCESSES": sum(most_processes(part, answer) for part in answer.parts),
        "MAX_SESSIONS": math.ceil(round(sessions / answer.needed * ROOM, 6)),
        "WARM_MEMORY_MB": warm_mb,
        "FORK_TEMPLATES": templates,
    }
    defaults = {"MAX_SESSIONS": MAX_SESSIONS, "WARM_MEMORY_MB": WARM_MEMORY_MB, "FORK_TEMPLATES": FORK_TEMPLATES}
    return {name: value for name, value in found.items() if value > defaults.get(name, -1)}


def of_backend(part: Part, answer: Answer) -> dict[str, Any]:
    """Words for `trunkline backends set`."""
    backend = part.backend
    words: dict[str, Any] = {"max_processes": most_processes(part, answer)}
    if backend.mode == "shared":
        words["isolation"] = "shared"
    else:
        words |= {"start": backend.mode, "warm": "auto"}
    if backend.park_s is not None:
        words |= {"recovery": "respawn", "timeouts.park_s": f"{backend.park_s:g}"}
    words["limits.memory_mb"] = max(LEAST_LIMIT_MB, _up(2 * (backend.process_mib + backend.fixed_mib)))
    return words


def most_processes(part: Part, answer: Answer) -> int:
    """On each of the nodes that are left when one is away."""
    spare = 2 if part.backend.mode == "shared" else part.warm  # the one of the node, and its successor
    return math.ceil(round(part.processes / answer.needed * ROOM, 6)) + spare


def _up(mb: float) -> int:
    return max(STEP_MB, math.ceil(round(mb, 6) / STEP_MB) * STEP_MB)
