"""What programs do at their imports: a fork has it done as a process that is executed, or is not made at all."""

import pytest

from app.jail.sandbox.tiers import Tier
from tests.jail.sandbox.inside import needs_bubblewrap
from tests.processes.forking.rig import SERVER, forked, forking, known, program, value

IMPORTS = SERVER + "import helper\nserve(lambda text: eval(text))\n"


@pytest.fixture(params=[Tier.BASE, pytest.param(Tier.NAMESPACES, marks=needs_bubblewrap)], ids=["base", "namespaces"])
async def running(request, tmp_path):
    async with forking(tmp_path, request.param) as running:
        yield running


def importing(tmp_path, code):
    spec = program(tmp_path, IMPORTS)
    (tmp_path / "program/helper.py").write_text(code)
    return spec


@pytest.mark.parametrize(
    ("code", "expression", "expected"),
    [
        ("import os\nos.chdir('/usr')", "__import__('os').getcwd()", "/usr"),
        (
            "import signal\nsignal.setitimer(signal.ITIMER_REAL, 3000)",
            "__import__('signal').alarm(0) > 2000",
            True,
        ),
        (
            "import os\nnothing = os.open(os.devnull, os.O_WRONLY)\nos.dup2(nothing, 2)\nos.close(nothing)",
            "__import__('os').readlink('/proc/self/fd/2')",
            "/dev/null",
        ),
        ("import os\nos.close(2)", "__import__('os').path.exists('/proc/self/fd/2')", False),
    ],
    ids=["working directory", "timer", "stderr elsewhere", "no stderr"],
)
async def test_what_a_fork_is_given_is_what_the_imports_have_made_of_it(running, tmp_path, code, expression, expected):
    process, listener = await forked(running, importing(tmp_path, code))
    assert await value(process, listener, expression) == expected
    assert running.supervisor.forking.templates[0].skipped == {"helper"}


@pytest.mark.parametrize(
    ("place", "name"),
    [("builtins", "open"), ("os", "open"), ("os", "urandom"), ("random", "random"), ("random.Random", "seed")],
)
async def test_what_an_import_has_put_in_the_place_of_a_function_stays_there(running, tmp_path, place, name):
    code = f"""
import builtins, os, random
before = {place}.{name}
def ours(*arguments, **named):
    return before(*arguments, **named)
{place}.{name} = ours
def stays():
    return {place}.{name} is ours and ours.__name__ == "ours" and type(before).__name__ != "_Through"
"""
    process, listener = await forked(running, importing(tmp_path, code))
    assert await value(process, listener, "helper.stays()")
    assert running.supervisor.forking.templates[0].skipped == set()


async def test_a_program_whose_output_cannot_be_flushed_is_forked(running, tmp_path):
    code = "import sys\nclass Guard:\n    def write(self, text): pass\nsys.stderr = Guard()"
    process, listener = await forked(running, importing(tmp_path, code))
    assert await value(process, listener, "type(sys.stderr).__name__") == "Guard"


async def test_an_import_that_leaves_a_daemon_is_not_forked(running, tmp_path):
    code = """
import os, time
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    for each in range(3):
        os.close(each)
    time.sleep(600)
    os._exit(0)
os.wait()
"""
    assert "its imports leave process" in await known(running, importing(tmp_path, code))


async def test_forks_draw_different_numbers_from_a_database_in_memory(running, tmp_path):
    code = """
import sqlite3
memory = sqlite3.connect(":memory:")
(token,), = memory.execute("select hex(randomblob(8))")
def draw():
    return [token, *memory.execute("select hex(randomblob(8))").fetchone()]
"""
    spec = importing(tmp_path, code)
    drawn = [await value(*await forked(running, spec), "helper.draw()") for _ in range(2)]
    assert len({*drawn[0], *drawn[1]}) == 4


async def test_a_fork_knows_the_number_of_its_own_thread(running, tmp_path):
    process, listener = await forked(running, importing(tmp_path, "import threading"))
    expression = "[helper.threading.main_thread().native_id, helper.threading.get_native_id()]"
    assert len(set(await value(process, listener, expression))) == 1


@needs_bubblewrap
async def test_a_file_that_an_import_leaves_in_shared_memory_is_in_each_fork(tmp_path):
    spec = importing(tmp_path, "open('/dev/shm/made', 'w').close()")
    async with forking(tmp_path, Tier.NAMESPACES) as running:
        process, listener = await forked(running, spec)
        assert await value(process, listener, "__import__('os').listdir('/dev/shm')") == ["made"]


@pytest.mark.parametrize("code", ["import faulthandler\nfaulthandler.dump_traceback_later(3600)", "import nested"])
async def test_a_module_whose_library_starts_a_thread_is_left_to_each_fork(running, tmp_path, code):
    spec = importing(tmp_path, code)
    (tmp_path / "program/nested.py").write_text("import faulthandler\nfaulthandler.dump_traceback_later(3600)")
    process, listener = await forked(running, spec)
    assert await value(process, listener, "len(__import__('os').listdir('/proc/self/task'))") == 2
    assert "helper" in running.supervisor.forking.templates[0].skipped


async def test_an_id_that_a_library_draws_at_an_import_is_a_fork_s_own(running, tmp_path):
    spec = importing(tmp_path, "from fastuuid import uuid4\ntoken = uuid4()")
    code = """
import ctypes
def uuid4():
    drawn = ctypes.c_uint32()
    ctypes.CDLL(None).getrandom(ctypes.byref(drawn), 4, 0)
    return drawn.value
"""
    (tmp_path / "program/fastuuid.py").write_text(code)
    drawn = [await value(*await forked(running, spec), "helper.token") for _ in range(2)]
    assert len(set(drawn)) == 2


async def test_the_directory_of_a_user_s_packages_is_below_the_home_of_a_fork(running, tmp_path):
    process, listener = await forked(running, importing(tmp_path, "import site"))
    home, base, place = await value(
        process, listener, "[__import__('os').environ['HOME'], helper.site.USER_BASE, helper.site.USER_SITE]"
    )
    assert base.startswith(home)
    assert place.startswith(home)
