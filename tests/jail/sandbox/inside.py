"""Runs commands in the namespaces of bubblewrap, on their own or as the user whom a test names."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.jail.sandbox._bubblewrap import HOME, TEMPORARY, Room, find_bubblewrap, wrap
from app.jail.sandbox.needs import NeedsFinder, Wanted
from app.jail.spawner.wire import INNER_STDIN_FD, INNER_STDOUT_FD

NOBODYS_UID = 60002
IS_ROOT = os.geteuid() == 0
SYSTEM_PYTHON = "/usr/bin/python3"
_SECONDS = 90.0


@dataclass
class Inside:
    """How commands are run: as which user bubblewrap is started, and as which its program runs."""

    name: str
    outer_uid: int
    uid: int | None = None
    forbidden: list[str] = field(default_factory=list)

    def command(
        self, *argv: str, read: Sequence[str] = (), write: Sequence[str] = (), cwd: str = HOME, **room
    ) -> list[str]:
        wanted = Wanted(argv, os.environ["PATH"], None if cwd == HOME else cwd, tuple(read), tuple(write))
        needs = NeedsFinder(self.forbidden).find(wanted)
        room = {"disk_bytes": 1 << 20, **room}
        return wrap(find_bubblewrap(), Room(needs, cwd, uid=self.uid, **room), argv, is_root=self.outer_uid == 0)

    def bare(self, *argv: str, **room) -> list[str]:
        """The command for somebody else than the spawner: stdin and stdout are where they always are."""
        command = self.command(*argv, **room)
        place = command.index("--json-status-fd")
        del command[place : place + 2]
        return ["/bin/sh", "-c", f'exec {INNER_STDIN_FD}<&0 {INNER_STDOUT_FD}>&1; exec "$@"', "sh", *command]

    def run(self, *argv: str, **room) -> subprocess.CompletedProcess[str]:
        command = self.bare(*argv, **room)
        user = None if self.outer_uid == os.geteuid() else self.outer_uid
        environment = {"PATH": os.environ["PATH"], "HOME": HOME, "TMPDIR": TEMPORARY, "LANG": "C.UTF-8"}
        return subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, timeout=_SECONDS, check=False,
            user=user, group=user, extra_groups=None if user is None else [],
        )  # fmt: skip

    def python(self, code: str, *arguments: str, program: str = SYSTEM_PYTHON, **room) -> str:
        """What it prints."""
        done = self.run(program, "-c", code, *arguments, **room)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def can(self, code: str, **room) -> bool:
        """Whether these lines run to their end."""
        done = self.run(SYSTEM_PYTHON, "-c", code, **room)
        assert done.returncode == 0 or "Error" in done.stderr, done.stderr
        return done.returncode == 0


def ways() -> list[Inside]:
    """Every way in which this machine can start a process: as root it can also become somebody else."""
    if not IS_ROOT:
        return [Inside("as this user", os.geteuid())]
    return [
        Inside("as the user of the tenant, by root", 0, NOBODYS_UID),
        Inside("as root without capabilities", 0),
        Inside("as an ordinary user", NOBODYS_UID),
    ]


def why_not() -> str | None:
    """Why this machine cannot run bubblewrap; None if it can."""
    try:
        program = find_bubblewrap()
    except FileNotFoundError as error:
        return str(error)
    for way in ways():
        done = way.run("true")
        if done.returncode != 0:
            return f"{program.path} {way.name}: {done.stderr.strip()}"
    return None


needs_bubblewrap = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@contextmanager
def open_directory() -> Iterator[Path]:
    """A directory that every user may read; pytest's own are closed."""
    path = Path(tempfile.mkdtemp(prefix="sandbox-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)
