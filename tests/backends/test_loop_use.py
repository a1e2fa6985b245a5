"""LoopUse, with times of the test's own, and with this thread's."""

import time
from pathlib import Path

from app.backends.loop_use import BUSY_SHARE, WINDOW_S, LoopUse, _wanted_s


class Thread:
    def __init__(self) -> None:
        self.now = self.wanted = 100.0
        self.use = LoopUse(lambda: self.wanted, lambda: self.now)

    def after(self, seconds: float, share: float) -> bool:
        self.now += seconds
        self.wanted += seconds * share
        return self.use.is_busy()


def test_it_is_busy_when_it_wanted_a_processor_for_most_of_the_time() -> None:
    thread = Thread()
    assert not thread.after(1.0, BUSY_SHARE - 0.1)
    assert thread.after(1.0, BUSY_SHARE + 0.1)
    assert not thread.after(1.0, 0.0)


def test_asked_again_at_once_it_says_the_same() -> None:
    thread = Thread()
    assert thread.after(1.0, 1.0)
    assert thread.after(WINDOW_S / 2, 0.0)
    assert not thread.after(WINDOW_S, 0.0)


def test_this_thread_is_measured_with_and_without_the_kernels_count_of_waits(tmp_path: Path) -> None:
    for source in (_wanted_s, lambda: _wanted_s(tmp_path / "missing")):
        before, ran = source(), time.thread_time()
        while time.thread_time() - ran < 0.05:
            pass
        assert source() - before >= 0.04
