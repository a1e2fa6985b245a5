"""`--backends NAME=VALUE[,…]`: fields of every backend that a test registers without saying otherwise.

So what exists is run with forks, or with sessions that are parked. Where the fields mean nothing for a server the
backend is left as it is; the end of a run says how many there were of each kind, and how often processes were forked
and sessions woken: a leg in which nothing was has shown nothing. What tests say follows too quickly for that: with
`timeouts.park_s=0`, which no administrator can say, a session rests before each of its messages, if it may.
"""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VARIABLES = "BACKENDS_OF_TESTS", "BACKENDS_OF_TESTS_TALLY"  # for the workers of a run, which are its children
# What they are told they keep in memory, and their tests ask for it again: with `recovery: respawn` it would be lost.
STATEFUL = frozenset({"ledger.py", "notebook.py", "tasks.py", "toolbox.py", "showcase.py", "turnstile.py"})
SILENT = frozenset({"eras.py"})
# How processes were started, and what became of sessions that rested.
COUNTED = (
    "trunkline_process_starts_total",
    "trunkline_fork_template_failures_total",
    "trunkline_session_wakes_total",
    "trunkline_session_freezes_total",
    "trunkline_session_thaws_total",
)
LEAST_PARK_S = 1.0  # app.admin.schemas.backends
# Run by gateways of `park_s=0`. A real session is not woken twice within SPACING_S, which is less than it must be idle.
RESTING = """
import functools, time
from app.backends.connections import respawning
from app.sessions.parking import Parking
from app.sessions.session import Session

respawning.SPACING_S = 0.0
made = []


def noted(init):
    def noting(self, *given):
        init(self, *given)
        made.append(self)

    return noting


def rested(method):
    @functools.wraps(method)
    def resting(self, *given, **more):
        if self.spec.timeouts.park_s is not None:
            made[-1].park(self, time.monotonic())
        return method(self, *given, **more)

    return resting


Parking.__init__ = noted(Parking.__init__)
for name in ("request", "notify", "respond"):
    setattr(Session, name, rested(getattr(Session, name)))
"""


@dataclass(frozen=True)
class BackendDefaults:
    """`fields` as the REST API takes them."""

    fields: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, argv: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a backend: those given, and the defaults if they apply to it."""
        if not self.fields:
            return dict(given)
        why_not = self._why_not(argv, given)
        count("not applicable: " + why_not if why_not else "applied")
        if why_not:
            return dict(given)
        found = {**self.fields, **given}
        for each in ("timeouts", "sandbox"):
            if members := {**self.fields.get(each, {}), **given.get(each, {})}:
                found[each] = members
        if found.get("timeouts", {}).get("park_s") == 0:
            found["timeouts"]["park_s"] = LEAST_PARK_S
        if self.forks and "sandbox" not in self.fields:
            found["sandbox"] = {"mode": "off"}
        return found

    @property
    def forks(self) -> bool:
        return self.fields.get("start") in ("fork", "auto")

    @property
    def first(self) -> str:
        """Python that each gateway runs before its command."""
        return RESTING if self.fields.get("timeouts", {}).get("park_s") == 0 else ""

    def _why_not(self, argv: Sequence[str], given: Mapping[str, Any]) -> str:
        words = [os.path.basename(each) for each in argv]
        if self.forks:
            if not words[0].startswith("python") and not (Path(argv[0]).parent / "python").exists():
                return f"{words[0]} is no program of Python"
            if SILENT.intersection(words):
                return "it never says what it offers, without which there is no template"
            if given.get("state") == "keep":
                return "homes that last"
            if set(given.get("sandbox", {})) - {"write"}:
                return "the test is about a sandbox"
        if "park_s" in self.fields.get("timeouts", {}):
            return self._why_not_resting(words, given)
        return ""

    def _why_not_resting(self, words: Sequence[str], given: Mapping[str, Any]) -> str:
        if self.fields.get("recovery") != "respawn":
            if given.get("isolation") == "shared":
                return "processes that sessions share are not frozen"
            return ""
        if given.get("recovery", "respawn") != "respawn":
            return "recovery: end is what the test is about"
        stateful = STATEFUL.intersection(words)
        return f"{min(stateful)} keeps state" if stateful else ""


def parse(text: str) -> BackendDefaults:
    """Dotted names are members; values are JSON, or else text."""
    fields: dict[str, Any] = {}
    for each in text.split(",") if text else ():
        name, _, value = each.partition("=")
        *parents, last = name.split(".")
        place = fields
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = _value(value)
    return BackendDefaults(fields)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def announce(text: str) -> None:
    """Tells this process and those it starts; called before the workers are."""
    os.environ[VARIABLES[0]] = text
    descriptor, os.environ[VARIABLES[1]] = tempfile.mkstemp(prefix="trunkline-backends-")
    os.close(descriptor)


def announced() -> BackendDefaults:
    return parse(os.environ.get(VARIABLES[0], ""))


def count(what: str, often: int = 1) -> None:
    """Adds to the tally of the run."""
    with Path(os.environ[VARIABLES[1]]).open("a") as tally:
        tally.write(json.dumps([what, often]) + "\n")


def count_samples(samples: Mapping[str, float]) -> None:
    """Adds what a gateway has counted, at its end."""
    for name, value in samples.items():
        if name.startswith(COUNTED) and value:
            count(name, int(value))


def tallied() -> list[str]:
    """What this run has counted, as lines; forgets it."""
    tally, total = Path(os.environ.pop(VARIABLES[1])), Counter[str]()
    for line in tally.read_text().splitlines():
        what, often = json.loads(line)
        total[what] += often
    tally.unlink()
    return [f"{often:6} {what}" for what, often in sorted(total.items())]
