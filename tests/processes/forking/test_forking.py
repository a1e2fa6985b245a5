"""When a backend's processes are forked, and why they are not."""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from app.domain import BackendSpec
from app.errors import BackendExited
from app.jail.sandbox.tiers import Tier
from app.jail.spawner import tree
from app.processes.forking.forking import ForkingOptions
from app.processes.process import BackendProcess
from tests.jail.sandbox.inside import needs_bubblewrap
from tests.processes.forking.rig import HANDSHAKE, SERVER, asked, console_script, forked, forking, known, program, value
from tests.processes.rig import Listener, Running, eventually, spec_of

ROOT = Path(__file__).resolve().parents[3]

EVALUATES = SERVER + "\nserve(lambda text: eval(text))\n"


@pytest.fixture
async def running(tmp_path):
    async with forking(tmp_path) as running:
        yield running


async def reason(running: Running, spec: BackendSpec) -> str:
    """Why it is executed."""
    why = await known(running, spec)
    process = await running.supervisor.spawn(spec, running.gone.append)
    assert (process.origin.start, process.origin.reason) == ("exec", why)
    await running.stop(process)
    return why


@pytest.mark.parametrize("name", ["mcp-server-time", "mcp-server-git"])
async def test_a_real_server_does_the_same_when_it_is_forked(running, name):
    spec = console_script(name)
    executed = await running.supervisor.spawn(replace(spec, start="exec"), running.gone.append)
    heard = Listener()
    executed.attach(heard)
    said = []
    for process, listener in ((executed, heard), await forked(running, replace(spec, start="auto"))):
        await asked(process, listener, "initialize", **HANDSHAKE)
        process.send(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')
        said.append([listener.lines[0], await asked(process, listener, "tools/list")])
        await running.stop(process)
        said[-1].append(process.exit)
    assert said[0] == said[1]
    assert running.value("trunkline_process_starts_total", start="fork") >= 1
    assert running.value("trunkline_fork_templates") == 1


async def test_a_server_without_a_handshake_can_be_forked(running):
    """It speaks 2026-07-28 only."""
    server = ROOT / "tests/conformance/stdio_backend.py"
    arguments = ("-I", "-S", str(server), "--era", "sessionless")
    spec = BackendSpec("acme", "new", sys.executable, arguments, start="auto")
    assert await known(running, spec) == ""


# In each fork: its first word to the spawner, or what it says after it was told what it is to become.
SPEAKS = {
    "first": """
import os, stat
def speak():
    for each in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(each).st_mode):
                os.write(each, WORD)
        except OSError:
            pass
os.register_at_fork(after_in_child=speak)
""",
    "last": """
import socket
send = socket.socket.send
socket.socket.send = lambda self, data, *more: send(self, WORD if data == b"ok" else data, *more)
""",
}


@pytest.mark.parametrize("when", ["first", "last"])
@pytest.mark.parametrize("word", [b"garbage", b"null", b'{"errno": 1, "stage": "fork", "message": {"a": 1}}'])
async def test_whatever_a_fork_says_it_is_only_itself_that_is_not_started(running, tmp_path, when, word):
    """Before, the spawner ended, and with it the processes of all tenants; or nobody was told why there was none."""
    bystander = await running.supervisor.spawn(spec_of("echo"), running.gone.append)
    spec = program(tmp_path, "import speaks\n" + EVALUATES)
    (tmp_path / "program" / "speaks.py").write_text(f"WORD = {word!r}\n" + SPEAKS[when])
    why = await known(running, spec)
    assert why.startswith("a fork fails: "), why
    assert bystander.exit is None
    assert running.value("trunkline_spawner_restarts_total") == 0


async def test_a_program_that_ignores_the_end_of_its_children_can_be_forked(running, tmp_path):
    program(tmp_path, "")
    (tmp_path / "program" / "ignores.py").write_text("import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n")
    spec = program(tmp_path, "import ignores\n" + EVALUATES)
    process, listener = await forked(running, spec)
    assert await value(process, listener, "1 + 1") == 2


async def test_a_fork_that_does_not_come_in_time_once_is_tried_again(running, tmp_path, monkeypatch):
    """In the trial as later: before, the backend was executed until it was changed."""
    now = time.monotonic()
    monkeypatch.setattr("app.processes.forking.start.FORK_S", 0.0)
    running.supervisor.forking.clock = lambda: now
    spec = program(tmp_path, EVALUATES)
    assert await known(running, spec) == "a fork fails: no answer in 0 s"
    assert running.value("trunkline_fork_template_failures_total", reason="died") == 1
    monkeypatch.setattr("app.processes.forking.start.FORK_S", 60.0)
    now += 10.0
    process, _ = await forked(running, spec)
    await running.stop(process)


async def test_nobody_waits_for_a_template(running, tmp_path):
    spec = program(tmp_path, EVALUATES)
    process = await running.supervisor.spawn(spec, running.gone.append)
    assert process.origin.start == "exec"
    assert process.origin.reason == "its template is being made"
    await forked(running, spec)


async def test_without_asking_for_it_nothing_is_forked(running, tmp_path):
    process = await running.supervisor.spawn(program(tmp_path, EVALUATES, start="exec"), running.gone.append)
    assert (process.origin.start, process.origin.reason) == ("exec", "")
    assert running.supervisor.processes == [process]


async def test_a_program_of_another_language_is_executed(running):
    assert await reason(running, replace(spec_of("echo"), command="cat", args=(), start="fork")) == (
        "the command is no script of Python"
    )
    assert running.value("trunkline_fork_template_failures_total", reason="not_python") == 1


@needs_bubblewrap
async def test_with_namespaces_of_its_own_a_process_is_forked_too(tmp_path):
    async with forking(tmp_path, Tier.NAMESPACES) as running:
        spec = replace(console_script("mcp-server-time"), start="auto")
        process, listener = await forked(running, spec)
        told = await asked(process, listener, "initialize", **HANDSHAKE)
        assert told["serverInfo"]["name"] == "mcp-time"


@needs_bubblewrap
async def test_what_leaves_a_file_in_the_home_is_left_to_each_fork_and_what_only_asks_for_it_is_not(tmp_path):
    spec = program(tmp_path, "import asks, leaves\n" + EVALUATES)
    place = tmp_path / "program"
    (place / "asks.py").write_text("import os\nhome, everything = os.environ['HOME'], dict(os.environ)")
    (place / "leaves.py").write_text("import os\nopen(os.environ['HOME'] + '/made', 'w').close()")
    async with forking(tmp_path, Tier.NAMESPACES) as running:
        process, listener = await forked(running, spec)
        assert running.supervisor.forking.templates[0].skipped == {"leaves"}
        assert await value(process, listener, "[__import__('os').listdir(asks.home), asks.home]") == [
            ["made"],
            "/tmp/home",
        ]


@needs_bubblewrap
async def test_a_fork_that_cannot_have_namespaces_of_its_own_is_executed_and_why_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("app.jail.sandbox.composer.HOSTNAME", "x" * 100)  # of forks only; the kernel takes 64
    async with forking(tmp_path, Tier.NAMESPACES) as running:
        why = await known(running, replace(console_script("mcp-server-time"), start="auto"))
        assert why.startswith("a fork fails: its namespaces: ")
        process = await running.supervisor.spawn(
            replace(console_script("mcp-server-time"), start="auto"), running.gone.append
        )
        assert process.origin.start == "exec"


async def test_homes_that_last_are_not_given_to_a_template(running, tmp_path):
    spec = program(tmp_path, EVALUATES, state="keep", keeper=("acme", "key", "x"))
    assert "state: keep" in await reason(running, spec)
    assert "state: keep" in await running.supervisor.forking.settled(replace(spec, keeper=None))  # a check is nobody's
    assert running.supervisor.forking.templates == []


async def test_a_node_may_fork_nothing(tmp_path):
    async with forking(tmp_path, Tier.BASE, forking=ForkingOptions(most=0)) as running:
        assert "FORK_TEMPLATES is 0" in await reason(running, program(tmp_path, EVALUATES))


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import mmap; shared = mmap.mmap(-1, 4096)", "shared memory"),
        ("import os, time\nif not os.fork():\n time.sleep(60)", "process"),
    ],
)
async def test_what_forks_would_share_makes_a_template_unfit(running, tmp_path, code, why):
    spec = program(tmp_path, SERVER + "import helper\nserve(lambda text: eval(text))\n")
    (tmp_path / "program/helper.py").write_text(code)
    assert f"its imports leave {why}" in await reason(running, spec)
    assert running.value("trunkline_fork_template_failures_total", reason="unfit") == 1
    await eventually(lambda: not running.supervisor.processes)


OF_A_SESSION = [
    "import os; place = os.environ['HOME']",
    "import os; variables = dict(os.environ)",
    "import os; here = os.getcwd()",
    "import secrets; token = secrets.token_hex()",
    "import os; token = os.getrandom(8)",
    "token = open('/dev/urandom', 'rb', 0).read(8)",
    "import os; f = os.open('/dev/urandom', os.O_RDONLY); token = os.read(f, 8); os.close(f)",
    "import pathlib\nwith pathlib.Path('/dev/urandom').open('rb') as f: token = f.read(8)",
    "import io; f = io.FileIO('/dev/urandom'); token = f.read(8); f.close()",
    "import io; f = io.open_code('/dev/../dev/random'); token = f.read(8); f.close()",
    "import os; d = os.open('/dev', os.O_PATH); os.close(os.open('urandom', 0, dir_fd=d)); os.close(d)",
    "from posix import urandom; token = urandom(8)",
    "from posix import getrandom; token = getrandom(8)",
    "token = open('/proc/sys/kernel/random/uuid').read()",
    "import os; os.symlink('/dev/urandom', 'name'); token = open('name', 'rb', 0).read(8); os.remove('name')",
    "import _ssl; token = _ssl.RAND_bytes(8)",
    "import _uuid; token = _uuid.generate_time_safe()",
    "import ctypes; ctypes.CDLL(None).getrandom(ctypes.create_string_buffer(8), 8, 0)",
    "import ctypes; ctypes.CDLL(None).syscall(318, ctypes.create_string_buffer(8), 8, 0)",
    "import random; token = random.getrandbits(64)",
    "import random; random.seed(7)",
    "from random import Random; token = Random().random()",
    "import uuid; token = uuid.uuid1()",
    "import ssl; token = ssl.RAND_bytes(8)",
    "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "import socket; ends = socket.socketpair()",
    "from tempfile import mkdtemp; place = mkdtemp()",
]


async def test_modules_that_ask_for_what_is_a_session_s_are_left_to_it(running, tmp_path):
    helpers = {f"helper_{number}": code for number, code in enumerate(OF_A_SESSION)}
    spec = program(tmp_path, SERVER + f"import harmless, {', '.join(helpers)}\nserve(lambda text: eval(text))\n")
    for name, code in {**helpers, "harmless": "import os; pid = os.getpid()"}.items():
        (tmp_path / f"program/{name}.py").write_text(code)
    process, listener = await forked(running, spec)
    (template,) = running.supervisor.forking.templates
    assert [code for name, code in helpers.items() if name not in template.skipped] == []
    assert template.skipped == set(helpers)
    assert await value(process, listener, "[harmless.pid, __import__('os').getpid()]") == [
        template.process.pid, process.pid,
    ]  # fmt: skip
    assert await value(process, listener, "helper_0.__name__") == "helper_0"


async def test_a_variable_that_names_the_home_is_of_each_fork(running, tmp_path):
    spec = program(tmp_path, SERVER + "import helper\nserve(lambda text: eval(text))\n")
    (tmp_path / "program/helper.py").write_text("import os; place = os.environ['FILE']")
    process, listener = await forked(running, replace(spec, env={"FILE": "${home}/file"}))
    assert await value(process, listener, "helper.place == __import__('os').environ['HOME'] + '/file'")


async def test_what_a_module_takes_from_os_is_what_it_is(running, tmp_path):
    spec = program(tmp_path, SERVER + "import helper\nserve(lambda text: eval(text))\n")
    (tmp_path / "program/helper.py").write_text(
        "from os import getcwd, urandom\nimport os, random, threading, builtins"
    )
    process, listener = await forked(running, spec)
    for taken in (
        "getcwd",
        "urandom",
        "os.open",
        "builtins.open",
        "os.environ.__class__.__getitem__",
        "random.Random.seed",
    ):
        assert await value(process, listener, f"'importing' not in repr(helper.{taken}.__class__) and "
                           f"getattr(helper.{taken}, '__module__', None) != '<trunkline>'")  # fmt: skip


async def test_a_first_process_that_closes_what_it_does_not_know_makes_no_template(running, tmp_path, caplog):
    spec = program(tmp_path, SERVER + "import os\nos.closerange(3, 200)\nserve(lambda text: eval(text))\n")
    why = await reason(running, spec)  # whether it has closed it before it was asked, or after
    assert "cannot be asked" in why or "ends while it imports" in why
    assert "Traceback" not in caplog.text
    await eventually(lambda: not running.supervisor.processes)


async def test_with_auto_a_fork_has_to_answer_alike(running, tmp_path):
    code = SERVER.replace('"name": "x"', '"name": sys.modules[serve.__module__].__dict__.get("NAME", "x")')
    code += "import os, helper\nNAME = str(helper.pid == os.getpid())\nserve(lambda text: eval(text))\n"
    spec = program(tmp_path, code)
    (tmp_path / "program/helper.py").write_text("import os; pid = os.getpid()")
    why = await reason(running, replace(spec, start="auto"))
    assert why == "a fork does something else: its answer to `initialize` differs"
    assert running.value("trunkline_fork_template_failures_total", reason="differs") == 1
    await forked(running, replace(spec, version=2))  # who asks for it gets it


async def test_sessions_are_executed_while_a_template_that_died_is_made_anew(running, tmp_path):
    spec = program(tmp_path, EVALUATES)
    process, listener = await forked(running, spec)
    (template,) = running.supervisor.forking.templates
    os.kill(template.process.pid, signal.SIGKILL)
    await template.process.wait_gone()
    assert running.supervisor.forking.why_not(spec) == "its template has ended"
    assert (await running.supervisor.spawn(spec, running.gone.append)).origin.reason == "its template has ended"
    assert await value(process, listener, "1 + 1") == 2
    running.supervisor.forking.forget(spec.key)
    await forked(running, spec)


async def test_many_sessions_open_while_the_template_is_killed(running, tmp_path):
    """Each gets a process: a fork, or one that is executed."""
    spec = program(tmp_path, EVALUATES)
    await forked(running, spec)
    (template,) = running.supervisor.forking.templates
    opened: list[BackendProcess] = []

    async def open_one() -> None:
        opened.append(await running.supervisor.spawn(spec, running.gone.append))

    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(open_one)
            if number == 6:
                await anyio.sleep(0.01)
                os.kill(template.process.pid, signal.SIGKILL)
    assert len(opened) == 12
    for process in opened:
        listener = Listener()
        process.attach(listener)
        assert await value(process, listener, "6 * 7") == 42


async def test_a_template_that_does_not_answer_is_given_up(running, tmp_path, monkeypatch):
    spec = program(tmp_path, EVALUATES)
    await forked(running, spec)
    monkeypatch.setattr("app.processes.forking.start.FORK_S", 0.2)  # from now on: it has answered until here
    (template,) = running.supervisor.forking.templates
    os.kill(template.process.pid, signal.SIGSTOP)
    process = await running.supervisor.spawn(spec, running.gone.append)
    assert process.origin.reason == "the template did not fork: no answer in 0 s"
    await eventually(lambda: template.process not in running.supervisor.processes)


async def test_changed_files_make_another_template(running, tmp_path):
    spec = program(tmp_path, SERVER + "import helper\nserve(lambda text: eval(text))\n")
    helper = tmp_path / "program/helper.py"
    helper.write_text("version = 1")
    process, listener = await forked(running, spec)
    assert await value(process, listener, "helper.version") == 1
    helper.write_text("version = 22")
    await anyio.sleep(1.1)  # how old the knowledge of files may be
    process = await running.supervisor.spawn(spec, running.gone.append)
    assert process.origin.start == "exec"
    process, listener = await forked(running, spec)
    assert await value(process, listener, "helper.version") == 22


async def test_the_template_that_was_not_used_for_longest_makes_room(tmp_path):
    async with forking(tmp_path, Tier.BASE, forking=ForkingOptions(most=2)) as running:
        specs = [program(tmp_path, EVALUATES, str(number), env={}) for number in range(3)]
        specs = [replace(spec, name=f"server-{number}") for number, spec in enumerate(specs)]
        for spec in (specs[0], specs[1], specs[0], specs[2]):
            await forked(running, spec)
        kept = {template.spec.name for template in running.supervisor.forking.templates}
        assert kept == {"server-0", "server-2"}
        await eventually(lambda: sum(each.is_template for each in running.supervisor.processes) == 2)


async def test_a_tenant_s_many_templates_make_room_for_another_s_and_for_each_other(tmp_path):
    async with forking(tmp_path, Tier.BASE, forking=ForkingOptions(most=2)) as running:
        spec = program(tmp_path, EVALUATES)
        many = [replace(spec, tenant="many", name=f"server-{number}") for number in range(3)]
        for each in (many[0], many[1], replace(spec, tenant="few"), many[2]):
            await forked(running, each)
        assert {template.spec.key for template in running.supervisor.forking.templates} == {
            ("few", spec.name), ("many", "server-2"),
        }  # fmt: skip


async def test_imports_that_never_end_keep_no_other_tenant_from_its_template(tmp_path):
    async with forking(tmp_path, Tier.BASE, forking=ForkingOptions(most=3)) as running:
        spec = program(tmp_path, SERVER + "import helper\nserve(lambda text: eval(text))\n")
        (tmp_path / "program/helper.py").write_text(
            "import threading, traceback\n"
            "if any(each.name == 'preload' for each in traceback.extract_stack()):\n    threading.Event().wait()\n"
        )
        hanging = [replace(spec, tenant="hangs", name=f"server-{number}") for number in range(4)]
        for each in hanging:
            await running.stop(await running.supervisor.spawn(each, running.gone.append))
        good = replace(console_script("mcp-server-time"), tenant="waits")
        await forked(running, good)


def says(tmp_path: Path, word: str) -> BackendSpec:
    """A program whose imports say this in the template's name: the backend's own code runs in it."""
    (tmp_path / "program").mkdir()
    (tmp_path / "program/helper.py").write_text(
        "import os, traceback\n"
        "if any(each.name == 'preload' for each in traceback.extract_stack()):\n"
        "    places = [name for name in os.listdir('/proc/self/fd') if int(name) > 2]\n"
        "    for name in places:\n"
        f"        try: os.write(int(name), {word.encode()!r})\n"
        "        except OSError: pass\n"
    )
    return program(tmp_path, SERVER + "import helper\nserve(lambda text: eval(text))\n")


@pytest.mark.parametrize(
    "word",
    ["[" * 5000, "[]", '{"findings": [1]}', '{"loaded": 1, "files": [5]}', '{"findings": 5, "files": {}}', "no JSON"],
    ids=range(6),
)
async def test_a_template_that_says_anything_else_is_none(running, tmp_path, caplog, word):
    assert await reason(running, says(tmp_path, word)) == "what its process says of its imports cannot be read"
    assert not [each for each in caplog.records if each.exc_info]


async def test_a_template_that_says_much_is_quoted_in_part(running, tmp_path):
    findings = [[str(number) * 3000, "y" * 3000, []] for number in range(5)]
    found = await reason(running, says(tmp_path, json.dumps({"findings": findings})))
    assert found.startswith("its imports leave 000")
    assert len(found) < 2000


async def test_a_template_that_nobody_uses_ends(tmp_path):
    async with forking(tmp_path, Tier.BASE) as running:
        process, listener = await forked(running, program(tmp_path, EVALUATES))
        running.supervisor.forking.options = ForkingOptions(
            idle_s=0.3
        )  # not before it has forked, which may take longer
        await eventually(lambda: running.supervisor.forking.templates == [])
        await eventually(lambda: running.supervisor.processes == [process])
        assert await value(process, listener, "2 + 2") == 4


async def test_a_changed_backend_gets_another_template(running, tmp_path):
    spec = program(tmp_path, EVALUATES, env={"X": "1"})
    await forked(running, spec)
    process, listener = await forked(running, replace(spec, env={"X": "2"}, version=2))
    assert await value(process, listener, "__import__('os').environ['X']") == "2"
    assert len(running.supervisor.forking.templates) == 1


@pytest.mark.parametrize("late", ["template", "making"])
async def test_a_template_of_one_that_is_gone_is_not_that_of_its_namesake(running, tmp_path, late):
    """A check that began before the backend, or its tenant, was removed and made again: versions begin anew, and a new
    session was a fork of the old program, with its environment."""
    spec = program(tmp_path, "import settings\n" + EVALUATES, env={"X": "old"}, made=1)
    (tmp_path / "program" / "settings.py").write_text("import os; X = os.environ['X']\n")
    running.supervisor.forking.forget(spec.key)  # it is removed
    if late == "template":
        assert await running.supervisor.forking.settled(spec) == ""
    else:
        (await running.supervisor.forking.start_of(spec)).close()
    process, listener = await forked(running, replace(spec, env={"X": "new"}, made=2))
    assert await value(process, listener, "settings.X") == "new"


async def test_nothing_is_left_when_the_node_stops(tmp_path):
    async with forking(tmp_path) as running:
        spec = program(tmp_path, EVALUATES)
        process, _ = await forked(running, spec)
        (template,) = running.supervisor.forking.templates
        pids = [process.pid, template.process.pid]
    assert [pid for pid in pids if os.path.exists(f"/proc/{pid}")] == []
    assert os.listdir(tmp_path / "homes/acme/private") == []


async def test_a_node_that_stops_while_a_template_is_made_leaves_nothing(tmp_path):
    async with forking(tmp_path) as running:
        await running.supervisor.spawn(console_script("mcp-server-time"), running.gone.append)
        await eventually(lambda: any(each.is_template and each.pid for each in running.supervisor.processes))
        pids = [each.pid for each in running.supervisor.processes if each.pid]
    assert [pid for pid in pids if os.path.exists(f"/proc/{pid}")] == []
    assert os.listdir(tmp_path / "homes/acme/private") == []


@needs_bubblewrap
@pytest.mark.parametrize("tier", [Tier.ASSISTED, Tier.NAMESPACES], ids=lambda tier: tier.name.lower())
async def test_a_spawner_that_dies_while_rooms_are_made_leaves_nothing(tmp_path, tier):
    """Not even a zombie: with one of them the namespace of a template stays, and its first process."""
    before = set(tree.children(os.getpid()))
    async with forking(tmp_path, tier) as running:
        spec = program(tmp_path, EVALUATES)
        await forked(running, spec)

        async def open_one() -> None:
            with suppress(BackendExited):  # it ran already
                await running.supervisor.spawn(spec, running.gone.append)

        client = running.supervisor._spawner
        async with anyio.create_task_group() as tasks:
            for _ in range(16):
                tasks.start_soon(open_one)
            await eventually(lambda: len(tree.children(client._spawner.pid)) > 8)
            os.kill(client._spawner.pid, signal.SIGKILL)
        await eventually(lambda: client._spawner is not None and not client._clean_ups)
        assert set(tree.children(os.getpid())) - before == {client._spawner.pid}


async def test_a_fork_that_is_over_its_memory_is_killed_alone(running, tmp_path):
    spec = program(tmp_path, EVALUATES)
    spec = replace(spec, limits=replace(spec.limits, memory_mb=64))
    one, heard = await forked(running, spec)
    other, listener = await forked(running, spec)
    one.send(b'{"id": 1, "params": {"expression": "len(bytearray(200 << 20))"}}')
    exit = await heard.exit()
    if one.is_limited_by_kernel:
        assert exit.limit == "memory"
    else:
        assert "MemoryError" in exit.description + "".join(exit.stderr) or exit.reason == "killed"
    assert await value(other, listener, "1 + 1") == 2
