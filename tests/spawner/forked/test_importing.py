"""What programs do at their imports: a fork has it done as a process that is executed, or is not made at all."""

import pytest

from app.sandbox.tiers import Tier
from tests.processes.forking.rig import SERVER, forked, forking, known, program, value
from tests.sandbox.inside import needs_bubblewrap

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
