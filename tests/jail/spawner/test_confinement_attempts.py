"""What each restriction forbids, tried inside a real child of a real spawner, and that it works without it."""

import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.jail.spawner import landlock
from app.jail.spawner.client import SpawnerClient
from app.jail.spawner.wire import Confinement
from tests.jail.spawner.conftest import spawn

ROOT = Path(__file__).resolve().parents[3]
ATTEMPTS = Path(__file__).with_name("attempts.py")
USER, ANOTHER = 60001, 60009
IS_ROOT = os.geteuid() == 0
IS_X86 = os.uname().machine == "x86_64"
# What a program needs; of /etc not everything, which holds secrets that root may read without any capability.
SYSTEM = ["/usr", "/bin", "/lib", "/lib64", "/proc", "/dev", "/etc/ld.so.cache", "/etc/passwd", sys.base_prefix]

pytestmark = pytest.mark.skipif(landlock.abi() < landlock.SCOPES_ABI, reason="needs Landlock of ABI 6")

AS_USER = """
import os, sys
sys.path.insert(0, {root!r})
from app.jail.spawner._server import serve

os.setgroups([])
os.setresgid({uid}, {uid}, {uid})
os.setresuid({uid}, {uid}, {uid})
serve(int(sys.argv[1]))
"""


@dataclass(frozen=True)
class Restriction:
    """One alone, and the attempts that it must deny. Some attempts need root: without it they never succeed."""

    confinement: Confinement
    attempts: tuple[str, ...]
    of_root: tuple[str, ...] = ()
    # Those that some machines have switched off or do not have.
    of_some_machines: tuple[str, ...] = ()


def restrictions(own: Path) -> Mapping[str, Restriction]:
    files = Confinement(landlock={"read": SYSTEM, "write": [str(own), "/dev/null", "/dev/pts", "/dev/ptmx"]})
    return {
        "files": Restriction(
            files,
            (
                "read_file", "list_home", "write_file", "append_to_file", "truncate_file", "link_file", "execute_file",
            ),
        ),
        "connect": Restriction({"landlock": {"connect": [9]}}, ("tcp",)),
        "bind": Restriction({"landlock": {"bind": []}}, ("tcp_listen",)),
        "scoped": Restriction(
            {"landlock": {"scoped": True}, "capabilities": []},
            ("abstract", "kill_outside", "kill_sibling", "kill_by_pidfd"),
        ),
        "a domain of its own": Restriction(
            {"landlock": {"connect": []}, "capabilities": []},
            (
                "outside_environ", "sibling_environ", "sibling_memory", "sibling_descriptors", "sibling_root",
                "sibling_trace",
            ),
        ),
        "base": Restriction(
            {"seccomp": ["base"]},
            (
                "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "socket_diagnosis",
                "file_handle", "personality",
            ),
            of_root=(
                "mount", "mount_new", "mount_tree", "change_root", "enter_namespace", "packet", "bpf", "host_name",
                "set_clock", "quota", "kernel_log",
            ),
            of_some_machines=(
                "namespace", "namespace_by_clone", "namespace_by_clone3", "keyctl", "add_key", "io_uring", "perf_event",
                "userfaultfd", "fanotify", "secret_memory", "multipath_tcp", "vsock", "crypto_socket", "smc",
                *(("local_descriptor_table", "other_architecture") if IS_X86 else ()), "terminal_input",
            ),
        ),
        "no_unix_sockets": Restriction(
            {"seccomp": ["no_unix_sockets"]}, ("unix", "unix_datagram_pair", "unix_raw_pair", "abstract")
        ),
        "no_internet": Restriction(
            {"seccomp": ["no_internet"]}, ("tcp", "udp", "tcp_listen"), of_some_machines=("tcp6", "multipath_tcp")
        ),
        "no_shared_ipc": Restriction({"seccomp": ["no_shared_ipc"]}, ("shared_memory", "message_queue")),
        "own_process_only": Restriction(
            {"seccomp": ["own_process_only"]},
            (
                "limits_of_outside", "priority_of_outside", "priority_of_group", "processors_of_outside",
                "scheduler_of_outside", "io_priority_of_outside",
            ),
        ),
        "capabilities": Restriction(
            {"capabilities": []}, (), of_root=("become_another", "read_anothers_file", "give_away", "mount", "packet")
        ),
        "limits": Restriction({"limits": {"NOFILE": 100, "FSIZE": 1 << 20}}, ("open_many", "large_file")),
    }  # fmt: skip


NAMES = tuple(restrictions(Path()))


def together(parts: Mapping[str, Restriction]) -> Confinement:
    """Every restriction at once."""
    whole = Confinement(landlock={}, seccomp=[], capabilities=[])
    for part in parts.values():
        whole["landlock"].update(part.confinement.get("landlock", {}))
        whole["seccomp"] += part.confinement.get("seccomp", [])
        whole["limits"] = {**whole.get("limits", {}), **part.confinement.get("limits", {})}
    return whole


class Stage:
    """A spawner, and what its children may try to reach."""

    def __init__(self, client: SpawnerClient, python: str, directory: Path, targets: Mapping[str, object]) -> None:
        self._client, self._python, self._directory, self._targets = client, python, directory, targets
        self.restrictions = restrictions(directory)

    async def tries(self, confinement: Confinement, *attempts: str) -> dict[str, dict[str, str]]:
        """What came of each."""
        script = str(self._directory / ATTEMPTS.name)
        argv = [self._python, "-I", "-S", script, json.dumps(self._targets), *attempts]
        child = await spawn(self._client, *argv, cwd=str(self._directory), confinement=confinement)
        text = b""
        while part := await child.read_line():
            text += part
        end = await child.end()
        child.close()
        found = {each["attempt"]: each for each in map(json.loads, text.splitlines())}
        assert (end.reason, end.number, list(found)) == ("exited", 0, list(attempts))
        return found


def may_execute(uid: int, path: str) -> bool:
    """By trying it as that user."""
    child = os.fork()
    if child == 0:
        try:
            if IS_ROOT:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            os.execv(path, [path, "-I", "-S", "-c", ""])
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def listening(stack: ExitStack, kind: socket.SocketKind, path: str) -> None:
    server = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
    server.bind(path)
    if kind is socket.SOCK_STREAM:
        server.listen()


def furnish(stack: ExitStack, base: Path, uid: int) -> dict[str, object]:
    """Files and sockets that this user could use, but for the sandbox; one file is another user's."""
    name = f"trunkline-test-{os.getpid()}"
    own, home = base / "own", base / "home"
    own.mkdir()
    home.mkdir()
    shutil.copy(ATTEMPTS, own)
    shutil.copy("/bin/true", home / "program")
    (home / "secret").write_text("hidden")
    (own / "anothers").write_text("hidden")
    (own / "anothers").chmod(0o600)
    listening(stack, socket.SOCK_STREAM, str(home / "unix"))
    listening(stack, socket.SOCK_DGRAM, str(home / "datagram"))
    listening(stack, socket.SOCK_STREAM, "\0" + name)
    tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    if IS_ROOT:
        for path in (base, *base.rglob("*")):
            os.chown(path, uid, uid)
        os.chown(own / "anothers", ANOTHER, ANOTHER)
    return {
        "secret": str(home / "secret"), "directory": str(home), "program": str(home / "program"),
        "own": str(own / "large"), "anothers": str(own / "anothers"), "uid": ANOTHER, "abstract": name,
        "tcp": tcp.getsockname()[1], "unix": str(home / "unix"), "datagram": str(home / "datagram"),
    }  # fmt: skip


@pytest.fixture(params=["root", "user"])
async def stage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    if request.param == "root" and not IS_ROOT:
        pytest.skip("needs root")
    uid = USER if IS_ROOT and request.param == "user" else os.geteuid()
    candidates = [os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"]
    python = next((each for each in candidates if may_execute(uid, each)), None)
    if python is None:
        pytest.skip("no Python that another user may execute: those below /root are for root")
    with ExitStack() as stack:
        base = Path(os.path.realpath(stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-test-"))))
        targets = furnish(stack, base, uid)
        if uid != os.geteuid():
            main = base / "main.py"
            main.write_text(AS_USER.format(root=str(ROOT), uid=uid))
            monkeypatch.setattr("app.jail.spawner.client._MAIN", main)
        client = SpawnerClient()
        await client.start()
        outside = await spawn(client, "cat")
        sibling = await spawn(client, "cat", confinement={"landlock": {"scoped": True}})
        targets |= {"outside": outside.spawned.pid, "sibling": sibling.spawned.pid}
        yield Stage(client, python, base / "own", targets)
        outside.close()
        sibling.close()
        await client.aclose()


@pytest.mark.parametrize("name", NAMES)
async def test_a_restriction_denies_by_itself_what_succeeds_without_it(
    stage: Stage, name: str, request: pytest.FixtureRequest
) -> None:
    restriction = stage.restrictions[name]
    attempts = [*restriction.attempts, *restriction.of_some_machines]
    if request.node.callspec.params["stage"] == "root":
        attempts += restriction.of_root
    if not attempts:
        pytest.skip("an ordinary user has nothing of this to lose")
    free = await stage.tries({}, *attempts)
    confined = await stage.tries(restriction.confinement, *attempts)
    failed = {each: found["detail"] for each, found in free.items() if found["outcome"] != "done"}
    assert {each for each in failed if each not in restriction.of_some_machines} == set(), failed
    assert len(failed) < len(attempts)
    assert {each: found["detail"] for each, found in confined.items() if found["outcome"] != "denied"} == {}


async def test_all_restrictions_together_deny_everything_and_leave_a_program_running(stage: Stage) -> None:
    parts = stage.restrictions.values()
    attempts = {each for part in parts for each in (*part.attempts, *part.of_some_machines)}
    if IS_ROOT:  # for either user: without root there are no files of others to try
        attempts |= {each for part in parts for each in part.of_root}
    found = await stage.tries(together(stage.restrictions), *sorted(attempts), "execute_from_memory")
    assert found.pop("execute_from_memory")["outcome"] == "done"
    assert {each: one["detail"] for each, one in found.items() if one["outcome"] != "denied"} == {}
    # C libraries must believe that the kernel does not have it: then they use clone().
    assert found["namespace_by_clone3"]["detail"] == "ENOSYS"
