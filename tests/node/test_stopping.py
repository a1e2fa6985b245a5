"""What a terminal shows while a node stops."""

import sys
import time
from collections.abc import Iterator

import anyio
import pytest

from app.node import stopping
from app.node.stopping import StopProgress, drain_words
from app.text.terminal.progress import Line
from tests.terminals import Terminal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(stopping, "FIRST_S", 0.0)
    monkeypatch.setattr(stopping, "RENEWED_S", 0.01)
    with Terminal() as terminal:
        yield terminal


def test_words_of_a_drain():
    now = time.monotonic()
    rest = "in flight, at most 12 s left; Ctrl-C again stops at once"
    assert [drain_words("stopping", calls, now + 12) for calls in (0, 1, 3)] == [
        f"stopping: no calls {rest}", f"stopping: 1 call {rest}", f"stopping: 3 calls {rest}",
    ]  # fmt: skip
    assert drain_words("stopping", 3, now - 1) == "stopping: connections and processes end"


async def test_it_is_renewed_until_the_end_and_then_gone(terminal):
    left = iter(range(3, -1, -1))
    with StopProgress(lambda: f"{next(left, 0)} calls", Line(terminal.text)) as progress:
        assert terminal.written == ""
        progress.begin()
        progress.begin()
        await anyio.to_thread.run_sync(terminal.shows, "^0 calls$")
    print("drained", file=terminal.text, flush=True)
    terminal.shows("^drained$")
    assert terminal.rows == ["drained"]


async def test_where_there_is_no_terminal_nothing_is_asked_for(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with StopProgress(lambda: pytest.fail("asked")) as progress:
        progress.begin()
        assert not progress.is_possible
        assert progress._timer is None
