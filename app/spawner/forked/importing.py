"""Imports what a program imports, before anybody is served, and finds out what a fork must not inherit.

Runs in the backend's own interpreter (Python 3.9 or later), as a part of inside.py.
"""

from __future__ import annotations

import _thread
import os
import random
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
))  # fmt: skip


def be_different() -> None:
    """In a fork: seeds what would be the same in all, and sets right what was found out for the template."""
    for generator in _seeded:  # that of `random` itself is seeded by the fork
        generator.seed()
    module = sys.modules.get
    if (numpy := module("numpy.random")) is not None:
        numpy.seed()
    if (ssl := module("ssl")) is not None:
        ssl.RAND_add(os.urandom(32), 32.0)
    if (uuid := module("uuid")) is not None:
        vars(uuid).update(_node=None, _last_timestamp=None)
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

_seeded: list[Any] = []
_findings: list[Finding] = []


def preload(task: dict[str, Any]) -> dict[str, Any]:
    """Imports the modules in order. A module that asks for what every session has of its own, or that does something a
    fork would not inherit, is a finding: it has to be skipped."""
    watch = _Watch(frozenset(task["own"]), task["own_cwd"])
    skipped, failed = frozenset(task["skip"]), list[str]()
    began, known = time.monotonic(), {0, 1, 2, task["socket"]}
    watch.begin()
    try:
        for name in task["modules"]:
            if name not in sys.modules and skipped.isdisjoint(_with_packages(name)):
                try:
                    __import__(name)
                except BaseException:  # noqa: BLE001 - as it was in the program, or it needs the program
                    failed.append(name)
                _look(name, known)
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


def _look(name: str, known: set[int]) -> None:
    """After an import: a descriptor would be shared by all sessions."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in known:
            try:
                what = os.readlink(f"/proc/self/fd/{descriptor}")
            except OSError:  # that of the listing itself
                continue
            known.add(descriptor)
            _find("descriptor", what, [name])


def _look_at_all() -> None:
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1 and not any(kind == "thread" for kind, _, _ in _findings):
        _find("thread", f"{len(threads)} threads", [])
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
        self._replaced: list[tuple[Any, str, Any]] = []
        self._new: list[Any] = []

    def begin(self) -> None:
        environment = type(os.environ)
        self._replace(environment, "__getitem__", self._reading(environment.__getitem__))
        for function in ("getcwd", "getcwdb") if self._own_cwd else ():
            self._call_through(os, function, "working directory")
        self._call_through(os, "urandom", "random number")
        self._call_through(random, "_urandom", "random number")
        self._replace(random.Random, "seed", _noting_seeds(random.Random.seed))
        self._call_through(_thread, "start_new_thread", "thread")
        for function in ("_start_new_thread", "_start_joinable_thread"):
            if hasattr(threading, function):
                self._call_through(threading, function, "thread")

    def end(self) -> None:
        """Undoes it, also in modules that have taken what was replaced for what it is (`from os import urandom`)."""
        originals = {}
        while self._replaced:
            place, name, old = self._replaced.pop()
            originals[id(getattr(place, name))] = old
            _put(place, name, old)
        for module in list(sys.modules.values()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if id(value) in originals:
                    _put(module, name, originals[id(value)])

    def _replace(self, place: Any, name: str, new: Any) -> None:
        self._replaced.append((place, name, getattr(place, name)))
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
        function = getattr(place, name)

        def calling(*arguments: Any, **named: Any) -> Any:
            _note(kind, name)
            return function(*arguments, **named)

        self._replace(place, name, calling)


def _noting_seeds(seed: Callable[..., Any]) -> Callable[..., Any]:
    def seeding(generator: Any, *arguments: Any, **named: Any) -> Any:
        if not named and (not arguments or arguments[0] is None):
            _seeded.append(generator)
        return seed(generator, *arguments, **named)

    return seeding


def _note(kind: str, what: str) -> None:
    """Notes a finding of the modules that are being imported; whatever nobody imports is ours."""
    modules = list[str]()
    frame: Any = sys._getframe(2)  # noqa: SLF001 - it is Python's own, and documented
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not modules and name in _KNOWN:
            return
        if frame.f_code.co_name == "<module>" and name not in ("__main__", __name__):
            modules.append(name)
        frame = frame.f_back
    if modules:
        _find(kind, what, modules)
