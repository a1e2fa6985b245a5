"""What the spawner is told, and what a process that is started so finds."""

import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.domain import BackendSpec, Network, ProcessLimits
from app.jail.egress.egress import Egress, EgressOptions
from app.jail.egress.refusals import Refused
from app.jail.sandbox._bubblewrap import Bubblewrap
from app.jail.sandbox.cgroup_roots import CgroupRoots
from app.jail.sandbox.composer import Composer, Place
from app.jail.sandbox.machine import Machine, examine
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.tiers import Profile, Tier
from app.jail.spawner.client import Command, SpawnerClient
from app.telemetry.metrics import Metrics
from tests.jail.sandbox.inside import IS_ROOT, NOBODYS_UID, SYSTEM_PYTHON, needs_bubblewrap, open_directory
from tests.jail.spawner.conftest import spawn

HOME_OF_ONE = "/tmp/home"


@pytest.fixture
async def client() -> AsyncIterator[SpawnerClient]:
    client = SpawnerClient()
    await client.start()
    yield client
    await client.aclose()


@pytest.fixture(params=[Tier.ASSISTED, Tier.NAMESPACES])
def tier(request: pytest.FixtureRequest) -> Tier:
    if request.param is Tier.ASSISTED and not IS_ROOT:
        pytest.skip("needs root")
    found: Tier = request.param
    return found


async def printed(client: SpawnerClient, tier: Tier, code: str, env: dict[str, str]) -> tuple[Any, list[str]]:
    """What this Python code prints as JSON, in its sandbox, and the command line of its start."""
    machine: Machine = examine(CgroupRoots(), lambda name: NOBODYS_UID)
    spec = BackendSpec("acme", "echo", SYSTEM_PYTHON, ("-I", "-S", "-c", code), env=env)
    async with Egress(Metrics("test"), EgressOptions()) as egress:
        composer = Composer(machine, NeedsFinder([]), egress)
        confined = await composer.compose(spec, Place("/nowhere", "/nowhere"), Profile(tier, "none"))
        command = confined.command
        child = await spawn(client, *command.argv, env=command.env, confinement=command.confinement)
        said = await child.read_line()
        await child.end()
        child.close()
        confined.close()
    return json.loads(said), list(command.argv)


@needs_bubblewrap
async def test_variables_of_the_loader_are_for_the_program_only(client, tier):
    value = "a 'quoted' \n$(touch /tmp/x) \u00e9"
    code = (
        "import json, os; names = ('LD_LIBRARY_PATH', 'LD_AUDIT', 'SECRET');"
        "print(json.dumps([*map(os.environ.get, names), sorted(map(int, os.listdir('/proc/self/fd')))[:-1]]))"
    )
    with open_directory() as broken:
        for name in ("libcap.so.2", "libcap-ng.so.0", "libselinux.so.1"):  # of bubblewrap and of setpriv
            (broken / name).write_text("no library")
        env = {"LD_LIBRARY_PATH": str(broken), "LD_AUDIT": value, "SECRET": "hunter2"}
        found, argv = await printed(client, tier, code, env)
    assert found == [str(broken), value, "hunter2", [0, 1, 2]]
    assert not [word for word in argv if str(broken) in word or "hunter2" in word]


@needs_bubblewrap
async def test_a_process_has_a_name_and_a_home_where_the_system_is_asked(client, tier):
    code = (
        "import getpass, grp, json, os, pwd; own = pwd.getpwuid(os.getuid());"
        "print(json.dumps([getpass.getuser(), own.pw_dir, os.path.expanduser('~'), grp.getgrgid(os.getgid()).gr_name,"
        " sorted(each.pw_name for each in pwd.getpwall())]))"
    )
    found, _ = await printed(client, tier, code, {})
    name = "backend" if tier is Tier.ASSISTED or not IS_ROOT else "root"
    assert found == [name, HOME_OF_ONE, HOME_OF_ONE, name, sorted({"root", "nobody", name})]


@needs_bubblewrap
async def test_node_knows_its_user(client, tier):
    node = shutil.which("node")
    if node is None or (not IS_ROOT and os.path.realpath(node).startswith("/root/")):
        pytest.skip("there is no node")
    code = f"import subprocess;subprocess.run([{node!r}, '-p', 'JSON.stringify(os.userInfo().homedir)'], check=True)"
    assert (await printed(client, tier, code, {}))[0] == HOME_OF_ONE


OF_ROOT = Machine(True, 7, Bubblewrap("/usr/bin/bwrap", (0, 8)), CgroupRoots({}, {}), lambda name: 61234)


async def test_the_proxy_of_a_check_without_a_network_refuses_everything(tmp_path):
    spec, place = BackendSpec("acme", "echo", "true"), Place(str(tmp_path), str(tmp_path))
    async with Egress(Metrics("test")) as egress:
        composer = Composer(OF_ROOT, NeedsFinder([]), egress)
        confined = await composer.compose(spec, place, Profile(Tier.NAMESPACES, "none"), with_deaf_proxy=True)
        assert confined.command.env["https_proxy"]
        assert confined.command.confinement["own_network"]
        assert confined.line is not None
        with pytest.raises(Refused, match="no network"):
            await confined.line.rule.permit(confined.line.asks("example.com", 443))
        confined.close()


async def composed(directory: Path, tier: Tier, network: Network = "none", **fields: Any) -> Command:
    composer = Composer(OF_ROOT, NeedsFinder([]), Egress(Metrics("test")))
    spec = BackendSpec("acme", "echo", "true", **fields)
    return (await composer.compose(spec, Place(str(directory), str(directory)), Profile(tier, network))).command


@pytest.mark.parametrize(("network", "more"), [("none", ["no_internet"]), ("host", [])])
async def test_without_namespaces_every_filter_counts(tmp_path, network, more):
    confinement = (await composed(tmp_path, Tier.KERNEL, network)).confinement
    assert confinement["seccomp"] == ["base", "no_unix_sockets", "no_shared_ipc", "own_process_only", *more]
    assert confinement["capabilities"] == []


@pytest.mark.parametrize("tier", [Tier.NAMESPACES, Tier.ASSISTED])
async def test_with_namespaces_signals_and_abstract_sockets_are_also_kept_by_landlock(tmp_path, tier):
    command = await composed(tmp_path, tier)
    assert command.confinement["landlock"] == {"scoped": True}
    kinds = {"--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"}
    assert kinds <= set(command.argv)


@pytest.mark.parametrize("tier", [Tier.BASE, Tier.KERNEL, Tier.NAMESPACES])
async def test_java_is_told_the_memory_that_it_may_use(tmp_path, tier):
    limited, unlimited = ProcessLimits(memory_mb=300), ProcessLimits(memory_mb=None)
    assert (await composed(tmp_path, tier, limits=limited)).env["JAVA_TOOL_OPTIONS"] == "-XX:MaxRAM=300m"
    assert "JAVA_TOOL_OPTIONS" not in (await composed(tmp_path, tier, limits=unlimited)).env
    declared = {"JAVA_TOOL_OPTIONS": "-Xmx100m"}
    assert (await composed(tmp_path, tier, env=declared)).env["JAVA_TOOL_OPTIONS"] == "-Xmx100m"


async def test_each_tenant_has_a_user(tmp_path):
    argv = (await composed(tmp_path, Tier.ASSISTED)).argv
    assert argv[argv.index("--reuid") + 1] == "61234"
    assert "--reuid" not in (await composed(tmp_path, Tier.NAMESPACES)).argv
