"""Makes a template: a first process says what it imports, the template imports that, and a trial says whether a fork of
it does the same as a process that is executed."""

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import anyio
import anyio.to_thread
import msgspec

from app.domain import HOME_WORD, BackendSpec
from app.errors import BackendError, BackendExited
from app.jail.sandbox.environment import search_path
from app.jail.spawner import tree, wire
from app.processes.forking._dialogue import Transcript, transcript
from app.processes.forking._entry import Entry, NotPython, entry_of
from app.processes.forking.start import EXEC, NoFork, Start, Task
from app.processes.homes import Home
from app.processes.process import BackendProcess

ATTEMPTS = 5  # templates that are started until none of their imports is a finding
IMPORTS_S = 60.0
ENDS_S = 10.0  # a process that was asked to stop; then it is killed anyway
MAX_MODULES = 5000
_NAMED = 5  # modules in a reason
_MAX_WORDS = 300  # characters of each
_OWN = ("HOME", "TMPDIR", tree.MARKER)  # variables that each process has of its own

Reason = Literal["not_python", "unfit", "differs", "died"]
Files = Mapping[str, tuple[int, int]]  # size and time of change, by path


class Told(msgspec.Struct):
    """What a first process or a template says of its imports. It runs the backend's own code: it may be anything."""

    modules: list[str] = []
    findings: list[tuple[str, str, list[str]]] = []
    files: list[str] = []
    loaded: int = 0


class NoTemplate(Exception):
    """There can be no template. The message says why; `reason` is for the metric."""

    def __init__(self, reason: Reason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


class Launcher(Protocol):
    """What a maker needs of the Supervisor."""

    async def spawn_as(
        self, spec: BackendSpec, start: Start, on_gone: Callable[[BackendProcess], None] = ...
    ) -> BackendProcess:
        """Closes `start`. Raises BackendExited, ShuttingDown."""

    def home_of(self, process: BackendProcess) -> Home | None: ...

    def stop_soon(self, process: BackendProcess) -> None: ...

    def has_forks(self, template: BackendProcess) -> bool:
        """Whether one of them runs, or is being started."""


@dataclass(slots=True, eq=False)
class Template:
    """A process that has imported `loaded` modules, and forks. `files`: those that it was made of. `has_rooms`: forks
    have namespaces of their own, which are below its own."""

    launcher: Launcher = field(repr=False)
    spec: BackendSpec
    process: BackendProcess
    channel: socket.socket
    home: Home | None
    loaded: int
    files: Files = field(repr=False)
    skipped: frozenset[str] = field(default=frozenset())
    used_at: float = 0.0
    looked_at: float = 0.0
    has_rooms: bool = False

    def start(self) -> Start:
        """Raises OSError: there is no descriptor for it."""
        return Start("fork", channel=os.dup(self.channel.fileno()), template=self.process.id, home=self.home)

    def used(self, now: float) -> None:
        self.used_at = now

    def looked(self, now: float) -> None:
        self.looked_at = now

    def retire(self) -> bool:
        """Ends it, unless there are forks whose namespaces end with it: then it forks no more. Returns whether it has
        ended."""
        self.channel.close()
        if self.has_rooms and self.launcher.has_forks(self.process):
            return False
        self.close()
        return True

    def close(self) -> None:
        """It is killed, as it has nothing to finish. Idempotent."""
        self.channel.close()
        self.launcher.stop_soon(self.process)
        self.process.kill()


class Maker:
    """One at a time for each backend. `has_rooms`: its processes have namespaces of their own."""

    def __init__(self, launcher: Launcher, *, has_rooms: bool = False) -> None:
        self._launcher, self._has_rooms = launcher, has_rooms

    async def make(self, spec: BackendSpec, on_gone: Callable[[BackendProcess], None]) -> Template:
        """
        Raises:
            NoTemplate: the program cannot be forked, or not safely, or a fork of it does something else.
            BackendError: it cannot be started, or does not answer; ShuttingDown.
            TimeoutError: it does not answer in time.
        """
        entry = await self._entry(spec)
        modules = await self._record(spec, entry)
        template = await self._imported(spec, entry, modules, on_gone)
        try:
            await self._try(spec, template)
        except BaseException:
            template.close()
            raise
        return template

    async def _entry(self, spec: BackendSpec) -> Entry:
        cwd = spec.cwd if spec.cwd and os.path.isabs(spec.cwd) else None
        try:
            return await anyio.to_thread.run_sync(lambda: entry_of(spec.command, spec.args, search_path(spec), cwd))
        except NotPython as error:
            raise NoTemplate("not_python", f"the command {error}") from error

    async def _record(self, spec: BackendSpec, entry: Entry) -> list[str]:
        """The modules that a first process has imported when it has said what it offers, in their order."""
        process, channel = await self._start(spec, Task("record", entry))
        with channel:
            try:
                await transcript(process, spec.timeouts)
                channel.send(b"modules")
                told = await _told(channel)
            except OSError as error:  # it has closed what it does not know
                raise NoTemplate("died", f"the first process cannot be asked: {error.strerror}") from error
            finally:
                await self._stop(process)
        return told.modules[:MAX_MODULES]

    async def _imported(
        self, spec: BackendSpec, entry: Entry, modules: list[str], on_gone: Callable[[BackendProcess], None]
    ) -> Template:
        skip = frozenset[str]()
        own_cwd = spec.cwd if spec.cwd and os.path.isabs(spec.cwd) else None
        for _ in range(ATTEMPTS):
            task = self._task(spec, entry, modules, skip, has_own_cwd=own_cwd is None)
            process, channel = await self._start(spec, task, on_gone)
            try:
                told = await _told(channel)
                found = told.findings
                if not found:
                    files = await anyio.to_thread.run_sync(files_of, told.files)
                    home = self._launcher.home_of(process)
                    return Template(
                        self._launcher,
                        spec,
                        process,
                        channel,
                        home,
                        told.loaded,
                        files,
                        skip,
                        has_rooms=self._has_rooms,
                    )
            except BaseException:
                channel.close()
                await self._stop(process)
                raise
            channel.close()
            await self._stop(process)
            if any(not names for _, _, names in found):
                raise NoTemplate("unfit", f"its imports leave {_words(found)}")
            skip |= {name for _, _, names in found for name in names}
        raise NoTemplate("unfit", f"its imports leave, again and again, {_words(found)}")

    def _task(
        self, spec: BackendSpec, entry: Entry, modules: list[str], skip: frozenset[str], *, has_own_cwd: bool
    ) -> Task:
        """In namespaces of their own all have the same names for what each has of its own. The marker is of no use
        there: nothing gets out of them."""
        if self._has_rooms:
            return Task("template", entry, modules=modules, skip=skip, has_rooms=True)
        of_home = (name for name, value in spec.env.items() if HOME_WORD in value)
        return Task("template", entry, (*_OWN, *of_home), has_own_cwd, modules, skip)

    async def _try(self, spec: BackendSpec, template: Template) -> None:
        """With `auto` a fork has to do all that a process does that is executed, with `fork` it has to answer."""
        try:
            forked = await self._observed(spec, template.start())
        except (NoFork, OSError, TimeoutError) as error:  # of the moment, perhaps: it is tried again
            raise NoTemplate("died", f"a fork fails: {str(error) or 'no answer in time'}") from error
        except BackendError as error:
            raise NoTemplate("differs", f"a fork fails: {error}") from error
        if spec.start != "auto":
            return
        executed = await self._observed(spec, EXEC)
        for (asked, one), (_, other) in zip(executed, forked, strict=False):
            if one != other:
                raise NoTemplate("differs", f"a fork does something else: its answer to `{asked}` differs")
        if len(executed) != len(forked):
            raise NoTemplate("differs", "a fork does something else: it offers something else")

    async def _observed(self, spec: BackendSpec, start: Start) -> Transcript:
        process = await self._launcher.spawn_as(spec, start)
        home = self._launcher.home_of(process)
        try:
            said = await transcript(process, spec.timeouts)
            process.begin_stop()
            with anyio.move_on_after(ENDS_S):  # longer than a session gets: a busy machine is no difference
                await process.wait_gone()
        except BackendError:
            if process.exit is not None and process.exit.reason == "spawner_lost":
                raise NoTemplate("died", "the spawner has died meanwhile") from None
            raise
        finally:
            await self._stop(process)
        end = "" if process.exit is None else process.exit.description
        if home is not None:
            said = [(asked, text.replace(home.path, "~").replace(home.tmpdir, "~tmp")) for asked, text in said]
        return [*said, ("the end of its input", end)]

    async def _start(
        self, spec: BackendSpec, task: Task, on_gone: Callable[[BackendProcess], None] = lambda process: None
    ) -> tuple[BackendProcess, socket.socket]:
        ours, theirs = wire.socket_pair()
        try:
            with theirs:
                ours.setblocking(False)
                start = Start("template", task=task, channel=theirs.fileno())
                return await self._launcher.spawn_as(spec, start, on_gone), ours
        except BaseException:
            ours.close()
            raise

    async def _stop(self, process: BackendProcess) -> None:
        if process.is_stopping() or process.is_template:
            process.kill()
        self._launcher.stop_soon(process)
        with anyio.move_on_after(ENDS_S, shield=True):
            await process.wait_gone()


async def _told(channel: socket.socket) -> Told:
    """Raises NoTemplate."""
    with anyio.move_on_after(IMPORTS_S):
        await anyio.wait_readable(channel)
        packet = channel.recv(wire.MAX_PACKET_BYTES)
        if packet:
            try:
                return msgspec.json.decode(packet, type=Told)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise NoTemplate("died", "what its process says of its imports cannot be read") from error
        raise NoTemplate("died", "the template ends while it imports")
    raise NoTemplate("died", f"the imports take more than {IMPORTS_S:.0f} s")


def files_of(paths: Iterable[str]) -> Files:
    """What tells whether these files are still the same; of those that are there. For a thread."""
    found = {}
    for path in paths:
        try:
            status = os.stat(path)
        except (OSError, ValueError):  # a NUL
            continue
        found[path] = (status.st_size, status.st_mtime_ns)
    return found


def is_current(template: Template) -> bool:
    """Whether the files are what they were when the template imported them. For a thread."""
    return files_of(template.files) == template.files


def died(error: Exception) -> NoTemplate:
    """What else can go wrong: the process did not start, or did not answer."""
    if isinstance(error, BackendExited):
        return NoTemplate("died", f"its process ends: {error}")
    return NoTemplate("died", str(error) or "its process does not answer in time")


def _words(found: list[tuple[str, str, list[str]]]) -> str:
    words = [f"{kind} ({what}{', by ' + names[0] if names else ''})" for kind, what, names in found[:_NAMED]]
    return ", ".join(dict.fromkeys(each[:_MAX_WORDS] for each in words))
