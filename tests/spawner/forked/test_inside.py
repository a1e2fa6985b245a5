"""What a fork has of its own: nothing of one is in another, nor in the template."""

import json
import os
import resource
import signal
from dataclasses import replace

import anyio
import pytest

from app.sandbox.tiers import Tier
from app.spawner import tree
from tests.processes.forking.rig import SERVER, descriptors, forked, forking, program, value
from tests.processes.rig import Listener, eventually

# A program that has done at its import what servers do: module globals, handlers, seeds.
PROGRAM = SERVER + (
    """
import atexit, gc, logging, os, random, signal, tempfile, threading, uuid, helper
atexit.register(lambda: open(os.environ["HOME"] + "/ended", "w").close())
signal.signal(signal.SIGUSR1, lambda *_: helper.seen.append("usr1"))
os.umask(0o027)
serve(lambda text: eval(text))
"""
)
HELPER = """
import os, random
seen = []
generator = random.Random()
fixed = random.Random(7)
os.environ["SET_BY_IMPORT"] = "yes"
os.environ.setdefault("GIVEN", "by the import")
"""


@pytest.fixture(params=[Tier.KERNEL, Tier.BASE, Tier.NONE], ids=lambda tier: tier.name.lower())
async def running(request, tmp_path):
    async with forking(tmp_path, request.param) as running:
        yield running


@pytest.fixture
def spec(tmp_path):
    made = program(tmp_path, PROGRAM, env={"GIVEN": "by the backend"})
    (tmp_path / "program/helper.py").write_text(HELPER)
    return made


async def test_forks_draw_different_numbers_and_names(running, spec):
    drawn = []
    for _ in range(3):
        process, listener = await forked(running, spec)
        drawn.append([
            await value(process, listener, expression)
            for expression in (
                "random.random()", "helper.generator.random()", "os.urandom(8).hex()", "str(uuid.uuid4())",
                "str(uuid.uuid1())", "tempfile.mktemp()", "next(tempfile._get_candidate_names())",
            )
        ])  # fmt: skip
        assert (
            await value(process, listener, "helper.fixed.random()") == 0.32383276483316237
        )  # it was seeded on purpose
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 3


async def test_a_fork_sees_nothing_of_another(running, spec):
    one, heard = await forked(running, spec)
    await value(one, heard, "[helper.seen.append('of one'), os.environ.update(SECRET='of one'), random.seed(1)] and 0")
    await value(one, heard, "open(os.environ['HOME'] + '/file', 'w').write('of one')")
    other, listener = await forked(running, spec)
    assert await value(other, listener, "helper.seen") == []
    assert await value(other, listener, "os.environ.get('SECRET')") is None
    assert await value(one, heard, "helper.seen") == ["of one"]
    homes = [await value(*each, "os.environ['HOME']") for each in ((one, heard), (other, listener))]
    if one.origin.tier != "none":
        assert homes[0] != homes[1]
        assert await value(other, listener, "os.listdir(os.environ['HOME'])") == []
        assert await value(one, heard, "tempfile.gettempdir()") == homes[0].removesuffix("home") + "tmp"
    if one.origin.tier == "kernel":
        expression = json.dumps(f"open({homes[0] + '/file'!r}).read()")
        other.send(f'{{"id": 9, "params": {{"expression": {expression}}}}}'.encode())
        assert "PermissionError" in (await listener.exit()).stderr[-1]


async def test_the_environment_is_the_session_s_with_what_imports_have_set(running, spec):
    process, listener = await forked(running, spec)
    found = await value(process, listener, "dict(os.environ)")
    assert found.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"  # Python's own
    home = await value(process, listener, "os.getcwd()")
    assert found == {
        "PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home.removesuffix("home") + "tmp", "LANG": "C.UTF-8",
        "GIVEN": "by the backend", "SET_BY_IMPORT": "yes", tree.MARKER: process.id,
    }  # fmt: skip


async def test_a_fork_has_its_own_descriptors_and_no_others(running, spec):
    pipes = set[str]()
    for _ in range(2):
        process, listener = await forked(running, spec)
        assert await value(process, listener, "sorted(map(int, os.listdir('/proc/self/fd')))[:-1]") == [0, 1, 2]
        found = descriptors(process.pid)
        assert set(found) == {0, 1, 2}
        assert pipes.isdisjoint(found.values())
        pipes |= set(found.values())
    template = running.supervisor.forking.templates[0].process
    assert pipes.isdisjoint(descriptors(template.pid).values())


async def test_a_fork_is_a_process_as_any_other(running, spec):
    process, listener = await forked(running, spec)
    executed = await running.supervisor.spawn(replace(spec, name="executed", start="exec"), running.gone.append)
    heard = Listener()
    executed.attach(heard)
    assert await value(executed, heard, "threading.active_count()") == 1
    assert tree.parent(process.pid) == tree.parent(executed.pid)
    assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
    assert tree.mark_of(process.pid) == tree.mark(process.id)
    assert os.sched_getscheduler(process.pid) == os.sched_getscheduler(executed.pid)
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        assert resource.prlimit(process.pid, kind) == resource.prlimit(executed.pid, kind)
    for name in ("Uid", "Gid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "SigBlk", "SigIgn"):
        assert status(process.pid)[name] == status(executed.pid)[name], name
    assert groups(process.pid) == [each.replace(executed.id, process.id) for each in groups(executed.pid)]
    assert await value(process, listener, "os.umask(0o022)") == 0o027
    assert await value(process, listener, "threading.active_count()") == 1


def status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status") as file:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}


def groups(pid: int) -> list[str]:
    with open(f"/proc/{pid}/cgroup") as file:
        return file.read().splitlines()


async def test_handlers_and_exit_functions_are_the_program_s(running, spec, tmp_path):
    process, listener = await forked(running, spec)
    home = await value(process, listener, "os.environ['HOME']")
    os.kill(process.pid, signal.SIGUSR1)
    with anyio.fail_after(5):
        while await value(process, listener, "helper.seen") != ["usr1"]:
            pass
    await value(process, listener, "[atexit.register(os.write, 2, b'last words')] and 0")
    await running.stop(process)
    assert process.exit.description == "exit status 0"
    assert process.stderr.last_lines() == ["last words"]
    if process.origin.tier == "none":
        assert os.path.exists(f"{home}/ended")


async def test_an_error_ends_a_fork_as_it_ends_a_program(running, spec):
    process, listener = await forked(running, spec)
    process.send(b'{"id": 1, "params": {"expression": "1 / 0"}}')
    exit = await listener.exit()
    assert exit.description == "exit status 1"
    assert exit.stderr[-1] == "ZeroDivisionError: division by zero"


async def test_killing_a_fork_touches_no_other_and_ends_what_it_has_started(running, spec):
    one, heard = await forked(running, spec)
    other, listener = await forked(running, spec)
    child = await value(one, heard, "__import__('subprocess').Popen(['sleep', '60'], start_new_session=True).pid")
    one.kill()
    assert (await heard.exit()).description == "signal 9 (SIGKILL)"
    await eventually(lambda: not os.path.exists(f"/proc/{child}"))
    assert await value(other, listener, "1 + 1") == 2
    template = running.supervisor.forking.templates[0].process
    assert template.exit is None


async def test_forks_go_on_when_their_template_is_killed(running, spec):
    process, listener = await forked(running, spec)
    template = running.supervisor.forking.templates[0].process
    os.kill(template.pid, signal.SIGKILL)
    await template.wait_gone()
    assert await value(process, listener, "1 + 1") == 2
    if process.origin.tier != "none":  # its files are there, though they are in the directory of the template
        assert await value(process, listener, "open(os.environ['HOME'] + '/file', 'w').write('x')") == 1
    await running.stop(process)
    assert process.exit.description == "exit status 0"
    place = running.supervisor.home_of(process)
    assert place is None


@pytest.mark.parametrize("words", [("-m", "program"), ("-u", "-m", "program", "--flag")])
async def test_a_module_runs_as_with_dash_m(tmp_path, words):
    code = SERVER + "import helper\nserve(lambda text: eval(text))\n"
    spec = program(tmp_path, "")
    place = tmp_path / "program"
    (place / "program.py").write_text(code)
    (place / "helper.py").write_text("seen = []")
    spec = replace(spec, args=words, cwd=str(place))
    async with forking(tmp_path, Tier.BASE) as running:
        process, listener = await forked(running, spec)
        found = await value(process, listener, "[__name__, sys.argv, sys.path[0], __spec__.name, sys.orig_argv[1:]]")
    arguments = [word for word in words if word == "--flag"]
    assert found == ["__main__", [str(place / "program.py"), *arguments], str(place), "program", list(words)]
