"""User ids of tenants: one table for all nodes that share the homes, on real files and users."""

import errno
import fcntl
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from app.jail.sandbox import uids
from app.jail.sandbox.uids import FIRST, LAST, TABLE, give, uid_of
from app.processes.directories import remove_tree

ROOT = Path(__file__).resolve().parents[3]
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def test_a_tenant_keeps_its_id_and_shares_it_with_nobody(tmp_path):
    ids = {name: uid_of(tmp_path, name) for name in (f"tenant{number}.5f" for number in range(100))}
    assert len(set(ids.values())) == 100
    assert all(FIRST <= uid <= LAST for uid in ids.values())
    assert {name: uid_of(tmp_path, name) for name in ids} == ids
    assert stat.S_IMODE((tmp_path / TABLE).stat().st_mode) == 0o600


def test_the_table_can_be_read_without_changing_it(tmp_path):
    assert uids.table_of(tmp_path) == {}
    uid = uid_of(tmp_path, "acme.5f")
    with open(tmp_path / TABLE, "a") as table:
        table.write(f"{uid} other.5f\n60001 ac")  # given anew; and a node is writing
    before = (tmp_path / TABLE).read_bytes()
    assert uids.table_of(tmp_path) == {"other.5f": uid}
    assert (tmp_path / TABLE).read_bytes() == before


NODE = """
import sys
from pathlib import Path
from app.jail.sandbox.uids import uid_of
print([uid_of(Path(sys.argv[1]), f"tenant{number}.5f") for number in range(60)])
"""


def test_nodes_that_start_at_once_agree(tmp_path):
    command = [sys.executable, "-c", NODE, str(tmp_path)]
    nodes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [node.communicate(timeout=60)[0] for node in nodes]
    assert len(set(said)) == 1
    assert len(set(said[0].strip("[]\n").split(", "))) == 60


def test_a_node_waits_until_another_has_written(tmp_path):
    with open(tmp_path / TABLE, "w") as table:
        fcntl.flock(table, fcntl.LOCK_EX)
        node = subprocess.Popen(
            [sys.executable, "-c", NODE, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        while not waits_for_a_lock(node.pid):
            assert node.poll() is None
        table.write("60123 tenant0.5f\n")
        table.flush()
    said, _ = node.communicate(timeout=60)
    assert said.startswith("[60123, ")


def waits_for_a_lock(pid: int) -> bool:
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(line[1] == "->" and str(pid) in line for line in locks)


def full(homes: Path) -> None:
    """A table in which every id is that of a home that is there."""
    names = {uid: f"tenant{uid}.5f" for uid in range(FIRST, LAST + 1)}
    (homes / TABLE).write_text("".join(f"{uid} {name}\n" for uid, name in names.items()))
    for name in names.values():
        (homes / name).mkdir()


def test_the_id_of_a_home_is_given_to_another_only_when_all_are_taken_and_the_home_is_gone(tmp_path):
    full(tmp_path)
    with pytest.raises(OSError, match="the user ids 60000 to 64999 are all taken") as caught:
        uid_of(tmp_path, "late.5f")
    assert caught.value.errno == errno.EUSERS
    free = next(uid for uid in range(61_000, LAST) if not uids._is_account(uid) and not is_running(uid))
    (tmp_path / f"tenant{free}.5f").rmdir()
    (tmp_path / "late.5f").mkdir()
    assert uid_of(tmp_path, "late.5f") == free == uid_of(tmp_path, "late.5f")
    with pytest.raises(OSError, match="all taken"):  # who had it before gets no other tenant's
        uid_of(tmp_path, f"tenant{free}.5f")


def is_running(uid: int) -> bool:
    return uid in set(uids._owners_of_processes())


def test_a_line_that_was_not_written_to_its_end_does_not_count(tmp_path):
    first = uid_of(tmp_path, "first.5f")
    with open(tmp_path / TABLE, "a") as table:
        table.write("60001 half")
    second = uid_of(tmp_path, "second.5f")
    assert (tmp_path / TABLE).read_text() == f"{first} first.5f\n{second} second.5f\n"


def test_ids_of_accounts_and_of_running_processes_are_left_out(tmp_path, monkeypatch):
    usual = uid_of(tmp_path, "acme.5f")
    (tmp_path / TABLE).unlink()
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {usual: "somebody"}[uid])
    assert uid_of(tmp_path, "acme.5f") == FIRST + (usual - FIRST + 1) % 5000


@AS_ROOT
def test_ids_of_running_processes_are_left_out(tmp_path):
    usual = uid_of(tmp_path, "acme.5f")
    (tmp_path / TABLE).unlink()
    process = subprocess.Popen(["sleep", "1000"], user=usual, group=usual, extra_groups=[])
    try:
        assert uid_of(tmp_path, "acme.5f") != usual
    finally:
        process.kill()
        process.wait()


@AS_ROOT
def test_a_home_with_all_in_it_is_given_to_its_tenant_and_nothing_else(tmp_path):
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / "deep").mkdir(parents=True)
    outside.write_text("ours")
    (home / "deep/file").write_text("its")
    (home / "link").symlink_to(outside)
    (home / "directory").symlink_to(tmp_path)
    os.link(outside, home / "hard")
    os.mkfifo(home / "pipe")
    os.mknod(home / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    uid = uid_of(tmp_path, "acme.5f")
    give(home, uid)
    own = {each.name for each in (home, *home.rglob("*")) if each.lstat().st_uid == uid}
    assert own == {"home", "deep", "file", "pipe"}
    assert outside.stat().st_uid == tmp_path.stat().st_uid == 0
    (home / "later").write_text("by root")
    give(home, uid)  # is done once
    assert (home / "later").stat().st_uid == 0


@AS_ROOT
def test_directories_too_deep_to_be_given_away_are_an_error_like_others(tmp_path):
    deep = "\n".join(["import os, sys", "os.chdir(sys.argv[1])", "for _ in range(1500): os.mkdir('d'); os.chdir('d')"])
    (tmp_path / "home").mkdir()
    subprocess.run([sys.executable, "-c", deep, str(tmp_path / "home")], check=True)
    with pytest.raises(OSError, match="too many directories"):
        give(tmp_path / "home", FIRST)
    remove_tree(tmp_path, "home")
