"""A tool that is rejected at one node is withheld at the others, also if that node is slow to store it, or dies."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.from_thread
import anyio.to_thread
import httpx2
import psycopg
import pytest

from tests.cluster.redis.faulty_line import FaultyLine, faulty_line
from tests.integration.gateway import Endpoint, Gateway, until
from tests.integration.nodes import running_nodes
from tests.integration.toolboxes import TOOLBOX, Toolset
from tests.integration.wire import RpcError, Wire

SOON_S = 3.0  # after the answer: milliseconds, unless the machine is busy
POLLED_S = 6.0  # where nobody tells of it: the nodes look every two seconds, on a machine that may be busy
LATE_S = 0.1  # each answer of the database: a decision takes longer than two looks at the trail are apart

pytestmark = pytest.mark.timeout(180)


@dataclass
class Rig:
    """A toolbox that is pinned, alone and in a toolset, with an open session of each at the second node. `line` leads
    from the first node to the database."""

    first: Gateway
    other: Gateway
    line: FaultyLine
    path: str
    sessions: list[tuple[Wire, str]]  # and the name of the tool there

    def decide(self, what: str) -> None:
        """At the first node."""
        self.first.api("POST", f"{self.path}/tools:{what}", {"tools": ["say"]})

    async def become(self, outcome: str, within_s: float) -> None:
        """Waits until each open session says this."""
        with anyio.fail_after(within_s):
            while {await said(*each) for each in self.sessions} != {outcome}:
                await anyio.sleep(0.05)

    def status(self) -> str:
        """As the second node sees it."""
        items = self.other.api("GET", f"{self.path}/tools")["items"]
        return next(str(each["status"]) for each in items if each["tool"] == "say")


async def said(session: Wire, tool: str) -> str:
    try:
        return await session.call(tool, text="x")
    except RpcError as error:
        return error.reason or str(error)


@contextmanager
def line_to(database: str) -> Iterator[tuple[FaultyLine, str]]:
    """In a thread of its own, so that a test may wait for a node behind it. And the database's address at its end."""
    parsed = urlsplit(database)
    user, _, _ = parsed.netloc.rpartition("@")
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(faulty_line(database)) as line,
    ):
        yield line, parsed._replace(netloc=f"{user}@127.0.0.1:{urlsplit(line.url).port}").geturl()


@pytest.fixture
async def rig(tmp_path: Path, postgres_database: str) -> AsyncIterator[Rig]:
    with line_to(postgres_database) as (line, far), running_nodes(tmp_path, postgres_database, 0) as nodes:
        first, other = nodes.start(DATABASE_URL=far), nodes.start()
        await nodes.all_know_each_other()
        tenant = other.add_tenant()
        base = other.add_backend(tenant, "red", TOOLBOX[0], [*TOOLBOX[1:], "red"], pin="block")
        path = f"/tenants/{tenant}/backends/red"
        toolset = Toolset(other, tenant, [{"backend": "red"}])  # it is asked now
        other.api("POST", path + "/tools:approve", {})
        async with httpx2.AsyncClient(timeout=30) as http:
            alone = Wire(http, Endpoint(other, tenant, "red", base, toolset.key))
            rig = Rig(first, other, line, path, [(alone, "say"), (Wire(http, toolset), "red_say")])
            for session, _ in rig.sessions:
                await session.open()
            await rig.become("red: x", POLLED_S)
            yield rig
        line.delay_s = 0.0


async def test_a_rejection_by_a_node_with_a_slow_database_reaches_the_open_sessions_of_others(rig: Rig) -> None:
    rig.line.delay_s = LATE_S
    rig.decide("reject")
    rig.line.delay_s = 0.0
    await rig.become("tool_withheld", SOON_S)
    assert rig.status() == "rejected"
    rig.decide("approve")
    await rig.become("red: x", SOON_S)


async def test_a_rejection_by_a_node_that_dies_once_it_is_in_the_trail_holds(rig: Rig, postgres_database: str) -> None:
    trail = "SELECT count(*) FROM audit WHERE action = 'tool.reject' AND tenant = %s"
    tenant = rig.path.split("/")[2]
    rig.line.delay_s = LATE_S
    with psycopg.connect(postgres_database, autocommit=True) as database:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, reject_if_it_lives, rig)
            await until(lambda: database.execute(trail, (tenant,)).fetchone() == (1,), 60)
            rig.first.kill()
    await rig.become("tool_withheld", POLLED_S)
    assert rig.status() == "rejected"


def reject_if_it_lives(rig: Rig) -> None:
    with suppress(httpx2.TransportError):
        rig.decide("reject")
