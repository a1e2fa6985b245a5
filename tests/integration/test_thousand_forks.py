"""A thousand sessions of one template: nothing of one is in another."""

import json
import os
import signal
from pathlib import Path

import anyio
import pytest

from app.jail.sandbox.tiers import Tier
from tests.jail.sandbox.inside import needs_bubblewrap
from tests.jail.spawner.forked.test_inside import program_of
from tests.processes.forking.rig import SERVER, descriptors, forked, forking, program
from tests.processes.forking.rig import value as asked

SESSIONS, AT_ONCE = 1000, 8

# What it finds when it begins, and then it leaves something in every place that it can reach.
PROGRAM = (
    SERVER
    + """
import atexit, functools, os, random, signal, tempfile, uuid, helper

def may_write(place, token):
    try:
        with open(place + "/tried-" + token, "w"):
            os.remove(place + "/tried-" + token)
    except PermissionError:  # by Landlock, of which os.access does not know
        return False
    return True

def look(token):
    places = [each for each in (os.environ["HOME"], os.environ["TMPDIR"], "/dev/shm") if may_write(each, token)]
    found = {
        "drawn": [random.random(), helper.generator.random(), os.urandom(8).hex(), str(uuid.uuid4()), str(uuid.uuid1()),
                  next(tempfile._get_candidate_names())],
        "globals": helper.seen[:], "cached": helper.cached.cache_info().currsize,
        "environment": [name for name in os.environ if name.startswith("LEFT_")],
        "files": sorted(each for place in places for each in os.listdir(place)),
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
        "handlers": [str(signal.getsignal(signum)) for signum in (signal.SIGUSR1, signal.SIGALRM, signal.SIGCHLD)],
        "exits": atexit._ncallbacks(), "umask": os.umask(0o022), "cwd": os.getcwd(), "modules": "left" in sys.modules,
        "places": len(places),
    }
    helper.seen.append(token); helper.cached(token); os.environ["LEFT_" + token] = token; sys.modules["left"] = helper
    for place in places:
        open(place + "/left-" + token, "w").write(token)
    helper.kept.append(open(places[0] + "/left-" + token)); os.umask(0o077); random.seed(7); os.chdir("/")
    signal.signal(signal.SIGUSR1, lambda *_: None); atexit.register(print)
    return found

serve(lambda token: look(token))
"""
)
HELPER = """
import functools, random
seen, kept = [], []
generator = random.Random()

@functools.lru_cache
def cached(token):
    return token
"""


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "tier",
    [pytest.param(Tier.ASSISTED, marks=needs_bubblewrap), Tier.KERNEL],
    ids=lambda tier: tier.name.lower(),
)
async def test_nothing_of_a_thousand_sessions_is_in_another(tmp_path: Path, tier: Tier) -> None:
    if tier is Tier.ASSISTED and os.geteuid() != 0:
        tier = Tier.NAMESPACES
    spec = program(tmp_path, PROGRAM)
    (tmp_path / "program/helper.py").write_text(HELPER)
    found: list[dict[str, object]] = []
    pipes = set[str]()
    async with forking(tmp_path, tier) as running:
        first, _ = await forked(running, spec)
        await running.stop(first)
        turns = anyio.Semaphore(AT_ONCE)

        async def session(number: int) -> None:
            async with turns:
                process, listener = await forked(running, spec)
                found.append(await asked(process, listener, f"{number:04}"))
                open_now = set(descriptors(program_of(process)).values())
                assert pipes.isdisjoint(each for each in open_now if each.startswith("pipe:"))
                await running.stop(process)

        async with anyio.create_task_group() as sessions:
            for number in range(SESSIONS):
                sessions.start_soon(session, number)
    assert len(found) == SESSIONS
    for place in range(6):
        assert len({json.dumps(each["drawn"][place]) for each in found}) == SESSIONS  # type: ignore[index]
    same = {json.dumps({name: what for name, what in each.items() if name not in ("drawn", "cwd")}) for each in found}
    (one,) = map(json.loads, same)
    assert (one["globals"], one["cached"], one["environment"], one["files"]) == ([], 0, [], one["files"])
    assert not any(name.startswith("left-") for name in one["files"])
    assert (one["descriptors"], one["modules"]) == ([0, 1, 2], False)
    assert one["places"] == (2 if tier is Tier.KERNEL else 3)
    assert signal.SIGUSR1.name not in one["handlers"]
