"""What a template, or a recorder, is told: a text that its interpreter executes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.jail.spawner import forked
from app.jail.spawner.wire import TEMPLATE_SOCKET_FD, TEMPLATE_TEXT_FD
from app.processes.forking._entry import Entry

_NAME = "<trunkline>"
# One statement: `__main__` has no names of ours.
BOOT = f"exec(compile(open({TEMPLATE_TEXT_FD}, 'rb').read(), '{_NAME}', 'exec'), {{'__name__': '{_NAME}'}})"


@dataclass(frozen=True, slots=True)
class Task:
    """What it is to do. `own`: variables that each session has of its own; `own_cwd`: its working directory too.
    `skip`: modules that are left to each session. `has_rooms`: each has namespaces of its own."""

    mode: Literal["record", "template"]
    entry: Entry
    own: tuple[str, ...] = ()
    own_cwd: bool = False
    modules: Sequence[str] = ()
    skip: frozenset[str] = frozenset()
    has_rooms: bool = False

    @property
    def argv(self) -> list[str]:
        return [*self.entry.python, "-c", BOOT]

    @property
    def text(self) -> str:
        entry = self.entry
        task = {
            "mode": self.mode, "kind": entry.kind, "name": entry.name, "args": entry.args, "argv": entry.argv,
            "own": self.own, "own_cwd": self.own_cwd, "modules": list(self.modules),
            "skip": sorted(self.skip), "socket": TEMPLATE_SOCKET_FD, "has_rooms": self.has_rooms,
        }  # fmt: skip
        return f"{_sources()}run(json.loads({json.dumps(task)!r}), preload, be_different)\n"


def _sources() -> str:
    place = Path(forked.__file__).parent
    sources = [(place / name).read_text() for name in ("importing.py", "inside.py")]
    return "".join(f"exec(compile({each!r}, '{_NAME}', 'exec'), globals())\n" for each in sources)
