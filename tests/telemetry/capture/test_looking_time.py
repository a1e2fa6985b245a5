"""LookingTime: a share of the time, which is saved up to a bound and shared by all."""

import threading
from time import thread_time

from app.telemetry.capture._looking_time import LookingTime


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_used_comes_back_with_time_up_to_a_bound() -> None:
    clock = Clock()
    time = LookingTime(0.1, 0.2, clock=clock)
    assert time.is_left()
    time.use(0.3)
    assert not time.is_left()
    clock.now = 0.9
    assert not time.is_left()
    clock.now = 1.2
    assert time.is_left()
    clock.now = 1000.0
    assert time.is_left()
    time.use(0.2)
    assert not time.is_left()


def test_what_one_uses_is_missing_for_all() -> None:
    clock = Clock()
    node = LookingTime(0.1, 0.2, clock=clock)
    one, other = (LookingTime(0.1, 0.2, within=node, clock=clock) for _ in range(2))
    one.use(0.2)
    assert not one.is_left()
    assert not other.is_left()
    clock.now = 0.1
    assert other.is_left()


def test_only_what_the_processor_does_is_counted() -> None:
    clock = Clock()
    time = LookingTime(0.1, 0.05, clock=clock)
    with time.using():
        threading.Event().wait(0.1)
    assert time.is_left()
    began = thread_time()
    with time.using():
        while thread_time() - began < 0.06:
            pass
    assert not time.is_left()
