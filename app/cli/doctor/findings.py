"""What a check finds, and how the findings are printed."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum


class State(StrEnum):
    """A node does not work with something `MISSING`; it works without what is `OPTIONAL`."""

    OK = "ok"
    MISSING = "missing"
    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `advice` says what to do if `state` is not OK."""

    name: str
    state: State
    detail: str
    advice: str = ""


def is_well(checks: Sequence[Check]) -> bool:
    return all(check.state is not State.MISSING for check in checks)


def as_json(checks: Sequence[Check]) -> str:
    return json.dumps({"ok": is_well(checks), "checks": [asdict(check) for check in checks]}, indent=2)


def as_table(checks: Sequence[Check]) -> str:
    """For people: a line for each check, its advice below it, and a summary."""
    lines = []
    for check in checks:
        lines.append(f"{check.state:<9} {check.name:<17} {check.detail}")
        if check.advice and check.state is not State.OK:
            lines.append(f"{'':<28}{check.advice}")
    missing = [check.name for check in checks if check.state is State.MISSING]
    closing = f"missing: {', '.join(missing)}" if missing else "everything that is needed is here"
    return "\n".join([*lines, "", closing])
