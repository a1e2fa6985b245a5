"""Packages end to end in the real sandbox: what is installed, what a hostile one cannot do, and what is started."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from app.backends.packages import packages as module
from app.backends.packages import workshop
from app.backends.packages.packages import RegistrySettings
from app.backends.packages.store import Store
from app.domain import BackendSpec, Package
from app.errors import BackendExited, InvalidRequest
from app.jail.sandbox.composer import Place
from app.jail.sandbox.tiers import Tier
from app.processes.supervisor import Supervisor
from app.telemetry.metrics import Metrics
from tests.backends.packages.rig import (
    Bench,
    Npm,
    add_source,
    add_wheel,
    bench,
    index,
    needs_npm,
    npm,
    unconfigured,
)
from tests.jail.sandbox.inside import IS_ROOT, needs_bubblewrap
from tests.processes.rig import Listener, options_of

__all__ = ["index", "npm", "unconfigured"]  # fixtures

TIER = Tier.ASSISTED if IS_ROOT else Tier.NAMESPACES


@pytest.fixture
def python(tmp_path: Path, index: Path) -> Bench:
    return bench(tmp_path / "data", TIER, RegistrySettings(pypi=index.as_uri()))


@pytest.fixture
def node(tmp_path: Path, npm: Npm) -> Bench:
    return bench(tmp_path / "data", TIER, RegistrySettings(npm=npm.url))


def spec(command: str, *args: str, **fields) -> BackendSpec:
    return BackendSpec("acme", "notes", command, args=args, **fields)


def said(ready: BackendSpec) -> list:
    """What its program prints."""
    done = subprocess.run([ready.command, *ready.args], capture_output=True, check=True, timeout=60)
    return json.loads(done.stdout)


@needs_bubblewrap
async def test_a_package_of_pypi_is_installed_once_and_its_program_started_directly(python, index):
    add_wheel(index, "mcp-notes", "1.0", requires=("more-notes>=2",))
    add_wheel(index, "more-notes", "2.1")
    asked = spec("uvx", "mcp-notes", "--port", "3")
    made = await python.packages.resolved(asked)
    assert made == replace(asked, package=made.package)
    package = made.package
    assert (package.registry, package.name, package.version, package.program) == (
        "pypi",
        "mcp-notes",
        "1.0",
        "mcp-notes",
    )
    ready = await python.packages.ready(made)
    assert ready.command == f"{python.data}/packages/{package.lock}/bin/python"
    assert said(ready) == [["--port", "3"], ready.installed]
    assert python.installed == [package.lock]
    assert list((Path(ready.installed) / "lib").glob("**/__pycache__/mcp_notes*.pyc"))
    assert not os.access(ready.installed, os.W_OK) or IS_ROOT
    files = [Path(at, name) for at, _, names in os.walk(ready.installed) for name in names]
    modes = {each.lstat().st_mode & 0o7222 for each in files if not each.is_symlink()}
    assert modes == {0}

    add_wheel(index, "mcp-notes", "2.0")
    assert await python.packages.resolved(replace(made, args=("mcp-notes", "--port", "4")), made) == replace(
        made, args=("mcp-notes", "--port", "4")
    )
    newer = await python.packages.resolved(replace(made, args=("mcp-notes@2.0",)), made)
    assert (newer.package.version, len(python.installed)) == ("2.0", 2)
    assert (await python.packages.resolved(spec("mcp-notes"), made)).package is None


@needs_bubblewrap
@needs_npm
async def test_a_package_of_npm_is_installed_once_and_its_program_started_directly(node, npm):
    npm.add("left", "1.0.0")
    npm.add("@acme/notes", "1.0.0", dependencies={"left": "^1.0.0"})
    made = await node.packages.resolved(spec("npx", "-y", "@acme/notes", "serve"))
    package = made.package
    assert (package.name, package.version, package.program) == ("@acme/notes", "1.0.0", "notes")
    ready = await node.packages.ready(made)
    assert ready.command == shutil.which("node")
    args, place = said(ready)
    assert (args, place) == (["serve"], f"{ready.installed}/node_modules/@acme/notes/server.js")
    assert "resolved" not in node.locks.kept["acme", package.lock].content

    npm.add("@acme/notes", "1.1.0")
    assert (await node.packages.resolved(spec("npx", "-y", "@acme/notes", "other"), made)).package == package
    asked = len(npm.asked)
    await node.packages.ready(made)
    assert len(npm.asked) == asked


@needs_bubblewrap
async def test_a_node_that_has_it_not_installs_from_the_lock(python, index, tmp_path):
    add_wheel(index, "mcp-notes", "1.0")
    made = await python.packages.resolved(spec("uvx", "mcp-notes"))
    add_wheel(index, "mcp-notes", "2.0")
    other = bench(tmp_path / "other", TIER, RegistrySettings(pypi=index.as_uri()), python.locks)
    async with anyio.create_task_group() as tasks:  # two sessions at once
        for _ in range(2):
            tasks.start_soon(other.packages.ready, made)
    ready = await other.packages.ready(made)
    assert (other.installed, said(ready)[0]) == ([made.package.lock], [])
    assert list(Path(ready.installed).glob("lib/*/site-packages/mcp_notes-1.0.dist-info"))

    add_wheel(index, "mcp-notes", "1.0", files={"mcp_notes.py": "import os"})
    late = bench(tmp_path / "late", TIER, RegistrySettings(pypi=index.as_uri()), python.locks)
    with pytest.raises(BackendExited, match=r"cannot be installed on this node.*[Hh]ash mismatch"):
        await late.packages.ready(made)
    assert late.installed == []


@needs_bubblewrap
@needs_npm
async def test_scripts_of_a_hostile_package_are_not_run_and_its_archive_stays_inside(node, npm, tmp_path):
    mark = tmp_path / "ran"
    scripts = dict.fromkeys(("preinstall", "install", "postinstall", "prepare"), f"touch {mark} ran")
    outside = {f"package/{'../' * depth}escaped{depth}": "x" for depth in range(1, 12)} | {"/escaped": "x"}
    npm.add("evil", "1.0.0", scripts=scripts, files=outside)
    made = await node.packages.resolved(spec("npx", "evil"))
    assert made.package.scripts == ("evil",)
    assert said(await node.packages.ready(made))[0] == []
    assert not mark.exists()
    folder = node.store.root / made.package.lock
    named = [each for each in tmp_path.rglob("*") if "escaped" in each.name or each.name == "ran"]
    assert all(each.is_relative_to(folder) for each in named)
    assert not [each for each in Path("/").iterdir() if "escaped" in each.name]


@needs_bubblewrap
@needs_npm
async def test_another_archive_than_that_of_the_lock_is_refused(node, npm, tmp_path):
    npm.add("notes", "1.0.0")
    made = await node.packages.resolved(spec("npx", "notes"))
    npm.add("notes", "1.0.0", files={"package/more.js": "evil"})
    late = bench(tmp_path / "late", TIER, RegistrySettings(npm=npm.url), node.locks)
    with pytest.raises(BackendExited, match="EINTEGRITY"):
        await late.packages.ready(made)
    assert late.installed == []


@needs_bubblewrap
@needs_npm
async def test_a_lock_that_two_sessions_want_at_once_is_installed_once(node, npm, tmp_path):
    npm.add("mcp-notes", "1.0.0")
    made = await node.packages.resolved(spec("npx", "mcp-notes"))
    empty = bench(tmp_path / "empty", TIER, RegistrySettings(npm=npm.url), node.locks)
    npm.asked.clear()
    found = list[BackendSpec]()

    async def ready() -> None:
        found.append(await empty.packages.ready(made))

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(ready)
    assert found[0] == found[1]
    assert [each for each in npm.asked if each.endswith(".tgz")] == ["/files/mcp-notes-1.0.0.tgz"]
    assert empty.installed == [made.package.lock]


@needs_bubblewrap
@needs_npm
async def test_a_download_that_never_ends_and_one_that_is_too_large_are_stopped(node, npm, monkeypatch):
    npm.add("endless", "1.0.0")
    npm.never_ends.add("endless")
    monkeypatch.setattr(module, "INSTALL_S", 3.0)
    with pytest.raises(InvalidRequest, match="has not ended after 3 s"):
        await node.packages.resolved(spec("npx", "endless"))
    npm.add("large", "1.0.0", files={"package/large": os.urandom(1 << 20).hex()})
    monkeypatch.setattr(module, "INSTALL_S", 60.0)
    monkeypatch.setattr(workshop, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(workshop, "LOOK_S", 0.01)
    with pytest.raises(InvalidRequest, match="is more than 1 MiB"):
        await node.packages.resolved(spec("npx", "large"))
    assert node.installed == []


@needs_bubblewrap
async def test_a_source_distribution_is_not_built(python, index, tmp_path):
    add_source(index, "evil", "1.0", f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(InvalidRequest, match="building from source is disabled"):
        await python.packages.resolved(spec("uvx", "evil"))
    assert not (tmp_path / "ran").exists()
    assert python.installed == []


@needs_bubblewrap
async def test_a_wheel_opens_nothing_by_the_files_that_it_brings(python, index, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "python3").write_text("")
    data = "evil-1.0.data"
    files = {
        "evil.pth": f"{secret}\nimport os; open('pth-ran', 'w')\n",
        f"{data}/data/pyvenv.cfg": f"home = {secret}\n",
        f"{data}/data/.trunkline.json": "{}",
    }
    add_wheel(index, "evil", "1.0", files=files)
    ready = await python.packages.ready(await python.packages.resolved(spec("uvx", "evil")))
    folder = Path(ready.installed)
    assert os.path.realpath(folder / "bin/python") == os.path.realpath(sys.executable)
    assert str(secret) not in (folder / "pyvenv.cfg").read_text()
    assert not list(folder.rglob("pth-ran"))
    confined = await python.sandboxes.confine(ready, Place("/nowhere", "/nowhere"))
    assert str(folder) in confined.command.argv
    assert str(secret) not in confined.command.argv
    confined.close()

    add_wheel(index, "worse", "1.0", files={f"{'../' * depth}escaped.py": "x" for depth in range(1, 9)})
    with suppress(InvalidRequest):  # or what would be outside is left out
        await python.packages.resolved(spec("uvx", "worse"))
    store = python.store.root
    escaped = [
        each for each in tmp_path.rglob("escaped.py") if each.relative_to(store).parts[0] not in python.installed
    ]
    assert escaped == []
    assert not Path("/escaped.py").exists()


LOOKS = """
import json, os, sys

def tries(path, mode="r"):
    try:
        open(path, mode).close()
    except OSError as error:
        return "refused"
    return "done"

def main():
    own, other, data = sys.prefix + "/pyvenv.cfg", os.environ["OTHER"], os.environ["DATA"]
    found = {"read": tries(own), "change": tries(own, "a"), "other": tries(other), "data": tries(data)}
    found["path"] = os.environ["PATH"].startswith(sys.prefix + "/bin:")
    print(json.dumps([found, sys.argv[1:]]), flush=True)
    sys.stdin.read()
"""


@needs_bubblewrap
@pytest.mark.parametrize("tier", [TIER, Tier.KERNEL])
async def test_in_each_tier_it_is_installed_and_started_and_sees_its_own_folder_only(tmp_path, index, tier):
    here = bench(tmp_path / "data", tier, RegistrySettings(pypi=index.as_uri()))
    add_wheel(index, "looks", "1.0", files={"looks.py": LOOKS})
    add_wheel(index, "other", "1.0")
    other = await here.packages.ready(await here.packages.resolved(spec("uvx", "other")))
    (tmp_path / "data/secret").write_text("x")
    env = {"OTHER": f"{other.installed}/pyvenv.cfg", "DATA": str(tmp_path / "data/secret")}
    made = await here.packages.resolved(spec("uvx", "looks", "one", env=env))
    (tmp_path / "homes").mkdir()
    options = options_of(tmp_path / "homes", confiner=here.sandboxes, install=here.packages.ready)
    listener = Listener()
    async with Supervisor(Metrics("test"), options) as supervisor:
        process = await supervisor.spawn(made, lambda gone: None)
        process.attach(listener)
        await listener.line()
        assert process.spec.installed == f"{here.store.root}/{made.package.lock}"
    found, args = json.loads(listener.lines[0])
    assert found == {"read": "done", "change": "refused", "other": "refused", "data": "refused", "path": True}
    assert args == ["one"]


async def test_a_package_that_cannot_be_installed_is_why_no_process_starts(tmp_path, index):
    here = bench(tmp_path / "data", TIER, RegistrySettings(pypi=index.as_uri()))
    package = Package("pypi", "gone", "1.0", "gone", "0" * 64)
    (tmp_path / "homes").mkdir()
    options = options_of(tmp_path / "homes", install=here.packages.ready)
    async with Supervisor(Metrics("test"), options) as supervisor:
        with pytest.raises(BackendExited, match=r"its package gone 1\.0 cannot be installed on this node") as caught:
            await supervisor.spawn(spec("uvx", "gone", package=package), lambda gone: None)
    assert caught.value.started is False


@needs_bubblewrap
async def test_what_is_half_installed_is_never_used_and_is_removed_at_the_next_start(python, index):
    add_wheel(index, "mcp-notes", "1.0")
    made = await python.packages.resolved(spec("uvx", "mcp-notes"))
    store = python.store
    building = store.begin()
    os.close(building.descriptor)  # as of a node that was killed
    other = store.begin()
    assert Store(store.root).clean() == 1
    assert not building.place.exists()
    assert other.place.exists()
    assert store.find("0" * 64) is None
    other.close()
    assert python.installed == [made.package.lock]


@needs_bubblewrap
async def test_what_nobody_needs_is_removed_after_a_while(python, index):
    add_wheel(index, "mcp-notes", "1.0")
    lock = (await python.packages.resolved(spec("uvx", "mcp-notes"))).package.lock
    store, other = python.store, Store(python.store.root)
    assert store.forget_unused([], []) == []  # it is new
    os.utime(store.root / lock, (0, 0))
    assert store.forget_unused([lock], []) == []
    assert store.forget_unused([], [lock]) == []
    assert other.find(lock) is not None
    os.utime(store.root / lock, (0, 0))
    assert store.forget_unused([], []) == []  # another node has it
    other.close()
    assert store.forget_unused([], []) == [lock]
    assert python.installed == []


@pytest.mark.parametrize(("line", "words"), [
    (("uvx", "--from", "mcp-notes", "other"), "has no program `other`; its programs are: `mcp-notes`"),
    (("uvx", "no-such-package"), "has no no-such-package: check how it is spelled"),
    (("uvx", "mcp-notes@7.0"), "has no mcp-notes==7.0: check how it is spelled"),
    (("uvx", "a-library"), "has no program: it is a library"),
    (("uvx", "--python", "3.5", "mcp-notes"), "has no Python 3.5"),
    (("npx", "github:a/b"), "publish it to a registry"),
])  # fmt: skip
@needs_bubblewrap
async def test_what_cannot_be_installed_is_a_clear_error(python, index, line, words):
    add_wheel(index, "mcp-notes", "1.0")
    add_wheel(index, "a-library", "1.0", files={"a_library-1.0.dist-info/entry_points.txt": ""})
    with pytest.raises(InvalidRequest, match=words):
        await python.packages.resolved(spec(*line))


@needs_bubblewrap
@needs_npm
@pytest.mark.parametrize("name", ["no-such-package", "notes@7.0.0"])
async def test_a_package_that_npm_does_not_find_is_to_be_spelled_otherwise(node, npm, name):
    npm.add("notes", "1.0.0")
    with pytest.raises(InvalidRequest, match=f"has no {name}: check how it is spelled"):
        await node.packages.resolved(spec("npx", "-y", name))


@needs_bubblewrap
async def test_a_node_without_npm_says_so(python, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InvalidRequest, match=r"this node has no `npm` on its PATH"):
        await python.packages.resolved(spec("npx", "notes"))


@needs_bubblewrap
async def test_an_update_is_another_lock_beside_the_old_one(python, index):
    add_wheel(index, "mcp-notes", "1.0", requires=("more-notes",))
    add_wheel(index, "more-notes", "1.0")
    made = await python.packages.resolved(spec("uvx", "mcp-notes", "x"))
    assert await python.packages.updated(made, None) == made  # nothing is newer

    add_wheel(index, "more-notes", "1.1")
    other = await python.packages.updated(made, None)
    assert (other.package.version, other.args) == ("1.0", made.args)
    assert other.package.lock != made.package.lock
    add_wheel(index, "mcp-notes", "2.0")
    newer = await python.packages.updated(made, None)
    assert (newer.package.version, newer.args) == ("2.0", made.args)
    assert said(await python.packages.ready(made))[1] != said(await python.packages.ready(newer))[1]
    assert len(python.installed) == 3

    exact = await python.packages.resolved(spec("uvx", "mcp-notes@1.0", "x"))
    assert await python.packages.updated(exact, None) == replace(exact, package=other.package)
    changed = await python.packages.updated(exact, "2.0")
    assert (changed.package.version, changed.args) == ("2.0", ("mcp-notes@2.0", "x"))
    assert (await python.packages.updated(newer, "1.0")).args == newer.args


@needs_bubblewrap
@pytest.mark.parametrize(("version", "words"), [
    ("9.0", "has no mcp-notes==9.0"), ("../x", "is not a version"),
])  # fmt: skip
async def test_an_update_that_cannot_be_installed_leaves_everything_as_it_is(python, index, version, words):
    add_wheel(index, "mcp-notes", "1.0")
    made = await python.packages.resolved(spec("uvx", "mcp-notes"))
    kept, installed = dict(python.locks.kept), python.installed
    with pytest.raises(InvalidRequest, match=words):
        await python.packages.updated(made, version)
    assert (python.locks.kept, python.installed) == (kept, installed)
    with pytest.raises(InvalidRequest, match="names no package"):
        await python.packages.updated(spec("mcp-notes"), None)


@needs_bubblewrap
@needs_npm
async def test_outdated_are_those_with_a_newer_version_and_a_registry_that_is_silent_is_one_line(
    tmp_path, index, npm, monkeypatch
):
    here = bench(tmp_path / "data", TIER, RegistrySettings(npm.url, index.as_uri()))
    for version in ("1.9.0", "1.10.0"):
        npm.add("@acme/notes", version)
    npm.add("quiet", "1.0.0")
    for version in ("1.0", "2.0"):
        add_wheel(index, "mcp-notes", version)

    def backend(name, registry, package, version, *words):
        named = Package(registry, package, version, "x", "0" * 64)
        return BackendSpec("acme", name, words[0], args=words[1:], package=named)

    specs = [
        backend("a", "npm", "@acme/notes", "1.9.0", "npx", "@acme/notes@1.9.0"),
        backend("b", "npm", "@acme/notes", "1.10.0", "npx", "-y", "@acme/notes"),
        backend("c", "pypi", "mcp-notes", "1.0", "uvx", "mcp-notes==1.0"),
        backend("d", "npm", "quiet", "1.0.0", "npx", "quiet"),
        spec("cat"),
    ]
    found = await here.packages.outdated(specs)
    assert [(each.backend, each.newest) for each in found] == [("a", "1.10.0"), ("c", "2.0")]
    assert npm.asked.count("/@acme/notes") == 1

    del npm.documents["quiet"]
    gone = {each.backend: each for each in await here.packages.outdated(specs)}
    assert (sorted(gone), gone["a"].newest, gone["d"].newest) == (["a", "c", "d"], "1.10.0", None)
    assert "`npm view --json` failed" in str(gone["d"].problem)
    npm.silent.add("quiet")
    monkeypatch.setattr(module, "ASK_S", 3.0)
    (late,) = await here.packages.outdated(specs[3:4])
    assert "has not ended after 3 s" in str(late.problem)
    monkeypatch.setattr(module, "ASK_S", 60.0)
    monkeypatch.setattr(module, "ASK_ALL_S", 0.5)
    (rushed,) = await here.packages.outdated(specs[3:4])
    assert "nobody knows after 0.5 s" in str(rushed.problem)
    assert here.installed == []


@needs_bubblewrap
async def test_what_takes_long_for_one_tenant_holds_up_no_other(python, index, monkeypatch):
    add_wheel(index, "mcp-notes", "1.0")
    works, stuck = python.packages._workshop.run, list[str]()

    async def run(each):
        wanted = (each.folder / "wanted.txt").read_text()
        if wanted.startswith("slow"):
            stuck.append(wanted)
            await anyio.sleep_forever()
        return await works(each)

    monkeypatch.setattr(python.packages._workshop, "run", run)
    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(python.packages.resolved, spec("uvx", f"slow{number}"))
        while len(stuck) < module.OF_ONE_TENANT:
            await anyio.sleep(0.01)
        made = await python.packages.resolved(replace(spec("uvx", "mcp-notes"), tenant="zenith"))
        assert (made.package.version, len(stuck)) == ("1.0", module.OF_ONE_TENANT)
        tasks.cancel_scope.cancel()
    assert python.packages._places_of == {}
