"""Real things for tests to talk to: a gateway per worker, nodes per module, and gateways and nodes of a test's own."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import anyio
import httpx2
import pytest

from tests.integration.gateway import ECHO, Endpoint, Gateway, running_gateway
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.wire import Wire, wire

# bench/ is a folder of scripts; its clients are the fastest at hand.
sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The gateway that the tests of one worker share. Its end is a test as well: exit status 0, no process left."""
    with running_gateway(tmp_path_factory.mktemp("gateway") / "data") as gateway:
        yield gateway


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    """Starts gateways of the test's own: start_gateway(DRAIN_S="5"). Those still running are stopped at the end."""
    with ExitStack() as stack:
        count = 0

        def start(**settings: str) -> Gateway:
            nonlocal count
            count += 1
            return stack.enter_context(running_gateway(tmp_path / f"data-{count}", **settings))

        yield start


@pytest.fixture
def own_gateway(start_gateway: Callable[..., Gateway]) -> Gateway:
    """A gateway that the test may kill."""
    return start_gateway()


@pytest.fixture(scope="session")
def echo(gateway: Gateway) -> Endpoint:
    """The benchmarks' echo server behind the shared gateway."""
    return gateway.endpoint(ECHO)


@pytest.fixture
async def session(echo: Endpoint) -> AsyncIterator[Wire]:
    """An open session of the echo server."""
    async with wire(echo) as session:
        yield session


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres_database: str) -> Iterator[Nodes]:
    """Three nodes that the tests of one module share."""
    with running_nodes(tmp_path_factory.mktemp("nodes"), postgres_database, 1) as nodes:
        with ThreadPoolExecutor() as starts:  # two cores start two in the time of one
            for start in [starts.submit(nodes.start) for _ in range(2)]:
                start.result()
        anyio.run(nodes.all_know_each_other)
        nodes.settle()
        yield nodes


@pytest.fixture
async def own_nodes(tmp_path: Path, postgres_database: str) -> AsyncIterator[Nodes]:
    """Two nodes that the test may kill."""
    with running_nodes(tmp_path, postgres_database, 2) as nodes:
        await nodes.all_know_each_other()
        yield nodes


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    """A client that holds back no request."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(timeout=60, limits=limits) as http:
        yield http


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether the acceptance counts are asked for."""
    return bool(pytestconfig.getoption("--long"))
