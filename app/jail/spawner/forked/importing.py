"""Imports what a program imports, before anybody is served, and finds out what a fork must not inherit.

Runs in the backend's own interpreter (Python 3.9 or later), as a part of inside.py.
"""

from __future__ import annotations

import _thread
import os
import posix
import random
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

MOST_FINDINGS = 64
Finding = tuple[str, str, list[str]]  # kind, what, and the modules that were being imported, the innermost first


# What these ask for at their import does no harm, or `be_different` sets it right: they are no finding.
_KNOWN = frozenset((
    "multiprocessing.process",  # the key of its connections
    "sysconfig",  # where the user's own packages would be
    "opentelemetry.context",  # the names of keys in its contexts, which are used in one process only
    "rich",  # its working directory
    "rich.style",  # where the ids of its links begin, which a terminal sees
))  # fmt: skip


# What these do is done in libraries of C. They are imported first, if at all, so that they can be watched. SQLite draws
# from a generator of its own, and no connection survives a fork.
_IN_C = (
    ("uuid", "uuid1", "random number"),
    ("_uuid", "generate_time_safe", "random number"),
    ("ssl", "RAND_bytes", "random number"),
    ("_ssl", "RAND_bytes", "random number"),
    ("sqlite3", "connect", "database"),
    ("sqlite3.dbapi2", "connect", "database"),
    ("fastuuid", "uuid4", "random number"),
    ("uuid_utils", "uuid4", "random number"),
    ("uuid_utils", "uuid7", "random number"),
)
# What can be asked for by its name, with ctypes.
_DRAW_IN_C = frozenset((
    "getrandom", "getentropy", "syscall", "rand", "random", "arc4random", "arc4random_buf", "RAND_bytes",
    "RAND_priv_bytes", "uuid_generate", "uuid_generate_random",
))  # fmt: skip
_RANDOM_DEVICES = frozenset((os.makedev(1, 8), os.makedev(1, 9), os.makedev(10, 183)))
_KERNEL_RANDOM = "/proc/sys/kernel/random/uuid"
_TIMERS = ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")


def be_different() -> None:
    """In a fork: seeds what would be the same in all, and sets right what was found out for the template."""
    for generator, *_ in _seeded:  # that of `random` itself is seeded by the fork
        generator.seed()
    module = sys.modules.get
    if (numpy := module("numpy.random")) is not None:
        numpy.seed()
    vars(threading.main_thread())["_native_id"] = threading.get_native_id()
    if (ssl := module("ssl")) is not None:
        ssl.RAND_add(os.urandom(32), 32.0)
    if (uuid := module("uuid")) is not None:
        vars(uuid).update(_node=None, _last_timestamp=None)
    if (site := module("site")) is not None and site.USER_BASE is not None:
        vars(site).update(USER_BASE=None, USER_SITE=None)
        site.getusersitepackages()
    if (temporary := module("tempfile")) is not None:
        vars(temporary).update(tempdir=None, _name_sequence=None)
    if (process := module("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)
    known = vars(module("sysconfig") or sys).get("_CONFIG_VARS")
    if known:
        known["userbase"] = vars(sys.modules["sysconfig"])["_getuserbase"]()
    if (rich := module("rich")) is not None and hasattr(rich, "_IMPORT_CWD"):
        vars(rich)["_IMPORT_CWD"] = os.path.abspath(os.getcwd())


# --- importing, and what may not happen meanwhile

_seeded: list[tuple[Any, Any, list[str]]] = []  # generators, their states then, and who was being imported
_findings: list[Finding] = []


def preload(task: dict[str, Any]) -> dict[str, Any]:
    """Imports the modules in order. A module that asks for what every session has of its own, or that does something a
    fork would not inherit, is a finding: it has to be skipped."""
    watch = _Watch(frozenset(task["own"]), task["own_cwd"])
    skipped, failed = frozenset(task["skip"]), list[str]()
    for name, _, _ in _IN_C:
        if name in task["modules"] and name not in skipped:
            __import__(name)
    began, known, threads = time.monotonic(), {0, 1, 2, task["socket"]}, set(_threads())
    found = [*map(os.environ.get, ("HOME", "TMPDIR")), "/dev/shm"] if task["has_rooms"] else []  # noqa: S108
    places = {each: set(os.listdir(each)) for each in found if each and os.path.isdir(each)}
    given = _given()
    watch.begin()
    try:
        for name in task["modules"]:
            names = [each for each in reversed(_with_packages(name)) if each not in sys.modules]
            if name in names and skipped.isdisjoint(_with_packages(name)):
                try:
                    __import__(name)
                except BaseException:  # noqa: BLE001 - as it was in the program, or it needs the program
                    failed.append(name)
                _look(names, known)
                _look_at_threads(names, threads)
                _look_at_generators()
                _look_for_files(names, places)
                _look_at_what_is_given(names, given)
    finally:
        watch.end()
    _look_at_all()
    loaded = sum(name in sys.modules for name in task["modules"])
    seconds = time.monotonic() - began
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return {
        "findings": _findings, "loaded": loaded, "failed": failed[:MOST_FINDINGS], "seconds": seconds,
        "files": [each for each in files if isinstance(each, str)],
    }  # fmt: skip


def _with_packages(name: str) -> list[str]:
    """A module and the packages that its import imports first."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _find(kind: str, what: str, modules: list[str]) -> None:
    if len(_findings) < MOST_FINDINGS:
        _findings.append((kind, what, modules))


def _look(names: list[str], known: set[int]) -> None:
    """After an import: a descriptor would be shared by all sessions."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in known:
            try:
                what = os.readlink(f"/proc/self/fd/{descriptor}")
            except OSError:  # that of the listing itself
                continue
            known.add(descriptor)
            _find("descriptor", what, names)


def _threads() -> list[str]:
    return os.listdir("/proc/self/task")


def _look_at_threads(names: list[str], known: set[str]) -> None:
    """After an import: what runs and was not started by `threading` is of a library of C."""
    new = set(_threads()) - known
    known |= new
    if new and not any(kind == "thread" and names[0] in found for kind, _, found in _findings):
        _find("thread", f"{len(new)} of a library", names)


def _look_at_generators() -> None:
    """After an import: what it has drawn from a generator of its own would be the same in all, and a seed no more."""
    for place, (generator, state, modules) in enumerate(_seeded):
        now = random.Random.getstate(generator)
        if now != state:
            _seeded[place] = generator, now, modules
            if modules:
                _find("random number", "random", modules)


def _look_for_files(names: list[str], places: dict[str, set[str]]) -> None:
    """After an import: a session has these directories empty."""
    for place, known in places.items():
        for each in set(os.listdir(place)) - known:
            known.add(each)
            _find("file", f"{place}/{each}", names)


def _given() -> dict[str, str]:
    """What a fork does not take over from its template."""
    timers = [each for each in _TIMERS if signal.getitimer(getattr(signal, each))[0]]
    found = {"working directory": _link("cwd"), "timer": " ".join(timers)}
    return {**found, **{f"descriptor {each}": _link(f"fd/{each}") for each in range(3)}}


def _link(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/{name}")
    except OSError:  # it is closed
        return ""


def _look_at_what_is_given(names: list[str], known: dict[str, str]) -> None:
    """After an import: what it has changed of that would be lost."""
    for kind, what in _given().items():
        if what != known[kind]:
            known[kind] = what
            _find(kind, what, names)


def _look_at_all() -> None:
    if len(_threads()) > 1 and not any(kind == "thread" for kind, _, _ in _findings):
        _find("thread", f"{len(_threads())} threads", [])
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split(None, 5)
            if "w" in fields[1] and "s" in fields[1]:
                _find("shared memory", fields[5].strip() if len(fields) > 5 else "without a name", [])
    try:
        os.waitpid(-1, os.WNOHANG)
        _find("process", "a child", [])
    except ChildProcessError:
        pass


def _put(place: Any, name: str, value: Any) -> None:
    kind: Any = type(place)  # of a module, or of a class
    kind.__setattr__(place, name, value)


class _Watch:
    """Notes which modules ask at their import for what each session has of its own, or start threads."""

    def __init__(self, names: frozenset[str], own_cwd: bool) -> None:
        self._names, self._own_cwd = names, own_cwd
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._new: list[Any] = []

    def begin(self) -> None:
        environment = type(os.environ)
        self._replace(environment, "__getitem__", self._reading(environment.__getitem__))
        for function in ("getcwd", "getcwdb") if self._own_cwd else ():
            self._call_through(os, function, "working directory")
        for place, name in ((os, "urandom"), (posix, "urandom"), (random, "_urandom")):
            self._call_through(place, name, "random number")
        for place in (os, posix):
            self._call_through(place, "getrandom", "random number")
        for name in random.__all__:
            if getattr(getattr(random, name), "__self__", None) is vars(random)["_inst"]:
                self._call_through(random, name, "random number")
        for module, function, kind in _IN_C:
            if module in sys.modules:
                self._call_through(sys.modules[module], function, kind)
        self._replace(random.Random, "seed", _noting_seeds(random.Random.seed))
        self._call_through(_thread, "start_new_thread", "thread")
        for function in ("_start_new_thread", "_start_joinable_thread"):
            if hasattr(threading, function):
                self._call_through(threading, function, "thread")
        sys.addaudithook(_hear)
        _hearing.append(True)

    def end(self) -> None:
        """Undoes it, also in modules that have taken what was replaced for what it is (`from os import urandom`). The
        hook stays, as it must, and hears nothing."""
        _hearing.clear()
        originals = {}
        while self._replaced:
            place, name, old, new = self._replaced.pop()
            originals[id(new)] = old
            if getattr(place, name, None) is new:  # else an import has put something of its own there
                _put(place, name, old)
        for module in list(sys.modules.values()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if id(value) in originals:
                    _put(module, name, originals[id(value)])

    def _replace(self, place: Any, name: str, new: Any) -> None:
        self._replaced.append((place, name, getattr(place, name), new))
        self._new.append(new)  # as long as it lives, its id is nobody else's
        _put(place, name, new)

    def _reading(self, read: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def reading(environment: Any, name: Any) -> Any:
            text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
            if text in self._names:
                _note("variable", text)
            return read(environment, name)

        return reading

    def _call_through(self, place: Any, name: str, kind: str) -> None:
        """Notes its calls."""
        self._replace(place, name, _Through(getattr(place, name), name, kind))


class _Through:
    """A function whose calls are noted. As a class's attribute it is no method, as the functions of C are none."""

    def __init__(self, function: Callable[..., Any], name: str, kind: str) -> None:
        self._function, self._name, self._kind = function, name, kind

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        _note(self._kind, self._name)
        return self._function(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


_hearing = list[bool]()  # empty: nobody is imported


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    """Hears of every file that is opened, whoever opens it and how, and of what ctypes looks up in a library."""
    if not _hearing:
        return
    if event == "open" and _is_random(arguments[0]):
        _note("random number", str(arguments[0])[:100])
    elif event == "ctypes.dlsym" and arguments[1] in _DRAW_IN_C:
        _note("random number", arguments[1])


def _is_random(path: Any) -> bool:
    """By what it is: there are links, relative paths, and devices elsewhere."""
    if not isinstance(path, (str, bytes, os.PathLike)):  # a descriptor: it was heard of when it was opened
        return False
    name = os.fsdecode(path)
    try:
        found = os.stat(name)
    except (OSError, ValueError):  # perhaps it is relative to a descriptor
        return name in ("urandom", "random", "uuid")
    if stat.S_ISCHR(found.st_mode):
        return found.st_rdev in _RANDOM_DEVICES
    return found.st_size == 0 and os.path.realpath(name) == _KERNEL_RANDOM


def _noting_seeds(seed: Callable[..., Any]) -> Callable[..., Any]:
    def seeding(generator: Any, *arguments: Any, **named: Any) -> None:
        if not named and (not arguments or arguments[0] is None):
            seed(generator, *arguments, **named)
            _seeded[:] = [each for each in _seeded if each[0] is not generator]
            _seeded.append((generator, random.Random.getstate(generator), _importing(sys._getframe(1))))  # noqa: SLF001
            return
        seed(generator, *arguments, **named)

    return seeding


def _note(kind: str, what: str) -> None:
    """Notes a finding of the modules that are being imported; whatever nobody imports is ours."""
    modules = _importing(sys._getframe(2))  # noqa: SLF001 - it is Python's own, and documented
    if modules:
        _find(kind, what, modules)


def _importing(frame: Any) -> list[str]:
    """The modules that are being imported here, the innermost first; none if that one is known to do no harm."""
    modules = list[str]()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not modules and name in _KNOWN:
            return []
        if frame.f_code.co_name == "<module>" and name not in ("__main__", __name__):
            modules.append(name)
        frame = frame.f_back
    return modules
