"""The steps of a check, and who is told of them while they are taken."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One step, failed or not, and how long it took."""

    name: str
    ms: float


@dataclass(frozen=True, slots=True)
class Begun:
    """A step that has begun: the first is number 1. `of`: how many there will be, as far as is known."""

    name: str
    number: int
    of: int


Told = Callable[[Begun | Step], None]


class Steps:
    """Those that were `taken`, in order; the last one may have failed. `told` must return at once."""

    def __init__(self, told: Told = lambda step: None) -> None:
        self.taken = list[Step]()
        self._told, self._coming = told, set[str]()

    def expect(self, *names: str) -> None:
        """These will come."""
        self._coming.update(names)

    def skip(self, *names: str) -> None:
        """These will not come after all."""
        self._coming.difference_update(names)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Around a step; it was taken also if it fails."""
        self.begin(name)
        started = time.monotonic()
        try:
            yield
        finally:
            self.took(name, time.monotonic() - started)

    def begin(self, name: str) -> None:
        """For a step that cannot be wrapped in `timed`: then `took` ends it."""
        self.skip(name)
        number = len(self.taken) + 1
        self._told(Begun(name, number, number + len(self._coming)))

    def took(self, name: str, seconds: float) -> None:
        self.taken.append(Step(name, round(seconds * 1000, 1)))
        self._told(self.taken[-1])
