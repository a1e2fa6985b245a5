"""Homes: who lives where, made so that nothing is followed and nothing is shared, and removed under nobody."""

import json
import os
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from app.domain import home_of, is_home
from app.errors import BackendExited
from app.processes import homes
from app.processes.homes import Homes
from tests.processes.rig import eventually, spec_of

NAME = "acme.64f2a8c1b3d40"


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def opened(root, name=NAME):
    store = Homes(root)
    store.close(await store.open(name))


def test_a_tenant_that_is_made_anew_has_another_home():
    made = datetime(2026, 3, 1, tzinfo=UTC)
    names = {home_of("acme", made), home_of("acme", made + timedelta(microseconds=1)), home_of("acm", made)}
    assert len(names) == 3
    assert all(is_home(name) and name.partition(".")[0] in ("acme", "acm") for name in names)
    assert home_of("acme", made) == home_of("acme", made)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a.b/..", "acme.\n", "ACME.1", "acme.1.2", "acme."])
async def test_no_other_name_is_a_home(tmp_path, name):
    with pytest.raises(OSError, match="Invalid argument"):
        await Homes(tmp_path).open(name)
    with pytest.raises(OSError, match="Invalid argument"):
        homes.remove(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


async def test_a_home_is_closed_to_other_users_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        await opened(tmp_path)
    finally:
        os.umask(before)
    assert [mode(tmp_path / NAME / each) for each in ("", "home", "tmp")] == [0o700] * 3


async def test_a_home_that_was_opened_to_others_is_closed_again(tmp_path):
    await opened(tmp_path)
    (tmp_path / NAME).chmod(0o777)
    await opened(tmp_path)
    assert mode(tmp_path / NAME) == 0o700


@pytest.mark.parametrize("part", [NAME, f"{NAME}/home", f"{NAME}/tmp"])
async def test_a_link_or_a_file_in_its_place_is_not_followed(tmp_path, part):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root = tmp_path / "homes"
    (root / part).parent.mkdir(parents=True)
    (root / part).symlink_to(elsewhere)
    with pytest.raises(NotADirectoryError):
        await Homes(root).open(NAME)
    (root / part).unlink()
    (root / part).write_text("")
    with pytest.raises(NotADirectoryError):
        await Homes(root).open(NAME)
    assert list(elsewhere.iterdir()) == []


async def test_a_home_of_another_user_is_refused(tmp_path, monkeypatch):
    await opened(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError):
        await Homes(tmp_path).open(NAME)


async def test_many_starts_at_once_share_one_home(tmp_path):
    one, other = Homes(tmp_path), Homes(tmp_path)  # two nodes of a machine
    before = len(os.listdir("/proc/self/fd"))
    found = []

    async def take(store):
        found.append(await store.open(NAME))

    async with anyio.create_task_group() as tasks:
        for store in [one, other] * 20:
            tasks.start_soon(take, store)
    assert len(set(found)) == 1
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    for store in (one, other):
        for _ in range(20):
            with pytest.raises(BlockingIOError):
                homes.remove(tmp_path, NAME)
            store.close(found[0])
    assert len(os.listdir("/proc/self/fd")) <= before
    homes.remove(tmp_path, NAME)
    assert list(tmp_path.iterdir()) == []


async def test_a_home_that_is_being_removed_is_not_moved_into(tmp_path):
    await opened(tmp_path)
    code = (
        "import fcntl,os,sys; d=os.open(sys.argv[1], 0); fcntl.flock(d, fcntl.LOCK_EX); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / NAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as remover:
        assert remover.stdout is not None
        remover.stdout.readline()
        with pytest.raises(BlockingIOError):
            await Homes(tmp_path).open(NAME)
        remover.communicate(b"\n")
    await opened(tmp_path)


async def test_opening_and_removing_at_once_never_gives_a_home_that_is_gone(tmp_path):
    """Whoever has opened a home has it: what the remover takes is the one before."""
    done = threading.Event()

    def remove_again_and_again():
        while not done.is_set():
            try:
                homes.remove(tmp_path, NAME)
            except OSError:
                continue

    threads = [threading.Thread(target=remove_again_and_again) for _ in range(2)]
    for thread in threads:
        thread.start()
    store, lived = Homes(tmp_path), 0
    try:
        with anyio.fail_after(100):
            while lived < 200:
                try:
                    home = await store.open(NAME)
                except OSError:
                    continue
                assert os.path.isdir(home.path)
                assert os.path.isdir(home.tmpdir)
                lived += 1
                store.close(home)
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_removing_follows_no_link(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    root = tmp_path / "homes"
    (root / NAME).mkdir(parents=True)
    (root / NAME / "home").symlink_to(kept)
    homes.remove(root, NAME)
    assert (kept / "file").read_text() == "x"
    (root / NAME).symlink_to(kept)
    with pytest.raises(NotADirectoryError):
        homes.remove(root, NAME)
    assert (kept / "file").read_text() == "x"


async def test_what_is_there_is_found_with_its_size(tmp_path):
    assert list(homes.find(tmp_path / "none")) == []
    store = Homes(tmp_path)
    home = await store.open(NAME)
    (tmp_path / NAME / "home" / "file").write_bytes(b"x" * 1000)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "link.1").symlink_to(tmp_path)
    (found,) = homes.find(tmp_path)
    assert (found.name, found.size, found.in_use) == (NAME, 1000, True)
    store.close(home)
    (found,) = homes.find(tmp_path)
    assert not found.in_use


# --- the home that all tenants shared


def test_the_old_home_becomes_that_of_the_only_tenant(tmp_path):
    old, root = tmp_path / "backends" / "home", tmp_path / "homes"
    old.mkdir(parents=True)
    root.mkdir()
    (old / "memory.json").write_text("{}")
    assert homes.is_left(old)
    assert homes.adopt(old, root, NAME)
    assert (root / NAME / "home" / "memory.json").read_text() == "{}"
    assert (old / "memory.json").read_text() == "{}"  # by the path that a backend's arguments may name
    assert not homes.is_left(old)
    assert not homes.adopt(old, root, NAME)


async def test_the_old_home_stays_where_the_tenant_has_files_already(tmp_path):
    old, root = tmp_path / "backends" / "home", tmp_path / "homes"
    old.mkdir(parents=True)
    (old / "a").write_text("old")
    root.mkdir()
    await opened(root)
    (root / NAME / "home" / "a").write_text("new")
    with pytest.raises(OSError, match="not empty"):
        homes.adopt(old, root, NAME)
    assert (old / "a").read_text() == "old"
    assert (root / NAME / "home" / "a").read_text() == "new"


# --- processes


async def test_processes_of_two_tenants_see_nothing_of_each_other_by_where_they_are(running, tmp_path):
    seen = []
    for tenant in ("acme.1", "acme.2", "other.1"):
        spec = replace(spec_of("report"), home=tenant, tenant=tenant.partition(".")[0])
        process = await running.supervisor.spawn(spec, running.gone.append)
        with open(f"/proc/{process.pid}/environ", "rb") as environ:
            variables = dict(each.split(b"=", 1) for each in environ.read().split(b"\0") if each)
        seen.append((variables[b"HOME"], variables[b"TMPDIR"]))
        assert os.readlink(f"/proc/{process.pid}/cwd") == variables[b"HOME"].decode()
        assert sorted(os.listdir(os.path.join(variables[b"HOME"].decode(), ".."))) == ["home", "tmp"]
    assert len({path for pair in seen for path in pair}) == 6


async def test_a_home_is_in_use_while_a_process_runs_and_no_longer(running, tmp_path):
    process, _ = await running.start("echo", home=NAME)
    second, _ = await running.start("echo", home=NAME)
    with anyio.fail_after(30):
        await running.stop(process)
    with pytest.raises(BlockingIOError):
        homes.remove(tmp_path, NAME)
    with anyio.fail_after(30):
        await running.stop(second)
    homes.remove(tmp_path, NAME)


async def test_a_start_that_fails_leaves_the_home_unused(running, tmp_path):
    spec = replace(spec_of("echo", home=NAME), command="/no/such/program")
    with pytest.raises(BackendExited):
        await running.supervisor.spawn(spec, running.gone.append)
    await eventually(lambda: not next(iter(homes.find(tmp_path))).in_use)


async def test_a_home_that_cannot_be_used_is_a_start_that_failed_and_names_no_path(running, tmp_path, caplog):
    (tmp_path / NAME).symlink_to("/etc")
    with pytest.raises(BackendExited) as caught:
        await running.start("echo", home=NAME)
    assert not caught.value.started
    assert "home of the tenant cannot be used: Not a directory" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert str(tmp_path / NAME) in caplog.text
    assert running.value("trunkline_process_spawns_total", result="failed") == 1
    _, listener = await running.start("report")
    assert json.loads(await listener.line())


# --- the directory that a backend works in


@pytest.mark.parametrize("cwd", ["notes/today", "notes/../notes/today/.", "{absolute}"])
async def test_a_process_works_where_its_backend_says(running, tmp_path, cwd):
    there = tmp_path / NAME / "home" / "notes" / "today"
    there.mkdir(parents=True)
    _, listener = await running.start("report", home=NAME, cwd=cwd.format(absolute=there))
    report = json.loads(await listener.line())
    assert report["cwd"] == str(there)
    assert report["environment"]["HOME"] == str(tmp_path / NAME / "home")


async def test_a_relative_command_is_looked_for_there(running, tmp_path):
    there = tmp_path / NAME / "home" / "bin"
    there.mkdir(parents=True)
    (there / "run").symlink_to(sys.executable)
    spec = replace(spec_of("echo", home=NAME, cwd="bin"), command="./run")
    process = await running.supervisor.spawn(spec, running.gone.append)
    assert process.pid


@pytest.mark.parametrize(
    ("cwd", "problem"),
    [("no/such", "No such file or directory: cwd 'no/such'"), ("/dev/null", "Not a directory: cwd '/dev/null'")],
)
async def test_a_directory_that_is_not_there_is_named_as_it_was_registered(running, tmp_path, cwd, problem):
    with pytest.raises(BackendExited) as caught:
        await running.start("echo", home=NAME, cwd=cwd)
    assert (str(caught.value), caught.value.started) == (problem, False)
    assert caught.value.hint is not None
    assert "trunkline homes" in caught.value.hint


async def test_a_home_is_found_however_deep_its_directories_are(tmp_path):
    store = Homes(tmp_path)
    home = await store.open("acme.64f2a8c1b3d40")
    deep = "\n".join(["import os, sys", "os.chdir(sys.argv[1])", "for _ in range(1500): os.mkdir('d'); os.chdir('d')"])
    subprocess.run([sys.executable, "-c", deep, home.path], check=True)
    (Path(home.path) / "file").write_bytes(bytes(1000))
    store.close(home)
    assert [(found.name, found.size) for found in homes.find(tmp_path)] == [("acme.64f2a8c1b3d40", 1000)]
    homes.remove(tmp_path, "acme.64f2a8c1b3d40")
    assert list(homes.find(tmp_path)) == []
