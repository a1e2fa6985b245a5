"""Landlock's rules, applied by forked children. test_confinement_attempts.py tries them out through the spawner."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from app.jail.spawner import landlock, syscalls
from app.jail.spawner.wire import Landlock

pytestmark = pytest.mark.skipif(not landlock.abi(), reason="no Landlock in this kernel")

RULES = Landlock(read=["/usr"], write=["/tmp"], connect=[443], bind=[], scoped=True)


def under(rules: Landlock, do: Callable[[], object]) -> int:
    """The error of what a child does under these rules; 0 if there is none."""
    child = os.fork()
    if child == 0:
        status = 255
        try:
            syscalls.renounce_privileges()
            landlock.restrict(rules)
            do()
            status = 0
        except OSError as error:
            status = error.errno or 254
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    ("version", "names"),
    [
        (0, set()),
        (1, {"read", "write"}),
        (3, {"read", "write"}),
        (4, {"read", "write", "connect", "bind"}),
        (6, set(RULES)),
        (99, set(RULES)),
    ],
)
def test_rules_are_left_out_by_who_asks_for_them_not_in_silence(version, names, monkeypatch):
    kept = landlock.within(RULES, version)
    assert set(kept) == names
    assert kept.items() <= RULES.items()
    monkeypatch.setattr(landlock, "abi", lambda: version)
    if kept != RULES:
        with pytest.raises(OSError, match=f"ABI {version}") as caught:
            landlock.restrict(RULES)
        assert caught.value.errno == errno.EOPNOTSUPP


def test_no_rules_are_no_restriction(tmp_path):
    assert under({}, lambda: (tmp_path / "x").write_text("x")) == 0
    assert under({"scoped": False}, lambda: (tmp_path / "y").write_text("y")) == 0


def test_a_directory_a_file_and_a_path_that_is_not_there(tmp_path: Path):
    directory, file, other = tmp_path / "directory", tmp_path / "file", tmp_path / "other"
    directory.mkdir()
    for each in (file, other, directory / "in it"):
        each.write_text("content")
    read = Landlock(read=[str(directory), str(file), str(tmp_path / "missing"), str(file / "below a file")])
    assert under(read, file.read_text) == under(read, (directory / "in it").read_text) == 0
    assert under(read, lambda: os.listdir(directory)) == 0
    assert under(read, other.read_text) == under(read, lambda: os.listdir(tmp_path)) == errno.EACCES
    assert under(read, lambda: other.write_text("x")) == 0  # a list that is missing restricts nothing


def test_a_path_to_write_can_be_read_and_one_to_read_cannot_be_written(tmp_path: Path):
    readable, writable = tmp_path / "readable", tmp_path / "writable"
    for each in (readable, writable):
        each.mkdir()
        (each / "empty").mkdir()
        for name in ("file", "old"):
            (each / name).write_text("content")
    rules = Landlock(read=[str(readable)], write=[str(writable)])
    for change in (
        lambda where: (where / "file").write_text("x"),
        lambda where: (where / "new").mkdir(),
        lambda where: (where / "file").rename(where / "file"),
        lambda where: os.mkfifo(where / "pipe"),
        lambda where: (where / "link").symlink_to("file"),
        lambda where: (where / "old").unlink(),
        lambda where: (where / "empty").rmdir(),
    ):
        assert under(rules, lambda change=change: change(readable)) == errno.EACCES  # type: ignore[misc]
        assert under(rules, lambda change=change: change(writable)) == 0  # type: ignore[misc]
    assert under(rules, lambda: os.listdir(writable)) == under(rules, (readable / "file").read_text) == 0
    # A file that may be read does not come along when it is moved to where one may write.
    assert under(rules, lambda: (readable / "file").rename(writable / "file")) == errno.EACCES


def test_a_file_alone_can_be_written_but_not_replaced(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("content")
    rules = Landlock(read=[], write=[str(file)])
    assert under(rules, lambda: file.write_text("x")) == under(rules, file.read_text) == 0
    assert under(rules, file.unlink) == errno.EACCES


def test_a_path_that_cannot_be_opened_for_another_reason_applies_nothing():
    assert under({"read": ["/" + "x" * 5000]}, lambda: None) == errno.ENAMETOOLONG
    assert under({"connect": [1 << 20]}, lambda: None) == errno.EINVAL
