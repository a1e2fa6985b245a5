"""LoopShare: what one tenant makes the event loop do, for those who read what its servers write.

`limits/loop_shares.py` decides; this is its side toward the packages below it.
"""

import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

used_s = time.thread_time  # not the time in which a busy machine let the loop wait: that is nobody's
PIECE_S = 0.003  # what is charged at once, and needs a turn: what takes less is added up

T = TypeVar("T")


class Shares(Protocol):
    """As LoopShares."""

    def charge(self, tenant: str, seconds: float) -> None: ...
    def is_over(self, tenant: str) -> bool: ...
    async def turn(self, tenant: str) -> None: ...


class Unlimited:
    """Fulfils Shares, where nobody else uses the loop."""

    def charge(self, tenant: str, seconds: float) -> None:
        """Nothing."""

    def is_over(self, tenant: str) -> bool:
        return False

    async def turn(self, tenant: str) -> None:
        """At once."""


UNLIMITED = Unlimited()


class LoopShare:
    """Of one tenant, for one reader."""

    __slots__ = ("_owed", "_shares", "_tenant", "is_due")

    def __init__(self, shares: Shares, tenant: str) -> None:
        self._shares, self._tenant, self._owed = shares, tenant, 0.0
        self.is_due = False  # a piece was done, and the tenant is over its share: the next one needs a turn

    def took(self, seconds: float) -> None:
        """The loop has just been used for so long, by `used_s`."""
        self._owed += seconds
        if self._owed >= PIECE_S:
            owed, self._owed = self._owed, 0.0
            self._shares.charge(self._tenant, owed)
            self.is_due = self._shares.is_over(self._tenant)

    async def turn(self) -> None:
        """Returns at once unless a turn `is_due`; else waits for it."""
        if self.is_due:
            self.is_due = False
            await self._shares.turn(self._tenant)


@types.coroutine
def charged(
    work: Coroutine[Any, Any, T], took: Callable[[float], object], clock: Callable[[], float] = used_s
) -> Generator[Any, Any, T]:
    """Awaits the work; `took` is told how long each of its steps took by the `clock`, from one wait to the next."""
    thrown: BaseException | None = None
    while True:
        began = clock()
        try:
            waited_for = work.send(None) if thrown is None else work.throw(thrown)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            took(clock() - began)
        thrown = None
        try:
            yield waited_for
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001 - the work gets it
            thrown = error
