"""A process that the kernel ends at a memory limit, up to what its callers are told."""

import os
import sys

import pytest

from app.domain import ProcessLimits
from app.http.errors import rpc_error
from app.jail.sandbox.cgroup_roots import open_roots
from app.jail.spawner.client import Command, SpawnerClient
from app.jail.spawner.wire import Confinement
from app.processes.pipes import PipeLimits
from app.processes.process import BackendProcess
from tests.processes.rig import Listener, as_it_is, spec_of


@pytest.fixture
def roots():
    roots = open_roots()
    yield roots
    roots.close()


@pytest.fixture
async def client():
    client = SpawnerClient()
    await client.start()
    yield client
    await client.aclose()


@pytest.mark.parametrize(
    ("limits", "tenant_mb", "limit", "words", "whose"),
    [
        (ProcessLimits(memory_mb=64), None, "memory", "it needed more memory than its 64 MiB", "backend"),
        (ProcessLimits(memory_mb=900), 64, "tenant_memory", "more memory than the tenant has", "tenant"),
    ],
)
async def test_callers_learn_which_limit_ended_the_process_and_who_can_raise_it(
    client, roots, limits, tenant_mb, limit, words, whose
):
    if "memory" not in roots.directories:
        pytest.skip(f"no control groups for memory: {roots.missing['memory']}")
    spec = spec_of("glutton", limits=limits)
    process, listener = BackendProcess(spec, client, PipeLimits(), lambda process: None), Listener()
    process.attach(listener)
    env = {"PATH": os.environ["PATH"]}
    confinement: Confinement = {"cgroup": roots.cgroup("acme", limits, tenant_mb)}
    await process.start(as_it_is(Command([sys.executable, *spec.args], env, confinement=confinement)))
    process.send(b"memory 300")
    exit = await listener.exit()
    assert (exit.reason, exit.limit) == ("killed", limit)
    assert exit.description.endswith(words)
    answer = rpc_error(exit.error(hint="It ended before it answered `initialize`."), b"1")
    assert b'"limit":"%s"' % limit.encode() in answer
    assert b"`limits.memory_mb` of the %s" % whose.encode() in answer


async def test_a_process_that_is_stopped_or_dies_otherwise_has_reached_no_limit(client, roots):
    spec = spec_of("glutton")
    process, listener = BackendProcess(spec, client, PipeLimits(), lambda process: None), Listener()
    process.attach(listener)
    confinement: Confinement = {"cgroup": roots.cgroup("acme", ProcessLimits(memory_mb=64))}
    await process.start(
        as_it_is(Command([sys.executable, *spec.args], {"PATH": os.environ["PATH"]}, confinement=confinement))
    )
    process.kill("floods")
    exit = await listener.exit()
    assert (exit.reason, exit.limit) == ("killed", "")
    assert b'"limit"' not in rpc_error(exit.error(), b"1")
