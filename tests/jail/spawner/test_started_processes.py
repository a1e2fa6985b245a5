"""What a fork has said of its start."""

import json
import os
import socket

import pytest

from app.jail.spawner._confinement import Clock
from app.jail.spawner._started_processes import FORK_RUNS, Process
from app.jail.spawner.wire import FORK_STAGE


def fork(word: bytes | None) -> tuple[Process, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    if word is not None:
        theirs.send(word)
    return Process("0" * 16, os.getpid(), 0.0, Clock(), ours.detach(), None, None, is_fork=True), theirs


@pytest.mark.parametrize("word", [FORK_RUNS, b'{"errno": 2}'])
def test_a_fork_runs_or_has_a_complaint(word):
    process, theirs = fork(word)
    with theirs:
        assert process.exec_over() == (b"" if word == FORK_RUNS else word)
    assert process.failed is (word != FORK_RUNS)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_fork_that_says_nothing_does_not_run(is_open):
    """Also where somebody holds its socket open: the spawner must not wait for a word of it."""
    process, theirs = fork(None)
    if not is_open:
        theirs.close()
    assert json.loads(process.exec_over())["stage"] == FORK_STAGE
    theirs.close()
