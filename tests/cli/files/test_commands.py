"""Where an export goes."""

import os
from pathlib import Path

import pytest

from app.cli.files import commands
from app.errors import GatewayError


def test_what_is_no_file_is_written_to_and_stays(tmp_path: Path) -> None:
    """`-o /dev/stdout` and `-o /dev/null` as root put a file in the place of the device, for the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        commands._write(str(pipe), "version: 1\n")
        assert pipe.is_fifo()
        assert os.read(reader, 100) == b"version: 1\n"
    finally:
        os.close(reader)


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "gateway.yaml", tmp_path / "there" / "gateway.yaml"
    link.symlink_to(target)
    for text in ("first", "second"):
        commands._write(str(link), text)
        assert (link.is_symlink(), target.read_text()) == (True, text)
    assert os.listdir(tmp_path / "there") == ["gateway.yaml"]


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="Is a directory"):
        commands._write(str(tmp_path), "version: 1")
