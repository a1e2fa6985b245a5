"""In every tier a probe is kept from what the tier promises, and the report says what it could do, as root and as an
ordinary user. Without a sandbox it can do everything: no attempt fails for another reason."""

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.jail.sandbox.tiers import PORTS_ONLY, WEAKER
from tests.redis_servers import RedisServer

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = Path(__file__).with_name("probe_all.py")
IS_ROOT = os.geteuid() == 0
USER = 60001
WITHIN_S = 240
GUARANTEES = ("files", "network", "memory", "pids", "processes")

# What the spawner does for every process.
ALWAYS_DENIED = {
    "run programs with more rights", "use descriptors of the gateway", "read variables of the gateway",
    "leave a daemon behind",
}  # fmt: skip
# Some machines have it switched off, or no network.
OF_SOME_MACHINES = {
    "use the kernel's keys", "make an io_uring", "handle page faults", "make a namespace", "mount",
    "connect to cloud metadata", "send a datagram to cloud metadata", "trace another process of its tenant",
    "trace the gateway",
}  # fmt: skip
OF_ROOT = {
    "become another user", "read a file that only another user may", "read the passwords", "change the passwords",
    "change a setting of the kernel", "create a file of the system", "mount",
}  # fmt: skip
# Without namespaces.
WEAKER_ATTEMPTS = {
    "change mode and times of a file of others", "read the arguments of the gateway",
    "read the arguments of another process of its tenant", "write past the limit to files in home",
}  # fmt: skip
# Without Landlock and seccomp, whoever the gateway runs as.
ONLY_LIMITED = WEAKER_ATTEMPTS | {
    "read a file of others", "read another tenant's home", "read the home of another process", "read the database",
    "change a file of others", "change the database", "create a file in another tenant's home",
    "create a file in the home of another process", "connect to another backend", "connect to another backend by name",
    "connect to Redis", "connect to the gateway", "connect to a socket of others",
    "connect to an abstract socket of others", "send a datagram to a port of others",
    "read the environment of another process of its tenant", "signal another process of its tenant",
    "signal the gateway", "read the limits of another process of its tenant",
    "write past the limit to files in shared memory", "reach the files of another process of its tenant through /proc",
}  # fmt: skip


class Found:
    """What the probes said."""

    def __init__(self, document: dict, *, is_root: bool) -> None:
        self.tiers = {int(tier): networks for tier, networks in document["tiers"].items()}
        self.without, self.limits, self.is_root = document["without"], document["limits"], is_root

    def tier(self, tier: int, network: str) -> dict:
        if tier not in self.tiers:
            pytest.skip(f"tier {tier}: {self.without[str(tier)]}")
        return self.tiers[tier][network]

    def done(self, tier: int, network: str) -> set[str]:
        """The names of what succeeded, but for limits that this machine does not enforce."""
        lacking = {name for name, why in self.limits.items() if why is not None}
        attempts = self.tier(tier, network)["attempts"]
        return {name for name, guarantee, was_denied, _ in attempts if not was_denied and guarantee not in lacking}


@pytest.fixture(scope="module")
def readable() -> Iterator[Path]:
    """The program, where every user can read it."""
    directory = Path(tempfile.mkdtemp(prefix="trunkline-test-"))
    shutil.copytree(ROOT / "app", directory / "app", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROGRAM, directory)
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield directory
    shutil.rmtree(directory)


def interpreter(uid: int, environment: dict[str, str]) -> str | None:
    """A Python that this user may run, with our libraries."""
    for each in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if (
            os.path.exists(each)
            and _run(uid, environment, each, "-c", "import app.jail.sandbox.probes.probing").returncode == 0
        ):
            return each
    return None


def _run(uid: int, environment: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    other = None if uid == os.geteuid() else uid
    try:
        return subprocess.run(
            argv, env=environment, cwd="/", capture_output=True, text=True, timeout=WITHIN_S, check=False,
            user=other, group=other, extra_groups=None if other is None else [],
        )  # fmt: skip
    except PermissionError as error:
        return subprocess.CompletedProcess(argv, 126, "", str(error))


@pytest.fixture(scope="module", params=["root", "user"])
def found(request: pytest.FixtureRequest, readable: Path) -> Found:
    if request.param == "root" and not IS_ROOT:
        pytest.skip("needs root")
    uid = USER if IS_ROOT and request.param == "user" else os.geteuid()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(readable),
        "PYTHONPATH": f"{readable}:{sysconfig.get_path('purelib')}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    python = interpreter(uid, environment)
    if python is None:
        pytest.skip("no Python that another user may execute: those below /root are for root")
    database = readable / f"{request.param}.db"
    database.write_text("rows")
    os.chown(database, uid, uid)
    with RedisServer() as redis, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        targets = {
            "files": {"the database": str(database), "the passwords": "/etc/shadow"},
            "addresses": {"Redis": ("127.0.0.1", redis.port), "the gateway": ("127.0.0.1", port)},
        }
        done = _run(uid, environment, python, str(readable / PROGRAM.name), json.dumps(targets))
    assert done.returncode == 0, done.stderr
    return Found(json.loads(done.stdout), is_root=uid == 0)


NETWORKS = ("none", "web", "host")


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("tier", [3, 2])
def test_with_namespaces_nothing_succeeds(found: Found, tier: int, network: str) -> None:
    report = found.tier(tier, network)
    assert (report["error"], found.done(tier, network), report["holds_all"]) == (None, set(), True)
    assert report["weaker"] == []
    asked = {name for name, *_ in report["attempts"] if name.endswith("through the proxy")}
    if network == "web":
        assert {
            "connect to this machine by name through the proxy", "connect to the gateway through the proxy",
            "connect to cloud metadata through the proxy", "connect to Redis through the proxy",
            "connect to cloud metadata in IPv6 through the proxy",
        } <= asked  # fmt: skip
    else:
        assert not asked


@pytest.mark.parametrize("network", NETWORKS)
def test_with_landlock_and_seccomp_only_what_is_named_succeeds(found: Found, network: str) -> None:
    report = found.tier(1, network)
    assert report["error"] is None
    open_to_all = {"send a datagram to a port of others"} if network == "web" else set()
    done = found.done(1, network)
    if network == "web":
        done -= {"connect to cloud metadata", "send a datagram to cloud metadata"}  # if there is a network
    assert done == WEAKER_ATTEMPTS | open_to_all
    assert report["holds_all"]
    assert report["weaker"] == [*WEAKER.values(), *([PORTS_ONLY["web"]] if network == "web" else [])]


@pytest.mark.parametrize("network", ["none", "web"])
def test_the_base_holds_rights_and_limits_and_nothing_else(found: Found, network: str) -> None:
    report = found.tier(0, network)
    assert (report["error"], report["holds_all"]) == (None, True)
    done = found.done(0, network)
    assert not [each for each in report["attempts"] if each[0] in ONLY_LIMITED - done]
    guarantees = {guarantee for name, guarantee, *_ in report["attempts"] if name in done}
    assert guarantees == {"files", "network", "processes", *WEAKER}


def test_without_a_sandbox_everything_is_done(found: Found) -> None:
    report = found.tier(-1, "none")
    denied = {name for name, _, was_denied, _ in report["attempts"] if was_denied}
    assert denied - OF_SOME_MACHINES - (set() if found.is_root else OF_ROOT) == ALWAYS_DENIED
    assert report["enforced"] == []
    assert set(report["missing"]) == set(GUARANTEES)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("tier", [3, 2, 1, 0])
def test_a_guarantee_is_reported_if_and_only_if_every_attempt_was_denied(found: Found, tier: int, network: str) -> None:
    report = found.tier(tier, network)
    assert report["tier"] == tier
    for guarantee in GUARANTEES:
        outcomes = [was_denied for _, kind, was_denied, _ in report["attempts"] if kind == guarantee]
        held = bool(outcomes) and all(outcomes)
        if guarantee == "network" and network == "host":
            held = False  # where everything may be reached, nothing is held, whatever was denied
        if tier == 0 and guarantee not in ("memory", "pids"):
            assert not held
        assert (guarantee in report["enforced"]) == held, (guarantee, report["missing"].get(guarantee))
        assert (guarantee in report["missing"]) == (not held)


@pytest.mark.parametrize("guarantee", ["memory", "pids"])
def test_a_limit_holds_where_the_machine_has_control_groups(found: Found, guarantee: str) -> None:
    for networks in (found.tiers[tier] for tier in found.tiers if tier >= 0):
        for report in networks.values():
            held = all(was_denied for _, kind, was_denied, _ in report["attempts"] if kind == guarantee)
            assert held == (found.limits[guarantee] is None)
