"""What a watched process asks for in vain is written down; what it may do, and how it ends, stay the same."""

import errno
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from app.jail.sandbox._bubblewrap import CAPABILITIES
from app.jail.spawner import _seccomp as seccomp
from app.jail.spawner import _watcher as watcher
from app.jail.spawner import landlock
from app.jail.spawner._system_call_numbers import NUMBERS
from app.jail.spawner.client import MISSED_BYTES, Command, End, SpawnerClient
from app.jail.spawner.wire import INNER_STATUS_FD, SHELL, TAKES_PIPES, Confinement
from tests.jail.sandbox.inside import IS_ROOT, NOBODYS_UID, SYSTEM_PYTHON, Inside, needs_bubblewrap, open_directory

OWN = [sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache"]


@dataclass
class Watched:
    """How a watched process ended, what it printed, and what it missed, each with its count."""

    end: End
    output: str
    missed: list[tuple[dict[str, Any], int]]

    def of(self, kind: str) -> dict[str, str]:
        """What of this kind was missed, with the access."""
        return {each["what"]: each.get("access", "") for each, _ in self.missed if each["kind"] == kind}


def read(log: int) -> list[tuple[dict[str, Any], int]]:
    lines = [json.loads(line) for line in os.pread(log, MISSED_BYTES, 0).splitlines()]
    objects = [line for line in lines if isinstance(line, dict)]
    return [(each, 1 + lines.count(index)) for index, each in enumerate(objects)]


class Starter:
    """Starts watched processes; `output` is what they print to stdout and stderr."""

    def __init__(self, client: SpawnerClient, home: Path) -> None:
        self.client, self.home = client, home

    async def start(self, *argv: str, confinement: Confinement | None = None, stop: int | None = None) -> Watched:
        """`stop`: a signal to send once it has printed something."""
        log = os.memfd_create("missed")
        output, theirs = os.pipe2(os.O_CLOEXEC)
        ended = anyio.Event()
        ends: list[End] = []

        def on_end(end: End) -> None:
            ends.append(end)
            ended.set()

        env = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
        command = Command(argv, env, "/", confinement=confinement or {}, missed=log)
        stdio = (os.open(os.devnull, os.O_RDONLY), theirs, os.dup(theirs))
        try:
            spawned = await self.client.spawn(command, stdio, on_end)
            with anyio.fail_after(60):  # one asks three thousand times
                if stop is not None:
                    await anyio.wait_readable(output)
                    self.client.signal(spawned.id, stop)
                await ended.wait()
            with open(output, closefd=False) as file:
                return Watched(ends[0], file.read(), read(log))
        finally:
            os.close(log)
            os.close(output)

    async def python(self, code: str, **options: Any) -> Watched:
        return await self.start(sys.executable, "-I", "-S", "-c", code, **options)


@pytest.fixture
def starter(client, tmp_path) -> Starter:
    home = tmp_path / "home"
    home.mkdir()
    return Starter(client, home)


async def test_a_process_without_a_sandbox_misses_nothing_and_ends_as_it_would(starter):
    watched = await starter.python("import os; print(len(os.listdir('/etc')) > 1); raise SystemExit(3)")
    assert (watched.end, watched.output, watched.missed) == (End("exited", 3), "True\n", [])


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
async def test_a_watched_process_gets_the_signals_of_its_group_and_ends_by_them(starter, signum):
    watched = await starter.python("import time; print('up', flush=True); time.sleep(60)", stop=signum)
    assert watched.end == End("signaled", signum)


async def test_a_watched_process_that_cleans_up_after_sigterm_may_do_so(starter):
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
print("up", flush=True)
time.sleep(60)
"""
    assert (await starter.python(code, stop=signal.SIGTERM)).end == End("exited", 4)


async def test_a_command_that_does_not_exist_fails_as_without_a_watcher(starter):
    with pytest.raises(Exception, match="No such file or directory"):
        await starter.start("/no/such/command")


# --- a user of its own


def grant(path: Path, uid: int) -> None:
    """An access control list by which this user may read and write the file, as `setfacl` makes it."""
    nobody = 0xFFFFFFFF
    entries = [(0x01, 6, nobody), (0x02, 6, uid), (0x04, 0, nobody), (0x10, 6, nobody), (0x20, 0, nobody)]
    content = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(path, "system.posix_acl_access", content)


@needs_bubblewrap
@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
async def test_what_modes_keep_from_the_user_of_a_tenant_is_named_with_that_user(starter):
    as_tenant = Inside("as the user of the tenant", 0, NOBODYS_UID)
    with open_directory() as shown, open_directory() as written:
        for name in ("open", "secret"):
            (shown / name).write_text("x")
        (shown / "secret").chmod(0o640)
        (shown / "closed").mkdir(mode=0o700)
        (shown / "closed" / "file").touch()
        (written / "old").touch(0o644)
        (written / "granted").touch(0o600)
        grant(written / "granted", NOBODYS_UID)
        (written / "own").mkdir()
        os.chown(written / "own", NOBODYS_UID, NOBODYS_UID)
        code = f"""{TRY}
attempt(open, "{shown}/open")
attempt(open, "{shown}/secret")
attempt(os.stat, "{shown}/closed/file")
attempt(open, "{written}/old")
attempt(open, "{written}/old", "a")
attempt(open, "{written}/new", "w")
attempt(open, "{written}/granted", "a")
attempt(os.makedirs, "{written}/own", 0o777, True)
attempt(open, "{written}/own/new", "w")
attempt(open, "/tmp/home/new", "w")
"""
        argv = as_tenant.command(SYSTEM_PYTHON, "-c", code, read=[str(shown)], write=[str(written)])
        confinement: Confinement = {"is_wrapped": True, "capabilities": list(CAPABILITIES)}
        watched = await starter.start(*argv, confinement=confinement)
    denied = "PermissionError"
    assert watched.output.split() == ["ok", denied, denied, "ok", denied, denied, "ok", "ok", "ok", "ok"]
    assert [(each["what"], each["access"], each["uid"]) for each, _ in watched.missed if "uid" in each] == [
        (f"{shown}/secret", "read", NOBODYS_UID),
        (f"{shown}/closed", "read", NOBODYS_UID),
        (f"{written}/old", "write", NOBODYS_UID),
        (str(written), "write", NOBODYS_UID),
    ]


# --- a mount and a network namespace of its own

ONLY_INSIDE = "/only-inside"


def wrapped(private: Path, *argv: str, read: Sequence[Path] = (), own_network: bool = True) -> list[str]:
    """The command inside bubblewrap, which shows it its interpreter, these directories and a writable `private`."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        pytest.skip("bwrap is not on PATH")
    command = [
        bwrap,
        "--unshare-user",
        "--unshare-pid",
        *(["--unshare-net"] if own_network else []),
        "--die-with-parent",
    ]
    for path in [*OWN, *map(str, read)]:
        command += ["--ro-bind-try", path, path]
    command += ["--bind", str(private), str(private), "--proc", "/proc", "--dev", "/dev"]
    command += ["--tmpfs", ONLY_INSIDE, "--remount-ro", "/"]
    if subprocess.run([*command, "--", "/bin/true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("bwrap cannot make a sandbox here")
    program = [SHELL, "-c", f'{TAKES_PIPES}; exec "$@"', "sh", *argv]
    return [*command, "--json-status-fd", str(INNER_STATUS_FD), "--", *program]


async def in_namespace(starter: Starter, code: str, **options: Any) -> Watched:
    command = wrapped(starter.home, sys.executable, "-I", "-S", "-c", code, **options)
    return await starter.start(*command, confinement={"is_wrapped": True})


TRY = """
import os, sys
def attempt(do, *arguments):
    try:
        do(*arguments)
        print("ok")
    except OSError as error:
        print(type(error).__name__)
"""


async def test_a_file_that_the_namespace_lacks_is_named_however_it_is_asked_for(starter, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for name in ("opened", "looked", "program", "relative"):
        (data / name).write_text("#!/bin/sh\n")
        (data / name).chmod(0o755)
    code = f"""{TRY}
attempt(open, "{data}/opened")
attempt(os.stat, "{data}/looked")
attempt(os.execv, "{data}/program", ["program"])
attempt(open, "{data}/never there")
os.chdir("/usr")
attempt(open, "..{data}/relative")
"""
    watched = await in_namespace(starter, code)
    assert watched.output.split() == ["FileNotFoundError"] * 5
    assert watched.of("file") == {f"{data}/{name}": "read" for name in ("opened", "looked", "program", "relative")}
    assert watched.end == End("exited", 0)


async def test_what_a_process_has_to_itself_is_not_missed(starter):
    (starter.home / "own").write_text("x")
    code = f"""{TRY}
attempt(open, "{starter.home}/own")
attempt(open, "{starter.home}/new", "w")
attempt(open, "/proc/self/none")
attempt(open, "/dev/sda")
attempt(open, "/usr/bin/env")
"""
    watched = await in_namespace(starter, code)
    assert watched.output.split() == ["ok", "ok", "FileNotFoundError", "FileNotFoundError", "ok"]
    assert watched.missed == []


async def test_what_every_start_of_an_interpreter_asks_for_is_not_missed(starter, tmp_path):
    names = [tmp_path / name for name in ("sitecustomize.py", "usercustomize.py", "site.py")]
    for each in names:
        each.touch()
    watched = await in_namespace(starter, TRY + "".join(f'\nattempt(open, "{each}")' for each in names))
    assert watched.of("file") == {str(names[-1]): "read"}


async def test_a_file_that_a_directory_of_its_own_hides_is_said_to_be_hidden(starter, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "file").write_text("x")
    code = f'{TRY}\nattempt(open, "{shared}/file")\nattempt(open, "{shared}/new", "w")'
    command = wrapped(starter.home, sys.executable, "-I", "-S", "-c", code)
    at = command.index("--remount-ro")
    command[at:at] = ["--tmpfs", str(shared)]
    watched = await starter.start(*command, confinement={"is_wrapped": True})
    assert watched.output.split() == ["FileNotFoundError", "ok"]
    assert [each["is_hidden"] for each, _ in watched.missed] == [True]


async def test_writing_where_only_reading_is_allowed_is_a_missed_write(starter, tmp_path):
    shown, hidden = tmp_path / "shown", tmp_path / "hidden"
    shown.mkdir()
    hidden.mkdir()
    (shown / "old").write_text("x")
    code = f"""{TRY}
attempt(open, "{shown}/old")
attempt(open, "{shown}/old", "a")
attempt(open, "{shown}/new", "w")
attempt(os.mkdir, "{shown}/directory")
attempt(os.rename, "{shown}/old", "{shown}/renamed")
attempt(open, "{hidden}/data.db", "w")
"""
    watched = await in_namespace(starter, code, read=[shown])
    assert watched.output.split() == ["ok", *["OSError"] * 4, "FileNotFoundError"]
    names = [shown / "old", shown / "new", shown / "directory", shown / "renamed", hidden / "data.db"]
    assert watched.of("file") == {str(name): "write" for name in names}
    assert [each["what"] for each, _ in watched.missed if "is_new" not in each] == [str(shown / "old")]


async def test_a_script_whose_interpreter_is_missing_names_the_interpreter(starter, tmp_path):
    interpreter, script = tmp_path / "interpreter", starter.home / "script"
    interpreter.write_bytes(Path("/bin/sh").read_bytes())
    interpreter.chmod(0o755)
    script.write_text(f"#!{interpreter} -e\n")
    script.chmod(0o755)
    watched = await in_namespace(starter, f'{TRY}\nattempt(os.execv, "{script}", ["script"])')
    assert watched.of("file") == {str(interpreter): "read"}


async def test_a_link_of_the_process_leads_the_watcher_to_nothing_outside(starter, tmp_path):
    interpreter, script, pipe = tmp_path / "interpreter", tmp_path / "script", tmp_path / "pipe"
    interpreter.touch()
    script.write_text(f"#!{interpreter}\n")
    os.mkfifo(pipe)
    code = TRY
    for place in (script, pipe):
        link = f"{ONLY_INSIDE}/{place.name}"
        code += f'os.symlink("{place}", "{link}")\nattempt(os.execv, "{link}", ["x"])\n'
    opened = threading.Event()

    def write() -> None:  # succeeds when somebody opens it for reading
        os.close(os.open(pipe, os.O_WRONLY))
        opened.set()

    threading.Thread(target=write, daemon=True).start()
    watched = await in_namespace(starter, code)
    assert str(interpreter) not in watched.of("file")
    assert not opened.is_set()
    os.close(os.open(pipe, os.O_RDONLY))


async def test_an_address_outside_the_network_is_named_and_the_process_s_own_listener_is_not(starter):
    code = f"""{TRY}
import socket
import struct
own = socket.create_server(("127.0.0.1", 0))
attempt(socket.create_connection, own.getsockname())
for family, kind, address in [
    (2, 1, ("192.0.2.7", 443)), (2, 1, ("127.0.0.1", 9)), (10, 1, ("2001:db8::1", 80)), (2, 2, ("192.0.2.53", 53)),
]:
    with socket.socket(family, kind) as each:
        attempt(each.connect, address)
with socket.socket(2, 2) as each:
    attempt(each.sendto, b"x", ("192.0.2.9", 514))
"""
    watched = await in_namespace(starter, code)
    assert watched.output.split() == ["ok", "OSError", "ConnectionRefusedError", "OSError", "OSError", "OSError"]
    named = ["192.0.2.7:443", "127.0.0.1:9", "[2001:db8::1]:80", "names (DNS)", "192.0.2.9:514"]
    assert list(watched.of("address")) == named


async def test_whether_somebody_listens_on_the_machine_s_loopback_is_said(starter):
    with socket.create_server(("127.0.0.1", 0)) as heard, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", 0))
        ports = [heard.getsockname()[1], datagrams.getsockname()[1], 9]
        code = f"{TRY}\nimport socket\nfor port in {ports}: attempt(socket.create_connection, ('127.0.0.1', port))"
        watched = await in_namespace(starter, code)
    addresses = [each for each, _ in watched.missed if each["kind"] == "address"]
    assert [each.get("is_heard", True) for each in addresses] == [True, True, False]


async def test_a_socket_in_a_directory_that_is_not_there_is_a_missed_file(starter, tmp_path):
    path = tmp_path / "service.sock"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(path))
        service.listen()
        code = f'{TRY}\nimport socket\nwith socket.socket(socket.AF_UNIX) as s: attempt(s.connect, "{path}")'
        watched = await in_namespace(starter, code)
    assert watched.of("file") == {str(path): "read"}


async def test_children_are_watched_too_and_what_is_asked_for_often_is_counted(starter, tmp_path):
    missing = tmp_path / "missing"
    missing.write_text("x")
    code = f"""{TRY}
if os.fork() == 0:
    for _ in range(3):
        attempt(open, "{missing}")
else:
    os.wait()
"""
    watched = await in_namespace(starter, code)
    file = {"kind": "file", "what": str(missing), "access": "read", "is_directory": False}
    assert watched.missed == [(file, 3)]


async def test_a_process_that_asks_without_end_is_written_down_up_to_a_limit(starter, tmp_path):
    missing = tmp_path / "missing"
    missing.mkdir()
    code = f"{TRY}\nfor at in range(3000): attempt(open, '{missing}/' + str(at) * 50, 'w')"
    watched = await in_namespace(starter, code)
    assert watched.end == End("exited", 0)
    assert watched.output.count("FileNotFoundError") == 3000
    assert 500 < len(watched.missed) < 3000


# --- rules of the kernel


async def under_rules(starter: Starter, code: str, **rules: Any) -> Watched:
    if landlock.abi() < landlock.PORTS_ABI:
        pytest.skip("the kernel's Landlock has no rules for ports")
    read = [*OWN, "/etc/ld.so.conf", "/proc", *rules.pop("read", ())]
    rules |= {"read": read, "write": [str(starter.home), "/dev/null"]}
    return await starter.python(code, confinement={"landlock": rules})


async def test_a_file_outside_the_rules_is_named(starter, tmp_path):
    data, shown = tmp_path / "data", tmp_path / "shown"
    for each in (data, shown):
        each.mkdir()
        (each / "file").write_text("x")
    code = f"""{TRY}
attempt(open, "{data}/file")
attempt(os.stat, "{data}/file")
attempt(os.listdir, "{data}")
attempt(open, "{data}/none")
attempt(open, "{data}/new", "w")
attempt(open, "{shown}/file")
attempt(open, "{shown}/file", "a")
attempt(open, "{starter.home}/own", "w")
"""
    watched = await under_rules(starter, code, read=[str(shown)])
    denied, absent = "PermissionError", "FileNotFoundError"
    assert watched.output.split() == [denied, "ok", denied, absent, denied, "ok", denied, "ok"]
    assert watched.of("file") == {
        f"{data}/file": "read", str(data): "read", f"{data}/new": "write", f"{shown}/file": "write",
    }  # fmt: skip


async def test_a_port_outside_the_rules_is_named(starter):
    code = f"""{TRY}
import socket
import struct
own = socket.create_server(("127.0.0.1", 0))
attempt(socket.create_connection, own.getsockname())
for port in (443, 5432):
    with socket.socket() as each:
        each.settimeout(10)
        attempt(each.connect, ("127.0.0.1", port))
"""
    watched = await under_rules(starter, code, connect=[443])
    assert watched.output.split() == ["PermissionError", "ConnectionRefusedError", "PermissionError"]
    assert list(watched.of("address"))[1:] == ["127.0.0.1:5432"]


# --- filters of system calls

DENIED = f"""{TRY}
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
attempt(call, 1000)
attempt(socket.socket, socket.AF_UNIX)
attempt(socket.socket, 17, 3)
attempt(socket.socket, socket.AF_INET)
libc.unshare.restype = ctypes.c_int
print(libc.unshare(0x20000), ctypes.get_errno())
print(libc.unshare(0x20000), ctypes.get_errno())
"""
FILTERS = ["base", "no_unix_sockets"]


async def test_a_denied_system_call_is_named_and_fails_with_the_same_error(starter):
    confinement: Confinement = {"seccomp": FILTERS}
    watched = await starter.python(DENIED, confinement=confinement)
    assert watched.output.split() == ["OSError", "PermissionError", "OSError", "ok", "-1", "1", "-1", "1"]
    assert watched.missed == [
        ({"kind": "system call", "what": "socket(AF_UNIX)"}, 1),
        ({"kind": "system call", "what": "socket(AF_PACKET)"}, 1),
        ({"kind": "system call", "what": "unshare"}, 2),
    ]


async def test_inside_a_wrapper_its_own_filters_deny_as_they_would(starter):
    """The wrapper itself must be able to do what they deny."""
    command = wrapped(starter.home, sys.executable, "-I", "-S", "-c", DENIED)
    watched = await starter.start(*command, confinement={"is_wrapped": True, "inner_seccomp": FILTERS})
    assert watched.output.split() == ["OSError", "PermissionError", "OSError", "ok", "-1", "1", "-1", "1"]
    assert list(watched.of("system call")) == ["socket(AF_UNIX)", "socket(AF_PACKET)", "unshare"]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_watcher_gives_the_filters_own_verdict(machine):
    """Its reading of a program agrees with that of the kernel: the other tests of the filters ask that one."""
    program = seccomp.program(["base"], machine)
    architecture = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]

    def verdict(name: str, *arguments: int, of: int = architecture) -> int:
        data = struct.pack("=IIQ6Q", NUMBERS[machine][name], of, 0, *arguments, *[0] * (6 - len(arguments)))
        return watcher.verdict(program, data)

    allowed, eperm = 0x7FFF0000, 0x00050000 | errno.EPERM
    assert verdict("mount") == verdict("clone", 0x10000000) == verdict("ioctl", 0, 0x5412) == eperm
    assert verdict("personality", 0x40000) == eperm
    assert verdict("clone", 0x11) == verdict("ioctl", 0, 0x5413) == verdict("personality", 8) == allowed
    assert verdict("clone3") == verdict("mount", of=1) == 0x00050000 | errno.ENOSYS


async def test_without_its_watcher_a_process_gets_nothing_that_is_watched(starter):
    """It is killed with it; until then everything that the watcher would answer fails."""
    code = f"""{TRY}
import signal
os.kill(os.getppid(), signal.SIGKILL)
import ctypes
while True:
    ctypes.CDLL(None).unshare(0x20000) and open("/etc/hostname")
"""
    watched = await starter.python(code, confinement={"seccomp": ["base"]})
    assert watched.end == End("signaled", signal.SIGKILL)
