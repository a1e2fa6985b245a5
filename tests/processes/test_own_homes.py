"""Homes of single processes, and of principals: made, limited, removed, and found again."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from app.domain import BackendSpec, Sandbox
from app.jail.sandbox import uids
from app.jail.sandbox.tiers import Tier
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


async def test_a_private_home_is_removed_however_deep_and_closed_it_is(tmp_path):
    store = Homes(tmp_path)
    home = await store.open_own(TENANT)
    make = (
        "import os\n"
        "for number in range(1500):\n"  # longer than a path can be, and deeper than Python may recurse
        "    os.mkdir('d' * 10); open('file', 'w').close(); os.chdir('d' * 10)\n"
    )
    subprocess.run([sys.executable, "-c", make], cwd=home.path, check=True, timeout=60)
    Path(home.path, "closed", "in").mkdir(parents=True)
    Path(home.path, "closed", "in").chmod(0)
    Path(home.path, "closed").chmod(0)
    store.close(home)
    await store.aclose()
    assert private_of(tmp_path) == []


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
    home = await store.open_own(TENANT, KEY, 1 << 20)
    Path(home.path, "file").write_bytes(bytes((1 << 20) + 1))
    store.close(home)
    await store.aclose()
    with pytest.raises(own_homes.HomeFull, match="wrote more than the 1 MiB"):
        await store.open_own(TENANT, KEY, 1 << 20)
    await store.aclose()
    assert private_of(tmp_path) == []
    assert (await store.open_own(TENANT, KEY, 2 << 20)).path == home.path


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
    assert home.is_kept == (kept is not None)
    with pytest.raises(OSError, match="Invalid"):
        await store.open_own(TENANT, kept, cwd="../x")
    if kept:
        Path(home.path, "link").symlink_to(tmp_path)
        with pytest.raises(OSError, match=r"Not a directory|Too many"):
            await store.open_own(TENANT, kept, cwd="link/new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, {Tier.NONE: "tenant", Tier.BASE: "own", Tier.KERNEL: "own", Tier.NAMESPACES: "tenant"}),
        ({"state": "keep", "keeper": ("t", "key", "a")}, dict.fromkeys(Tier, "kept")),
        ({"state": "keep", "keeper": ("t", "key", "a"), "sandbox": Sandbox("off")}, dict.fromkeys(Tier, "kept")),
        # started for nobody, such as a check
        ({"state": "keep"}, {Tier.NONE: "tenant", Tier.BASE: "own", Tier.ASSISTED: "tenant"}),
        ({"state": "keep", "isolation": "shared"}, dict.fromkeys(Tier, "kept")),
        # the rule of the platform may overrule this: what counts is how the process is confined
        ({"sandbox": Sandbox("off")}, {Tier.NONE: "tenant", Tier.BASE: "own", Tier.ASSISTED: "tenant"}),
    ],
)
async def test_what_home_a_process_gets(tmp_path, changes, kind):
    for tier, expected in kind.items():
        spec = BackendSpec("acme", "notes", "x", home=TENANT, cwd="w", **changes)
        home = await Homes(tmp_path).open_for(spec, tier)
        assert home.is_kept is (expected == "kept"), tier
        assert (home.own is None) == (expected == "tenant") == (home.path == str(tmp_path / TENANT / "home"))
        assert home.limited == (() if expected == "tenant" else (home.path, home.tmpdir))


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
@pytest.mark.parametrize(("uid", "is_taken"), [(uids.FIRST, True), (uids.LAST, True), (uids.FIRST - 1, False)])
async def test_root_takes_a_home_that_it_has_given_to_a_tenant_and_nobody_elses(tmp_path, uid, is_taken):
    store = Homes(tmp_path)
    home = await store.open_own(TENANT, KEY, cwd="work")
    for path in (home.path, f"{home.path}/work"):
        os.chown(path, uid, uid)
    store.close(home)
    await store.aclose()
    if is_taken:
        assert (await store.open_own(TENANT, KEY, cwd="work")).path == home.path
    else:
        with pytest.raises(PermissionError):
            await store.open_own(TENANT, KEY)
