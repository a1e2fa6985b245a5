"""Output: whole lines, on a full disk, to a reader that has gone, stands still, or is shared with other processes."""

import errno
import fcntl
import io
import json
import logging
import os
import pty
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO

import pytest

from app.text.terminal.output import PATIENCE_S, Output

LINE = b"x" * 499 + b"\n"
MANY = 6000  # lines: more than a pipe takes


@pytest.fixture
def shared() -> Iterator[tuple[socket.socket, BinaryIO]]:
    """What keeps apart what was written in one go, and the end to write to."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    ours.setblocking(False)
    with ours, theirs, open(theirs.fileno(), "wb", closefd=False) as stream:
        yield ours, stream


def written(shared: socket.socket) -> list[bytes]:
    """Each piece."""
    found = []
    while True:
        try:
            found.append(shared.recv(1 << 20))
        except BlockingIOError:
            return found


def test_what_several_processes_write_to_is_given_whole_lines_that_it_keeps_together(shared):
    ours, stream = shared
    text = b"".join(b"%d%s\n" % (number, b"x" * (number * 37 % 900)) for number in range(200))
    Output(stream).write(text)
    pieces = written(ours)
    assert b"".join(pieces) == text
    assert all(piece.endswith(b"\n") and len(piece) <= select.PIPE_BUF for piece in pieces)
    assert len(pieces) < len(text) / select.PIPE_BUF * 1.5


def test_a_line_that_is_too_long_for_that_is_alone(shared):
    ours, stream = shared
    long = b"y" * 10_000 + b"\n"
    Output(stream).write(b"a\n" + long + b"b\n" + long)
    assert written(ours) == [b"a\n", long, b"b\n", long]


class Full(io.RawIOBase):
    """A disk: it takes so many bytes more."""

    def __init__(self, room: int) -> None:
        self.room, self.taken = room, b""

    def write(self, data: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        size = min(len(data), self.room)
        self.room -= size
        self.taken += bytes(data[:size])
        return size


def test_what_cannot_be_written_is_counted_and_told_of_once_it_can(caplog):
    full: Any = Full(6)
    output = Output(full)
    output.write(b"one\ntwo\nthree\n")
    output.write(b"four\n")
    assert full.taken == b"one\ntw"
    assert not caplog.records
    full.room = 1000
    output.write(b"five\n")
    output.write(b"six\n")
    assert full.taken == b"one\ntw\nfive\nsix\n"
    (told,) = caplog.records
    assert told.levelno == logging.WARNING
    assert "write 3 log lines" in told.getMessage()
    assert "No space left on device" in told.getMessage()


def test_lines_are_counted_on_while_there_is_no_room_to_tell_of_them():
    full: Any = Full(0)
    output = Output(full)
    logger, handler = logging.getLogger("app.telemetry.logs"), logging.Handler()
    handler.emit = lambda record: output.write(record.getMessage().encode() + b"\n")  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        for _ in range(100):
            output.write(b"lost\n")
        full.room = 10
        output.write(b"one\n")
        full.room = 1000
        output.write(b"two\n")
    finally:
        logger.removeHandler(handler)
    assert b"Could not write 101 log lines" in full.taken


Ends = tuple[int, int]  # descriptors: to read from, to write to


def a_pipe() -> Ends:
    return os.pipe()


def a_socket() -> Ends:
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def a_terminal() -> Ends:
    return pty.openpty()


@pytest.fixture(params=[a_pipe, *(pytest.param(each, marks=pytest.mark.long) for each in (a_socket, a_terminal))])
def unread(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """Nobody reads what is written there, until the test does."""
    make: Callable[[], Ends] = request.param
    with ExitStack() as stack:
        ends = make()
        for each in ends:
            stack.callback(os.close, each)
        os.set_blocking(ends[0], False)
        yield ends


def read_all(end: int) -> bytes:
    found = b""
    while True:
        try:
            found += os.read(end, 1 << 16)
        except BlockingIOError:
            return found


def test_a_reader_that_stands_still_is_not_waited_for(unread: Ends, caplog: pytest.LogCaptureFixture) -> None:
    """Before, the node stood still with it."""
    reader, writer = unread
    with open(writer, "wb", closefd=False) as stream:
        output = Output(stream)
        for _ in range(MANY):
            output.write(LINE)
        assert 0 < output._lost < MANY
        assert output._patience_s < PATIENCE_S  # the next ones wait less
        assert not caplog.records
        lost = output._lost
        assert LINE[:10] in read_all(reader)
        output.write(b'{"last":1}\n')
    assert read_all(reader).replace(b"\r", b"").endswith(b'{"last":1}\n')
    (told,) = caplog.records
    assert told.getMessage() == f"Could not write {lost} log lines (its reader is too slow); they are lost"


def test_nor_is_one_of_a_pipe_that_belongs_to_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a container's user is not who has made its pipes."""

    def refused(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    reader, writer = os.pipe()
    monkeypatch.setattr(os, "open", refused)
    with open(reader, "rb"), open(writer, "wb") as stream:
        output = Output(stream)
        for _ in range(MANY):
            output.write(LINE)
        assert 0 < output._lost < MANY


def test_others_who_write_there_still_wait(unread: Ends) -> None:
    """O_NONBLOCK is of the open file, which the shell that started the node may have too."""
    with open(unread[1], "wb", closefd=False) as stream:
        Output(stream).write(LINE)
    assert not fcntl.fcntl(unread[1], fcntl.F_GETFL) & os.O_NONBLOCK


def test_a_slow_reader_loses_no_line() -> None:
    """It is waited for, as long as it reads."""
    reader, writer = os.pipe()
    numbers = [json.dumps(number).encode() + b" " * 100 + b"\n" for number in range(MANY)]
    with open(reader, "rb") as source, open(writer, "wb") as stream:
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)
        output, read = Output(stream), b""
        for number, line in enumerate(numbers):
            output.write(line)
            if number % 1000 == 999:
                read += os.read(source.fileno(), 1 << 20)
        assert output._lost == 0
    assert read == b"".join(numbers)


def test_a_stream_that_was_replaced_by_another_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    output, found = Output(), []
    for _ in range(2):
        reader, writer = os.pipe()
        with open(reader, "rb") as source, open(writer, "w") as stream:
            monkeypatch.setattr("sys.stderr", stream)
            output.write(LINE)
            output.write(LINE)
            found.append(os.read(source.fileno(), 1 << 16))
    assert found == [2 * LINE, 2 * LINE]
