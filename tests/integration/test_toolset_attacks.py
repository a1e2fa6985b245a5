"""A member of a toolset that means harm spoils nothing for the other members, the other sessions and the node."""

import sys
from collections.abc import Iterator

import anyio
import pytest

from tests.integration.gateway import ROOT, Gateway, running_gateway
from tests.integration.toolboxes import TOOLBOX, Toolset, toolboxes
from tests.integration.wire import wire

TRICKSTER = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/trickster.py")]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("toolset-attacks") / "data") as gateway:
        yield gateway


def beside_a_trickster(gateway: Gateway, how: str) -> Toolset:
    """A toolset of a trickster (`bad`) and a toolbox (`red`)."""
    tenant = gateway.add_tenant()
    gateway.add_backend(tenant, "bad", TRICKSTER[0], [*TRICKSTER[1:], how])
    gateway.add_backend(tenant, "red", TOOLBOX[0], [*TOOLBOX[1:], "red"])
    return Toolset(gateway, tenant, [{"backend": "bad"}, {"backend": "red"}])


@pytest.mark.parametrize("how", ["quits", "ponders"])
async def test_a_member_that_is_lost_while_it_is_asked_for_its_lists_takes_nobody_along(
    gateway: Gateway, how: str
) -> None:
    async with wire(toolboxes(gateway, "blue")) as other:
        async with wire(beside_a_trickster(gateway, how)) as session:
            assert await session.call("bad_say") == how
            assert await session.call("red_say", text="hi") == "red: hi"
            await anyio.sleep(0.2)
        assert await other.call("blue_say", text="hi") == "blue: hi"
    await gateway.wait_for_backends(0)


async def test_a_member_that_asks_before_it_answers_is_listed_and_called(gateway: Gateway) -> None:
    toolset = beside_a_trickster(gateway, "asks")
    assert toolset.made["shown_tools"][0] == "bad_say"
    async with wire(toolset) as session:
        assert await session.call("bad_say") == "asks"


async def test_a_member_of_many_mib_is_named_and_hides_nothing(gateway: Gateway) -> None:
    toolset = beside_a_trickster(gateway, "boasts")
    assert "MiB" in toolset.made["status"][0]["problem"]
    async with wire(toolset) as session:
        assert await session.call("red_say", text="hi") == "red: hi"
