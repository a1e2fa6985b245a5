"""A member of a toolset that means harm spoils nothing for the other members, the other sessions and the node."""

import sys
from collections.abc import Iterator

import anyio
import pytest

from tests.integration.gateway import ROOT, Gateway, running_gateway
from tests.integration.toolboxes import TOOLBOX, Toolset, toolboxes
from tests.integration.wire import RpcError, wire

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


async def test_a_member_that_asks_before_it_answers_is_listed_and_called(gateway: Gateway) -> None:
    toolset = beside_a_trickster(gateway, "asks")
    assert toolset.made["shown_tools"][0] == "bad_say"
    async with wire(toolset) as session:
        assert await session.call("bad_say") == "asks"


async def test_a_task_under_the_id_of_another_member_is_refused_and_not_mixed_up(gateway: Gateway) -> None:
    tenant = gateway.add_tenant()
    for name in ("a", "b"):
        gateway.add_backend(tenant, name, TRICKSTER[0], [*TRICKSTER[1:], "claims", name])
    async with wire(Toolset(gateway, tenant, [{"backend": "a"}, {"backend": "b"}])) as session:
        made = await session.request("tools/call", {"name": "a_say", "task": {}})
        with pytest.raises(RpcError, match="another server"):
            await session.request("tools/call", {"name": "b_say", "task": {}})
        assert (await session.request("tasks/get", {"taskId": made["task"]["taskId"]}))["x"] == "a"


async def test_a_member_that_changes_without_end_leaves_the_others_their_time(gateway: Gateway) -> None:
    async with wire(beside_a_trickster(gateway, "restless")) as session:
        await session.call("bad_tool0")
        with anyio.fail_after(60):
            for _ in range(200):
                assert await session.call("red_say", text="hi") == "red: hi"


async def test_a_toolset_in_the_place_of_a_member_is_named_and_started_by_nobody(gateway: Gateway) -> None:
    toolset = toolboxes(gateway, "red", "blue")
    gateway.api("DELETE", f"/tenants/{toolset.tenant}/backends/red")
    inner = {"name": "red", "members": [{"backend": "blue"}]}
    gateway.api("POST", f"/tenants/{toolset.tenant}/toolsets", inner)
    async with wire(toolset) as session:
        with pytest.raises(RpcError, match=r"Unknown tool|is a toolset now"):
            await session.call("red_say")
        assert await session.call("blue_say", text="hi") == "blue: hi"


async def test_a_member_that_the_limits_leave_no_room_for_says_so(gateway: Gateway) -> None:
    toolset = toolboxes(gateway, "red", "blue")
    gateway.api("PATCH", f"/tenants/{toolset.tenant}/toolsets/all", {"timeouts": {"initialize_s": 5}})
    gateway.api("PATCH", f"/tenants/{toolset.tenant}", {"limits": {"processes": 1}})
    async with wire(toolset) as session:
        assert await session.call("red_say", text="hi") == "red: hi"
        assert "no room" in str(await session.ask("blue_say"))
        assert await session.call("red_say", text="hi") == "red: hi"
