"""Homes of single processes, and of principals: made, limited, removed, and found again."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from app.domain import BackendSpec, Sandbox
from app.processes import homes, own_homes
from app.processes.homes import Homes

TENANT = "acme.64f2a8c1b3d40"
KEY = own_homes.key_of("notes", ("acme", "key", "abc"))
IS_ROOT = os.geteuid() == 0


def private_of(root: Path) -> list[str]:
    place = root / TENANT / "private"
    return os.listdir(place) if place.exists() else []


async def test_each_process_has_a_home_of_its_own_that_is_removed_with_it(tmp_path):
    store = Homes(tmp_path)
    one, other = await store.open_own(TENANT), await store.open_own(TENANT)
    assert one.path != other.path
    assert one.tmpdir != other.tmpdir
    for path in (one.path, one.tmpdir):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    Path(one.path, "file").write_text("x")
    Path(one.tmpdir, "deep", "er").mkdir(parents=True)
    Path(one.tmpdir, "deep").chmod(0o500)
    store.close(one)
    await store.aclose()
    assert private_of(tmp_path) == [Path(other.path).parent.name]
    with pytest.raises(BlockingIOError):
        homes.remove(tmp_path, TENANT)
    store.close(other)
    await store.aclose()
    assert private_of(tmp_path) == []
    homes.remove(tmp_path, TENANT)


async def test_a_link_in_a_private_home_is_removed_and_not_followed(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    store = Homes(tmp_path / "homes")
    homes.make_root(tmp_path / "homes")
    home = await store.open_own(TENANT)
    Path(home.path, "link").symlink_to(tmp_path / "kept")
    store.close(home)
    await store.aclose()
    assert (tmp_path / "kept" / "file").exists()


async def test_a_home_that_lasts_is_the_same_for_the_same_principal(tmp_path):
    store = Homes(tmp_path)
    first = await store.open_own(TENANT, KEY)
    Path(first.path, "note").write_text("x")
    second = await store.open_own(TENANT, KEY)
    assert second.path == first.path
    assert second.tmpdir != first.tmpdir
    assert (await store.open_own(TENANT, own_homes.key_of("notes", ("acme", "key", "other")))).path != first.path
    assert (await store.open_own(TENANT, own_homes.key_of("files", ("acme", "key", "abc")))).path != first.path
    store.close(first)
    store.close(second)
    await store.aclose()
    third = await store.open_own(TENANT, KEY)
    assert Path(third.path, "note").read_text() == "x"


def test_no_two_identities_have_the_same_key():
    assert own_homes.key_of("b", ("a", "bc")) != own_homes.key_of("b", ("ab", "c"))
    assert own_homes.is_key(KEY)
    assert not own_homes.is_key(f"../{KEY}")


async def test_a_home_over_its_quota_is_refused_and_nothing_is_left(tmp_path):
    store = Homes(tmp_path)
    home = await store.open_own(TENANT, KEY, 100)
    Path(home.path, "file").write_bytes(bytes(100))
    store.close(home)
    await store.aclose()
    with pytest.raises(OSError, match="quota") as caught:
        await store.open_own(TENANT, KEY, 100)
    assert caught.value.errno == errno.EDQUOT
    await store.aclose()
    assert (await store.open_own(TENANT, KEY, 101)).path == home.path


async def test_what_a_killed_node_left_is_removed_and_what_is_in_use_is_not(tmp_path):
    code = (
        "import asyncio, os, signal, sys; from pathlib import Path; from app.processes.homes import Homes\n"
        "async def main():\n"
        f"    home = await Homes(Path(sys.argv[1])).open_own({TENANT!r}, {KEY!r})\n"
        "    Path(home.path, 'file').touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, cwd=Path(__file__).parents[2], timeout=60)
    assert len(private_of(tmp_path)) == 1
    home = await Homes(tmp_path).open_own(TENANT)
    assert own_homes.remove_leftovers(tmp_path) == 1
    assert private_of(tmp_path) == [Path(home.path).parent.name]
    assert (tmp_path / TENANT / "kept" / KEY / "home" / "file").exists()


@pytest.mark.parametrize("kept", [None, KEY])
async def test_a_working_directory_below_the_home_is_made_through_no_link(tmp_path, kept):
    store = Homes(tmp_path / "homes")
    homes.make_root(tmp_path / "homes")
    home = await store.open_own(TENANT, kept, cwd="a/b")
    assert Path(home.path, "a", "b").is_dir()
    assert home.lasts == (kept is not None)
    with pytest.raises(OSError, match="Invalid"):
        await store.open_own(TENANT, kept, cwd="../x")
    if kept:
        Path(home.path, "link").symlink_to(tmp_path)
        with pytest.raises(OSError, match=r"Not a directory|Too many"):
            await store.open_own(TENANT, kept, cwd="link/new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("changes", "lasts"),
    [
        ({}, False),
        ({"state": "keep", "keeper": ("t", "key", "a")}, True),
        ({"state": "keep"}, False),  # started for nobody, such as a check
        ({"state": "keep", "isolation": "shared"}, True),
        ({"sandbox": Sandbox("off")}, True),
    ],
)
async def test_what_home_a_process_gets(tmp_path, changes, lasts):
    home = await Homes(tmp_path).open_for(BackendSpec("acme", "notes", "x", home=TENANT, cwd="w", **changes))
    assert home.lasts is lasts
    assert (home.own is None) == (home.path == str(tmp_path / TENANT / "home"))


async def test_homes_that_last_are_listed_and_removed_unless_in_use(tmp_path):
    store = Homes(tmp_path)
    home = await store.open_own(TENANT, KEY)
    Path(home.path, "file").write_bytes(bytes(7))
    name = f"{TENANT}/{KEY}"
    assert [(each.name, each.in_use) for each in homes.find(tmp_path)] == [(TENANT, True), (name, True)]
    with pytest.raises(BlockingIOError):
        homes.remove(tmp_path, name)
    store.close(home)
    await store.aclose()
    assert [each.size for each in homes.find(tmp_path)] == [7, 7]
    homes.remove(tmp_path, name)
    assert [each.name for each in homes.find(tmp_path)] == [TENANT]


@pytest.mark.skipif(not IS_ROOT, reason="needs root")
async def test_root_gives_a_home_to_the_user_of_the_tenant_with_all_in_it(tmp_path):
    store = Homes(tmp_path / "homes")
    homes.make_root(tmp_path / "homes")
    (tmp_path / "outside").touch()
    home = await store.open_own(TENANT, KEY)
    Path(home.path, "deep").mkdir()
    Path(home.path, "deep", "file").touch()
    Path(home.path, "link").symlink_to(tmp_path / "outside")
    own_homes.give(Path(home.path), 60002)
    assert {os.lstat(path).st_uid for path in [Path(home.path), *Path(home.path).rglob("*")]} == {60002}
    assert (tmp_path / "outside").stat().st_uid == 0
    store.close(home)
    await store.aclose()
    assert (await store.open_own(TENANT, KEY)).path == home.path  # and it opens it again
