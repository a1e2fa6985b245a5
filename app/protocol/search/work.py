"""Work that can be interrupted: a generator that does a fraction of a millisecond's work, a few at most, between two
yields. Whoever drives it decides how many at a time (`limits.loop_shares`)."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Work = Generator[None, None, T]


def finished(work: Work[T]) -> T:
    """The result, without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
