"""What a fork has of its own: nothing of one is in another, nor in the template."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from app.jail.sandbox.tiers import Tier
from app.jail.spawner import tree
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


@pytest.fixture(
    params=[Tier.ASSISTED, Tier.NAMESPACES, Tier.KERNEL, Tier.BASE, Tier.NONE], ids=lambda tier: tier.name.lower()
)
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
    if has_rooms(one):
        assert homes == ["/tmp/home"] * 2
        for place in ("/tmp", "/tmp/home", "/dev/shm", "/dev/pts"):
            await value(one, heard, f"'pts' in {place!r} or open({place!r} + '/of-one', 'w').write('x')")
            assert "of-one" not in await value(other, listener, f"os.listdir({place!r})")
        with anyio.fail_after(30):  # the one that led it in ends in a moment
            while await value(other, listener, "[each for each in os.listdir('/proc') if each.isdigit()]") != [
                "1",
                "3",
            ]:
                pass
        for name in ("mnt", "pid", "ipc", "uts", "net", "cgroup", "user"):
            links = {
                os.readlink(f"/proc/{pid}/ns/{name}") for pid in map(program_of, [one, other, template_of(running)])
            }
            assert len(links) == 3, name
    elif one.origin.tier != "none":
        assert homes[0] != homes[1]
        assert await value(other, listener, "os.listdir(os.environ['HOME'])") == []
        assert await value(one, heard, "tempfile.gettempdir()") == homes[0].removesuffix("home") + "tmp"
    if one.origin.tier == "kernel":
        expression = json.dumps(f"open({homes[0] + '/file'!r}).read()")
        other.send(f'{{"id": 9, "params": {{"expression": {expression}}}}}'.encode())
        assert "PermissionError" in (await listener.exit()).stderr[-1]


async def test_the_environment_is_that_of_a_process_that_is_executed(running, spec):
    process, listener = await forked(running, spec)
    executed, heard = await executed_one(running, spec)
    found = []
    for each, told in ((process, listener), (executed, heard)):
        environment = await value(each, told, "dict(os.environ)")
        home = environment["HOME"]
        assert os.path.realpath(await value(each, told, "os.getcwd()")) == os.path.realpath(home)
        text = json.dumps(environment).replace(home.removesuffix("home") + "tmp", "~tmp").replace(home, "~")
        found.append(json.loads(text.replace(each.id, "id")))
    assert found[0] == found[1]
    assert (found[0]["SET_BY_IMPORT"], found[0]["GIVEN"], found[0][tree.MARKER]) == ("yes", "by the backend", "id")


async def executed_one(running, spec):
    executed = await running.supervisor.spawn(replace(spec, name="executed", start="exec"), running.gone.append)
    heard = Listener()
    executed.attach(heard)
    return executed, heard


def has_rooms(process) -> bool:
    return process.origin.tier in ("namespaces", "assisted")


def program_of(process) -> int:
    """Inside all that keeps it in its sandbox."""
    pid = process.pid
    while below := tree.children(pid):
        pid = below[0]
    return pid


def template_of(running):
    return running.supervisor.forking.templates[0].process


async def test_a_fork_has_its_own_descriptors_and_no_others(running, spec):
    pipes = set[str]()
    for _ in range(2):
        process, listener = await forked(running, spec)
        assert await value(process, listener, "sorted(map(int, os.listdir('/proc/self/fd')))[:-1]") == [0, 1, 2]
        found = descriptors(program_of(process))
        assert set(found) == {0, 1, 2}
        assert pipes.isdisjoint(found.values())
        pipes |= set(found.values())
    assert pipes.isdisjoint(descriptors(program_of(template_of(running))).values())
    if has_rooms(process) and os.geteuid() == 0:  # its first process refuses inspection
        # It closes what it has waited at in a moment of its own.
        await eventually(lambda: set(descriptors(process.pid).values()) == {"/dev/null"})


async def test_a_fork_is_a_process_as_any_other(running, spec):
    process, listener = await forked(running, spec)
    executed, heard = await executed_one(running, spec)
    assert await value(executed, heard, "threading.active_count()") == 1
    assert tree.parent(process.pid) == tree.parent(executed.pid)
    fork, other = program_of(process), program_of(executed)
    assert os.getsid(fork) == os.getpgid(fork) == fork
    for pid in (fork, process.pid):
        assert limits(pid)["Max file locks"] == [str(tree.mark(process.id))] * 2
    assert os.sched_getscheduler(fork) == os.sched_getscheduler(other)
    for kind in ("Max open files", "Max file size", "Max core file size", "Max processes", "Max address space"):
        assert limits(fork)[kind] == limits(other)[kind]
    for name in (
        *["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"],
        "Uid",
        "Gid",
        "NoNewPrivs",
        "Seccomp",
        "SigBlk",
        "SigIgn",
    ):
        assert status(fork)[name] == status(other)[name], name
    for pid in (fork, process.pid) if has_rooms(process) else (fork,):
        assert groups(pid) == [each.replace(executed.id, process.id) for each in groups(other)]
    for expression in ("os.getppid()", "os.uname()[1]", "sorted(os.listdir('/'))", "os.getgroups()"):
        if has_rooms(process):
            assert await value(process, listener, expression) == await value(executed, heard, expression)
    assert await value(process, listener, "os.umask(0o022)") == 0o027
    assert await value(process, listener, "threading.active_count()") == 1


def status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status") as file:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}


def limits(pid: int) -> dict[str, list[str]]:
    """Those that anybody may see: soft and hard."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return {line[:26].strip(): line[26:].split()[:2] for line in lines}


def groups(pid: int) -> list[str]:
    with open(f"/proc/{pid}/cgroup") as file:
        return file.read().splitlines()


async def test_handlers_and_exit_functions_are_the_program_s(running, spec, tmp_path):
    process, listener = await forked(running, spec)
    home = await value(process, listener, "os.environ['HOME']")
    os.kill(program_of(process), signal.SIGUSR1)
    with anyio.fail_after(20):
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
    program = program_of(one)
    await value(one, heard, "__import__('subprocess').Popen(['sleep', '60'], start_new_session=True).pid")
    (child,) = tree.children(program)
    one.kill()
    assert (await heard.exit()).description == "signal 9 (SIGKILL)"
    await eventually(lambda: not os.path.exists(f"/proc/{child}"))
    assert await value(other, listener, "1 + 1") == 2
    template = running.supervisor.forking.templates[0].process
    assert template.exit is None


async def test_forks_go_on_when_their_template_has_ended(running, spec):
    process, listener = await forked(running, spec)
    template = template_of(running)
    if has_rooms(process):  # their namespaces are below its own
        running.supervisor.forking.forget(spec.key)
    else:
        os.kill(template.pid, signal.SIGKILL)
        await template.wait_gone()
    assert await value(process, listener, "1 + 1") == 2
    if process.origin.tier != "none":  # its files are there, though they are in the directory of the template
        assert await value(process, listener, "open(os.environ['HOME'] + '/file', 'w').write('x')") == 1
    await running.stop(process)
    assert process.exit.description == "exit status 0"
    place = running.supervisor.home_of(process)
    assert place is None
    await template.wait_gone()


@pytest.mark.parametrize("tier", [Tier.ASSISTED, Tier.NAMESPACES])
async def test_rooms_end_with_their_template(tmp_path, spec, tier):
    async with forking(tmp_path, tier) as running:
        _, listener = await forked(running, spec)
        os.kill(template_of(running).pid, signal.SIGKILL)
        assert (await listener.exit()).description == "signal 9 (SIGKILL)"


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
