"""`state: keep` from registration to disk: what a principal's processes find again, who else does not, and how much it
may be. In the highest tier of this machine, and without namespaces."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.gateway import ROOT, Endpoint, Gateway, until
from tests.integration.test_limits import INITIALIZE
from tests.integration.wire import RpcError, Wire, error_of, wire

DIARY = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/diary.py")]


@pytest.fixture(params=["as high as this machine has", "without namespaces"])
def start(
    request: pytest.FixtureRequest,
    start_gateway: Callable[..., Gateway],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Gateway]:
    if request.param == "without namespaces":
        monkeypatch.setenv("PATH", str(tmp_path))  # there is no bubblewrap
    return start_gateway


async def asked(session: Wire, tool: str, **arguments: Any) -> Any:
    return json.loads(await session.call(tool, **arguments))


async def written(endpoint: Endpoint, *, key: str | None = None) -> Any:
    """What a process of a new session finds."""
    caller = Endpoint(endpoint.gateway, endpoint.tenant, endpoint.name, endpoint.base, key or endpoint.key)
    async with wire(caller) as session:
        return await asked(session, "read")


async def test_a_principal_finds_its_files_again_and_nobody_else_does(
    start: Callable[..., Gateway],
) -> None:
    gateway = start()
    endpoint = gateway.endpoint(DIARY, state="keep")
    other = gateway.endpoint(DIARY, state="keep", tenant=endpoint.tenant)
    stranger = gateway.endpoint(DIARY, state="keep")
    async with wire(endpoint) as session:
        assert await asked(session, "write", name="note", text="mine") == {"note": "mine"}
        assert await written(endpoint) == {"note": "mine"}  # while the first one runs
        assert await written(endpoint, key=gateway.key(endpoint.tenant)) == {}  # another principal
    assert await written(endpoint) == {"note": "mine"}
    assert await written(other, key=endpoint.key) == {}  # another backend
    assert await written(stranger) == {}  # another tenant
    check = gateway.api("POST", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:check")
    assert check["ok"], check
    gateway.stop()
    again = type(gateway)(gateway.data_dir, admin_key=gateway.admin_key)
    try:
        endpoint.base = endpoint.base.replace(gateway.url, again.url)
        assert await written(endpoint) == {"note": "mine"}
        again.stop()
    finally:
        again.close()


async def test_a_variable_that_names_the_home_leads_to_what_lasts(start: Callable[..., Gateway]) -> None:
    endpoint = start().endpoint(DIARY, state="keep", env={"DIARY": "${home}/."})
    async with wire(endpoint) as session:
        assert await asked(session, "write", name="note", text="mine") == {"note": "mine"}
    assert await written(endpoint) == {"note": "mine"}


async def test_a_process_that_is_over_its_disk_is_killed_and_none_is_started_until_there_is_room(
    start: Callable[..., Gateway],
) -> None:
    gateway = start()
    endpoint = gateway.endpoint(DIARY, state="keep", limits={"disk_mb": 4})
    async with wire(endpoint) as session:
        with pytest.raises(RpcError) as caught:
            await session.call("fill", mib=6, where="HOME")
        assert (caught.value.reason, caught.value.data["limit"]) == ("backend_exited", "disk")
        assert "limits.disk_mb" in str(caught.value)
    await until(lambda: not gateway.backends(), 20)
    async with httpx2.AsyncClient(timeout=30) as http:
        refused = error_of(await Wire(http, endpoint).post(INITIALIZE))
    assert refused.data["limit"] == "disk"
    assert "limits.disk_mb" in str(refused)
    assert gateway.metrics()['trunkline_limits_hit_total{limit="disk"}'] >= 2
    assert gateway.data_dir.name not in str(refused)
    gateway.api("PATCH", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}", {"limits": {"disk_mb": 64}})
    assert await written(endpoint) == {}


async def test_home_and_temporary_files_of_a_process_are_limited_together(start: Callable[..., Gateway]) -> None:
    gateway = start()
    endpoint = gateway.endpoint(DIARY, limits={"disk_mb": 4})
    async with wire(endpoint) as session:
        caught = None
        try:
            await session.call("write", name="note", text="x" * (2 << 20))
            answer = await asked(session, "fill", mib=3, where="TMPDIR")
        except RpcError as error:
            caught = error
    if caught is None:
        assert "No space left" in answer
    else:
        assert (caught.reason, caught.data["limit"]) == ("backend_exited", "disk")
        assert "limits.disk_mb" in str(caught)
