"""Real things for tests to talk to: a gateway per worker, and gateways of a test's own."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.gateway import ECHO, Endpoint, Gateway, running_gateway

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
