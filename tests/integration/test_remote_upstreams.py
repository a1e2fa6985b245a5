"""A server that is reached by URL: Trunkline behind Trunkline."""

from collections.abc import Iterator

import pytest

from tests.integration.gateway import Endpoint, Gateway, running_gateway
from tests.integration.remote import LOOPBACK, behind
from tests.integration.wire import wire


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The gateway before the shared one."""
    with running_gateway(tmp_path_factory.mktemp("front") / "data", **LOOPBACK) as gateway:
        yield gateway


async def test_a_session_goes_through_both(front: Gateway, echo: Endpoint):
    remote = behind(front, echo)
    async with wire(remote) as session:
        assert await session.call("echo", text="hello") == "hello"
        assert {tool["name"] for tool in (await session.request("tools/list"))["tools"]}
