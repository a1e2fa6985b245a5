"""…/activity: series over the steps of a quarter of an hour."""

from app.cluster.node_status.activity import STEPS, Moment
from app.domain import Limits

PATH = "/api/v1/tenants/acme/activity"
BUSY = Moment(180, 3, 1, 1 << 20, {"leased": 2, "warm": 1}, {40: 9, 60: 1}, {"timeout": 2})


async def test_each_series_has_a_value_for_each_step(rig):
    rig.node.did["acme"] = [BUSY]
    rig.node.silent = ["n9"]
    shown = (await rig.ask("GET", PATH)).json()
    assert {len(shown[name]) for name in ("sessions", "calls_per_second", "p50_s", "resident_bytes", "waiting")} == {
        STEPS
    }
    assert [shown[name][-1] for name in ("sessions", "calls_per_second", "waiting")] == [3, 2.0, 1]
    assert [shown["sessions"][-2], shown["p50_s"][-2]] == [0, None]
    assert shown["p50_s"][-1] < shown["p99_s"][-1]
    assert (shown["errors"]["timeout"][-1], shown["processes"]["leased"][-1]) == (2, 2)
    assert (shown["nodes"], shown["silent_nodes"], shown["summed_nodes"]) == (["n1"], ["n9"], [])
    assert shown["since"] == "1970-01-01T00:00:00Z"


async def test_the_memory_is_that_of_the_tenants_limit_or_of_the_nodes(rig):
    assert (await rig.ask("GET", PATH)).json()["memory_limit_bytes"] is None
    tenant = await rig.admin.tenants.get("acme")
    await rig.ask("PATCH", "/api/v1/tenants/acme", {"limits": {"memory_mb": 100}})
    assert tenant.limits == Limits()
    assert (await rig.ask("GET", PATH)).json()["memory_limit_bytes"] == 100 << 20
    assert (await rig.ask("GET", "/api/v1/activity")).json()["memory_limit_bytes"] == 8 << 30


async def test_one_node_can_be_asked_and_an_unknown_one_is_not_found(rig):
    assert (await rig.ask("GET", PATH + "?node=n1")).is_success
    assert (await rig.ask("GET", "/api/v1/activity?node=n2")).status_code == 404


async def test_all_tenants_together_are_for_administrators_of_the_platform(rig):
    key = await rig.key("acme", "tenant:admin")
    assert (await rig.ask("GET", "/api/v1/activity", key=key)).status_code == 403
    assert (await rig.ask("GET", PATH, key=await rig.key("acme", "tenant:read"))).is_success


async def test_a_client_that_has_the_others_asks_for_the_last_steps(rig):
    rig.node.did["acme"] = [BUSY]
    whole, last = (await rig.ask("GET", PATH)).json(), (await rig.ask("GET", PATH + "?steps=6")).json()
    for name in ("sessions", "p99_s", "waiting"):
        assert last[name] == whole[name][-6:]
    assert last["errors"]["timeout"] == whole["errors"]["timeout"][-6:]
    assert (last["until"], last["since"]) == (whole["until"], "1970-01-01T00:14:30Z")
    for wrong in ("0", "181", "x"):
        assert (await rig.ask("GET", f"{PATH}?steps={wrong}")).status_code == 422
