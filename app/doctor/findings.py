"""What a check finds, and how all findings are shown."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum


class State(StrEnum):
    """`MISSING` keeps a node from working; `OPTIONAL` is not here either, and a node works without it."""

    OK = "ok"
    MISSING = "missing"
    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `advice` says what to do next where something is missing."""

    name: str
    state: State
    detail: str
    advice: str = ""


def is_well(checks: Sequence[Check]) -> bool:
    """Whether nothing that is needed is missing."""
    return all(check.state is not State.MISSING for check in checks)


def as_json(checks: Sequence[Check]) -> str:
    """For machines."""
    return json.dumps({"ok": is_well(checks), "checks": [asdict(check) for check in checks]}, indent=2)


def as_table(checks: Sequence[Check]) -> str:
    """For people: a line each, what to do next below it, and the sum of it all."""
    lines = []
    for check in checks:
        lines.append(f"{check.state:<9} {check.name:<17} {check.detail}")
        if check.advice and check.state is not State.OK:
            lines.append(f"{'':<28}{check.advice}")
    missing = [check.name for check in checks if check.state is State.MISSING]
    closing = f"missing: {', '.join(missing)}" if missing else "everything that is needed is here"
    return "\n".join([*lines, "", closing])
