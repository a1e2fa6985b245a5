"""Images behind a real gateway, with a stand-in for the engine: their sessions, and what a killed node leaves."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.backends.images.rig import STATE, StandIn
from tests.integration.gateway import ECHO, Gateway, running_gateway, until
from tests.integration.wire import wire

LINE = ["docker", "run", "-i", "--rm", "localhost/echo"]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn(tmp_path / "engine")
    found.add("localhost/echo", *ECHO)
    monkeypatch.setenv(STATE, str(found.state))
    return found


async def test_each_session_has_a_container_that_ends_with_it(
    start_gateway: Callable[..., Gateway], engine: StandIn
) -> None:
    gateway = start_gateway(CONTAINER_ENGINE=engine.name)
    endpoint = gateway.endpoint(LINE, env={"TOKEN": "s3cret"})
    path = f"/tenants/{endpoint.tenant}/backends/{endpoint.name}"
    shown = gateway.api("GET", path)
    assert [shown["package"][name] for name in ("registry", "name", "version")] == ["oci", "localhost/echo", "latest"]
    assert shown["sandbox_report"][0]["enforced"] == []
    assert "a container engine confines it" in shown["sandbox_report"][0]["missing"]["files"]
    async with wire(endpoint) as first, wire(endpoint) as second:
        assert await first.call("echo", text="hello") == "hello"
        assert await second.call("echo", text="you") == "you"
        assert [each["env"]["TOKEN"] for each in engine.containers] == ["s3cret", "s3cret"]
    await until(lambda: engine.containers == [])
    checked = gateway.api("POST", f"{path}:check")
    assert (checked["ok"], checked["missed"]) == (True, [])
    await until(lambda: engine.containers == [])
    async with wire(endpoint) as session:
        await session.call("echo", text="until the end")
        gateway.stop()
    assert engine.containers == []
    assert list((gateway.data_dir / "containers").iterdir()) == []


async def test_nothing_is_left_of_a_node_that_was_killed_when_the_next_one_is_ready(
    tmp_path: Path, engine: StandIn
) -> None:
    data = tmp_path / "data"
    # Like a container of a real engine it goes on when nobody is there any more.
    engine.add("localhost/stays", "sh", "-c", '"$@"; exec sleep 600', "sh", *ECHO)
    for _ in range(5):
        with running_gateway(data, CONTAINER_ENGINE=engine.name) as gateway:
            assert engine.containers == []
            endpoint = gateway.endpoint([*LINE[:-1], "localhost/stays"])
            async with AsyncExitStack() as stack:
                for number in range(4):
                    session = await stack.enter_async_context(wire(endpoint))
                    assert await session.call("echo", text=str(number)) == str(number)
                gateway.kill()
                await until(lambda: not gateway.backends())
        assert len(engine.containers) == 4
    with running_gateway(data, CONTAINER_ENGINE=engine.name):
        assert engine.containers == []
    assert list((data / "containers").iterdir()) == []


async def test_a_node_without_an_engine_says_what_to_do(start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway()
    body = {"name": "time", "command": "docker", "args": LINE[1:]}
    refused = gateway.api("POST", "/tenants/default/backends", body, expect=422)
    assert "have a platform administrator set CONTAINER_ENGINE to podman or docker" in refused["detail"]
    document = {"mcpServers": {"time": {"command": "docker", "args": LINE[1:]}}}
    imported = gateway.api("POST", "/tenants/default/backends:import", {"document": document, "apply": True})
    (entry,) = imported["entries"]
    assert entry["outcome"] != "created"
    assert "set CONTAINER_ENGINE" in " ".join(entry["problems"])
