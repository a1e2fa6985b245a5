"""Functions of modules that are imported when they are needed: a command imports nothing of the others."""

import argparse
import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

INTERRUPTED = 130  # the exit code


@dataclass(frozen=True, slots=True)
class Later:
    """A function that carries a command out, by its full name."""

    name: str

    def __call__(self, options: argparse.Namespace) -> int:
        code: int = self.load()(options)
        return code

    def load(self) -> Any:
        """Imports the module, and returns the function."""
        module, _, function = self.name.rpartition(".")
        with ending_at_ctrl_c(), importing():
            return getattr(import_module(module), function)


@dataclass(frozen=True, slots=True)
class HereOrThere:
    """A command on the database of this machine; with --url or TRUNKLINE_URL on a gateway."""

    here: Later
    there: Later

    def __call__(self, options: argparse.Namespace) -> int:
        is_remote = Later("app.cli.rest.is_remote").load()
        return self.there(options) if is_remote(options) else self.here(options)


@contextmanager
def importing() -> Iterator[None]:
    """What is imported stays: the garbage collector would look through it again and again, a seventh of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def ending_at_ctrl_c() -> Iterator[None]:
    """While nothing has begun Ctrl-C ends the process; an exception would be raised within whatever is imported."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
