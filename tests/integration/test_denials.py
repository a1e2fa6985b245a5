"""What a sandbox or a limit denies in a call is seen by administrators; the client gets what the server has said."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.gateway import ROOT, Endpoint, Gateway, running_gateway, until
from tests.integration.needy import three_places
from tests.integration.test_trees import Bare, Unwrapped
from tests.integration.wire import RpcError, Wire, wire
from tests.jail.sandbox.inside import SYSTEM_PYTHON

TRIES = [SYSTEM_PYTHON, str(ROOT / "tests/servers/tries.py")]


@pytest.fixture(
    scope="module",
    params=[
        None,
        pytest.param(Unwrapped, marks=pytest.mark.long, id="unwrapped"),
        pytest.param(Bare, marks=pytest.mark.long, id="bare"),
    ],
)
def tiered(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, gateway: Gateway
) -> Iterator[Gateway]:
    """In the highest tier of this machine, without namespaces, and with nothing but limits."""
    if request.param is None:
        yield gateway
        return
    with running_gateway(tmp_path_factory.mktemp("tier") / "data", request.param) as other:
        yield other


@pytest.fixture
def place() -> Iterator[Path]:
    with three_places() as found:
        yield found


async def denied(endpoint: Endpoint, session: Wire, tool: str, **arguments: Any) -> tuple[str, list[tuple[str, str]]]:
    """What the client gets, and what administrators see of the process then."""
    text = await session.call(tool, **arguments)
    (process,) = endpoint.gateway.serving(endpoint.tenant)
    path = f"/tenants/{endpoint.tenant}/processes/{process['id']}/stderr"
    shown = endpoint.gateway.api("GET", path)["denials"]
    assert process["denied"] >= len(shown)
    return text, [(each["kind"], each["what"]) for each in shown]


def failures(endpoint: Endpoint, key: str | None = None) -> list[dict[str, Any]]:
    path = f"/tenants/{endpoint.tenant}/failures"
    found: list[dict[str, Any]] = endpoint.gateway.api("GET", path, key=key)["items"]
    return found


def logged(gateway: Gateway, endpoint: Endpoint) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in gateway.log.read_text().splitlines() if endpoint.name in line]
    return [each for each in lines if each["message"].startswith("A call failed")]


async def test_a_file_that_a_tool_may_not_write_is_seen_everywhere(tiered: Gateway, place: Path) -> None:
    if isinstance(tiered, Bare):
        pytest.skip("tier 0 keeps no file from anybody")
    endpoint = tiered.endpoint(TRIES, sandbox={"read": [str(place)]})
    before = tiered.metrics()['trunkline_denials_total{kind="file"}']
    async with wire(endpoint) as session:
        text, seen = await denied(endpoint, session, "write", path=f"{place}/one/file")
        assert str(place) in text
        assert seen == [("file", f"{place}/one/file")]
        (failure,) = failures(endpoint)
        assert (failure["kind"], failure["tool"], failure["before_handshake"]) == ("denied", "write", False)
        assert f"file was denied: {place}/one/file" in failure["detail"]
        assert [each["what"] for each in failure["denials"]] == [f"{place}/one/file"]
        assert len(failure["affected"]) == 1
        reader = tiered.key(endpoint.tenant, ["tenant:read"])
        (of_reader,) = failures(endpoint, reader)
        assert (of_reader["denials"], of_reader["tool"]) == ([], None)
        (line,) = logged(tiered, endpoint)
        assert line["denied"] == [f"file: {place}/one/file"]
    await until(lambda: tiered.metrics()['trunkline_denials_total{kind="file"}'] == before + 1, 30)


async def test_who_asked_for_a_method_that_is_not_there_has_tried_nothing(gateway: Gateway) -> None:
    """Of calls that fail one a second is looked at: this is none of them."""
    endpoint = gateway.endpoint(TRIES)
    async with wire(endpoint) as session:
        for _ in range(2):
            with pytest.raises(RpcError):
                await session.request("prompts/list")
        await denied(endpoint, session, "say", words="connect ECONNREFUSED db.internal:5432")
    assert [each["detail"] for each in failures(endpoint)] == ["address was denied: db.internal:5432"]
    check = gateway.api("POST", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:check")
    assert [(each["what"], each["proposal"]) for each in check["missed"]] == [("db.internal:5432", None)]
    assert not check["patch"]  # a client can have a tool ask for anything


async def test_threads_beyond_the_limit_are_counted_at_the_call_that_fails(tiered: Gateway) -> None:
    endpoint = tiered.endpoint(TRIES, limits={"pids": 40})
    async with wire(endpoint) as session:
        text, seen = await denied(endpoint, session, "threads", count=100)
        assert "start new thread" in text
        assert ("pids", "its 40 processes and threads (limits.pids)") in seen
        (failure,) = failures(endpoint)
        assert "pids was denied" in failure["detail"]


async def test_a_child_that_is_killed_for_want_of_memory_is_counted_or_ends_the_process(tiered: Gateway) -> None:
    """By which version of control groups this machine has: one kills a process, the other the whole group."""
    endpoint = tiered.endpoint(TRIES, limits={"memory_mb": 64})
    async with httpx2.AsyncClient(timeout=60) as http:
        session = Wire(http, endpoint)
        await session.open()
        body = {"jsonrpc": "2.0", "id": "m", "method": "tools/call"}
        response = await session.post({**body, "params": {"name": "hoard", "arguments": {"mib": 200}}})
    if "error" in response.json():
        assert "limits.memory_mb" in response.json()["error"]["data"]["hint"]
    (failure,) = failures(endpoint)
    assert ("memory", "its 64 MiB of memory (limits.memory_mb)") in [
        (each["kind"], each["what"]) for each in failure["denials"]
    ]


async def test_a_full_disk_is_what_the_tool_says(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(TRIES, limits={"disk_mb": 4})
    async with wire(endpoint) as session:
        _, seen = await denied(endpoint, session, "fill", path="big", mib=16)
    assert [kind for kind, _ in seen] == ["disk"]


async def test_an_address_without_a_network_is_what_the_tool_says(tiered: Gateway) -> None:
    if isinstance(tiered, Bare):
        pytest.skip("tier 0 keeps no address from anybody")
    endpoint = tiered.endpoint(TRIES)
    async with wire(endpoint) as session:
        _, seen = await denied(endpoint, session, "connect", host="127.0.0.1", port=9)
    assert [kind for kind, _ in seen] == ["address"]


async def test_what_the_proxy_of_web_refuses_is_counted_whatever_the_tool_says(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(TRIES, sandbox={"network": "web"})
    async with wire(endpoint) as session:
        _, seen = await denied(endpoint, session, "fetch", url="http://10.1.2.3/")
    assert seen == [("address", "10.1.2.3:80")]


async def test_what_only_stderr_says_is_seen_with_the_call_that_failed(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(TRIES, env={"TOKEN": "hunter22"})
    async with wire(endpoint) as session:
        words = "EROFS: read-only file system, open '/srv/hunter22/a'"
        _, seen = await denied(endpoint, session, "say", words=words, where="stderr")
    assert seen == [("file", "/srv/***/a")]


async def test_a_call_that_works_and_an_error_of_the_tool_s_own_are_no_denial(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(TRIES)
    async with wire(endpoint) as session:
        await session.call("works")
        _, seen = await denied(endpoint, session, "say", words="no such customer")
    assert (seen, failures(endpoint), logged(gateway, endpoint)) == ([], [], [])


async def test_who_fails_without_end_is_one_failure(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(TRIES)
    async with wire(endpoint) as session:
        for number in range(60):
            await denied(endpoint, session, "say", words=f"EROFS: read-only file system, open '/srv/{number}'")
        _, seen = await denied(endpoint, session, "say", words="x")
    assert len(seen) <= 20
    (failure,) = failures(endpoint)
    assert failure["times"] == len(logged(gateway, endpoint))
