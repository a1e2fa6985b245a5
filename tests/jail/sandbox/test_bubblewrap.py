"""Commands in namespaces of their own: real processes, in every way that this machine can start them."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from app.jail.sandbox._bubblewrap import HOME, Bubblewrap, Room, find_bubblewrap, wrap
from app.jail.sandbox.needs import Needs
from tests.jail.sandbox.inside import IS_ROOT, SYSTEM_PYTHON, Inside, needs_bubblewrap, open_directory, ways

pytestmark = needs_bubblewrap


@pytest.fixture(params=ways(), ids=lambda way: way.name)
def inside(request) -> Inside:
    return request.param


@pytest.fixture
def project():
    with open_directory() as path:
        yield path


@pytest.fixture
def as_root() -> list[Inside]:
    if not IS_ROOT:
        pytest.skip("needs root")
    return [way for way in ways() if way.outer_uid == 0]


# --- what works


def test_the_interpreter_of_these_tests_runs(inside):
    if inside.outer_uid != os.geteuid() and not os.access(sys.executable, os.X_OK):
        pytest.skip("closed to others")
    if inside.outer_uid != 0 and IS_ROOT:
        pytest.skip("an interpreter below /root is closed to an ordinary user")
    assert inside.python("import mcp, os; print(mcp.__name__, os.getuid())", program=sys.executable) == (
        f"mcp {inside.uid or os.geteuid()}"
    )


def test_a_console_script_of_a_virtual_environment_runs(as_root):
    script = Path(sys.prefix) / "bin" / "mcp-server-time"
    for way in as_root:
        done = way.run(str(script), "--help")
        assert done.returncode == 0, done.stderr
        assert "usage" in done.stdout


def test_node_runs(inside):
    if shutil.which("node") is None:
        pytest.skip("there is no node")
    done = inside.run("node", "-e", "console.log(process.cwd(), require('fs').readdirSync('/tmp').join())")
    assert (done.stdout, done.returncode) == ("/tmp/home home\n", 0), done.stderr


def test_a_script_in_a_project_folder_finds_its_neighbours(inside, project):
    (project / "helper.py").write_text("ANSWER = 42\n")
    (project / "server.py").write_text(
        "import helper, os; print(helper.ANSWER, os.listdir(os.path.dirname(__file__)))\n"
    )
    done = inside.run(SYSTEM_PYTHON, "-B", str(project / "server.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("42 ")


def test_its_home_and_temporary_files_can_be_written_and_the_working_directory_is_home(inside):
    code = "import os, tempfile; open('a', 'w'); tempfile.TemporaryFile(); print(os.getcwd(), os.listdir())"
    assert inside.python(code) == "/tmp/home ['a']"


def test_a_working_directory_below_its_home_is_its_own(inside):
    code = "import os; open('a', 'w'); open('../b', 'w'); print(os.getcwd())"
    assert inside.python(code, cwd=f"{HOME}/some/where") == f"{HOME}/some/where"


def test_semaphores_work(inside):
    assert inside.python("import multiprocessing as m; m.Lock(); print('ok')") == "ok"


def test_what_is_declared_can_be_read_or_written(inside, project):
    (project / "in").mkdir()
    (project / "in" / "file").write_text("text")
    (project / "out").mkdir()
    (project / "out").chmod(0o777)
    code = "import sys; a, b = sys.argv[1:]; open(b + '/new', 'w').write(open(a + '/file').read())"
    done = inside.run(
        SYSTEM_PYTHON, "-c", code, str(project / "in"), str(project / "out"),
        read=[str(project / "in")], write=[str(project / "out")],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (project / "out" / "new").read_text() == "text"
    done = inside.run(SYSTEM_PYTHON, "-c", code, str(project / "in"), str(project / "in"))
    assert "Read-only file system" in done.stderr


def test_a_home_that_lasts_keeps_its_files(inside, project):
    home = project / "homes" / "one"
    home.mkdir(parents=True)
    owner = inside.uid or inside.outer_uid
    if IS_ROOT:
        os.chown(home, owner, owner)
    home.chmod(0o700)
    room = {"home": str(home), "home_lasts": True, "cwd": str(home)}
    inside.python("open('kept', 'w').write('x')", **room)
    assert (home / "kept").read_text() == "x"
    assert inside.python("print(open('kept').read())", **room) == "x"


# --- what does not


@pytest.mark.parametrize(
    "path", ["/etc/shadow", "/root/.ssh", "/home", "/var/log", "/run", "/boot", str(Path.cwd() / "app")]
)
def test_a_path_that_nothing_names_is_not_there(inside, path):
    assert inside.python(f"import os; print(os.path.exists({path!r}))") == "False"


def test_of_root_only_the_way_to_the_interpreter_is_there(as_root):
    real = Path(sys.executable).resolve()
    if not real.is_relative_to("/root"):
        pytest.skip("the interpreter is not below /root")
    for way in as_root:
        seen = way.python("import os; print(os.listdir('/root'))", program=sys.executable)
        assert seen == str([real.relative_to("/root").parts[0]])


@pytest.mark.parametrize("path", ["/usr/x", "/x", "/etc/x", "/dev/x", "/proc/sys/kernel/hostname"])
def test_the_system_cannot_be_written(inside, path):
    assert not inside.can(f"open({path!r}, 'w').write('x')")


def test_only_its_own_processes_are_there(inside):
    pids = inside.python("import os; print([each for each in os.listdir('/proc') if each.isdigit()])")
    assert pids == "['1', '2']"
    assert not inside.can(f"import os; os.kill({os.getpid()}, 0)")


@pytest.mark.parametrize("directory", [HOME, "/tmp", "/dev/shm"])
def test_what_it_writes_has_a_limit(inside, directory):
    code = f"f = open('{directory}/big', 'wb', 0)\nfor _ in range(20): f.write(bytes(1 << 16))"
    assert not inside.can(code)
    assert inside.can(code, disk_bytes=4 << 20)


def test_home_and_temporary_files_have_one_limit_together(inside):
    code = (
        "for d in ('/tmp', '/tmp/home'):\n f = open(d + '/big', 'wb', 0)\n for _ in range(10): f.write(bytes(1 << 16))"
    )
    assert not inside.can(code)


def test_without_a_network_the_loopback_of_the_machine_is_out_of_reach(inside):
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5)"
        assert not inside.can(code)
        assert inside.can(code, has_network=True)


def test_it_has_no_capability_and_gains_none(inside):
    status = dict(
        line.split(":\t")
        for line in inside.python("print(open('/proc/self/status').read())").splitlines()
        if ":\t" in line
    )
    assert {int(status[each], 16) for each in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
    assert int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert {int(each) for each in status["Uid"].split()} == {inside.uid or inside.outer_uid}


def test_no_user_namespace_in_the_one_of_an_ordinary_user(inside):
    if inside.outer_uid == 0:
        pytest.skip("without a user namespace of its own, this is left to the filter of system calls")
    assert not inside.can(
        "import ctypes, os; os._exit(0) if ctypes.CDLL(None).unshare(0x10000000) == 0 else open('/Error')"
    )


def test_it_cannot_mount_or_trace(inside):
    assert not inside.can(
        "import ctypes; assert ctypes.CDLL(None).mount(b't', b'/tmp', b'tmpfs', 0, None) == 0, 'Error'"
    )


# --- the program


def test_the_command_names_no_variable_of_the_environment(inside):
    assert not [each for each in inside.command("true") if each.startswith("--setenv")]


def test_an_old_version_is_refused_by_name(tmp_path, monkeypatch):
    old = tmp_path / "bwrap"
    old.write_text("#!/bin/sh\necho bubblewrap 0.6.1\n")
    old.chmod(0o755)
    monkeypatch.setattr("app.jail.sandbox._bubblewrap._of_the_package", lambda: None)
    with pytest.raises(FileNotFoundError, match="too old"):
        find_bubblewrap(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="apt-get install bubblewrap"):
        find_bubblewrap(str(tmp_path / "nowhere"))


def test_without_setpriv_it_is_said_what_is_missing(monkeypatch):
    monkeypatch.setattr("app.jail.sandbox._bubblewrap.shutil.which", lambda *_, **__: None)
    room = Room(Needs("/usr/bin/true", ("/usr",)), "/", uid=60002)
    with pytest.raises(FileNotFoundError, match=r"setpriv.*util-linux"):
        wrap(Bubblewrap("/usr/bin/bwrap", (0, 8)), room, ["true"], is_root=True)


def test_the_user_of_these_tests_is_known_inside():
    if IS_ROOT:
        return
    way = ways()[0]
    assert way.python("import pwd, os; print(pwd.getpwuid(os.getuid()).pw_name)") == pwd.getpwuid(os.getuid()).pw_name


def test_nothing_is_left_when_it_is_killed(inside):
    # Until its first process waits, bubblewrap is not bound to its parent yet: it starts the program before.
    waits = "until grep -q '^State:.S' /proc/1/status; do :; done"
    command = inside.bare("sh", "-c", f"{waits}; echo started; sleep 1000")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.kill()
        assert process.stdout.read() == b""  # every holder of the pipe has ended
