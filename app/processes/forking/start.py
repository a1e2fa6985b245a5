"""How a process is started, and why so. Task: the text that the interpreter of a template, or of a recorder, runs."""

import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from app.concurrency.loop_timeout import loop_timeout
from app.jail.sandbox.composer import Confined
from app.jail.spawner import forked
from app.jail.spawner.client import SpawnerLost, SpawnFailed
from app.jail.spawner.wire import FORK_STAGE, TEMPLATE_SOCKET_FD, TEMPLATE_TEXT_FD
from app.jail.spawner.wire import Start as Kind
from app.processes.forking._entry import Entry
from app.processes.homes import Home

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


FORK_S = 5.0  # a fork takes milliseconds


@dataclass(frozen=True, slots=True)
class Start:
    """`reason`: why a process is executed whose backend would have it forked. `channel`: the socket of a template that
    is started, or that is to fork. `template`: the id of the one that forks, `home`: its home."""

    kind: Kind = "exec"
    reason: str = ""
    task: Task | None = None
    channel: int | None = None
    template: str = ""
    home: Home | None = None

    def close(self) -> None:
        """Closes the socket of a template that was to fork; that of one that is started stays the maker's."""
        if self.kind == "fork" and self.channel is not None:
            os.close(self.channel)

    def applied(self, confined: Confined) -> Confined:
        """The process confined as any other, but started so."""
        command = replace(confined.command, start=self.kind)
        if self.task is not None:
            wrapper = command.argv[: command.program_at]
            command = replace(command, argv=[*wrapper, *self.task.argv], text=self.task.text)
        return replace(confined, command=command, handed=() if self.channel is None else (self.channel,))


EXEC = Start()


class NoFork(Exception):
    """The template has made no process; the message says why. Another way to start it may work."""


@asynccontextmanager
async def fork_deadline() -> AsyncIterator[None]:
    """A template that does not fork in time has failed, and so has one that cannot be reached. Raises NoFork."""
    try:
        async with loop_timeout(FORK_S):
            yield
    except TimeoutError:
        raise NoFork(f"no answer in {FORK_S:.0f} s") from None
    except SpawnFailed as error:
        if error.stage != FORK_STAGE and not isinstance(error, SpawnerLost):  # with which the template ends
            raise
        raise NoFork(error.message) from error
