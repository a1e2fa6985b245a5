"""…/backends with a `url`: who may, what goes with it, and values that are never shown."""

from typing import Any

import pytest

from app.auth.sealing import Sealer
from app.backends.upstreams.upstream_secrets import SecretOpener

PATH = "/api/v1/tenants/acme/backends"
SECRET = "Bearer s3cret-token"
FAR = {"name": "far", "url": "https://far.example/mcp", "headers": {"Authorization": SECRET}}
OPENER = SecretOpener(Sealer(b"s" * 32))


async def add(rig, status=201, key=None, **change):
    body = {name: value for name, value in {**FAR, **change}.items() if value is not None}
    answer = await rig.ask("POST", PATH, body, key=key)
    assert answer.status_code == status, answer.text
    assert SECRET not in answer.text
    return answer.json()


async def patch(rig, body, status=200, key=None):
    answer = await rig.ask("PATCH", PATH + "/far", body, key=key)
    assert answer.status_code == status, answer.text
    assert SECRET not in answer.text
    return answer.json()


async def test_a_value_is_sealed_and_never_shown(rig):
    made = await add(rig)
    assert (made["command"], made["url"], made["transport"]) == (None, FAR["url"], "auto")
    assert made["headers"] == {"Authorization": "***"}
    spec = await rig.admin.backends.get("acme", "far")
    assert SECRET not in repr(spec)
    assert OPENER(spec).headers == {"Authorization": SECRET}
    assert rig.heard == [("backend", "acme", "far")]
    trail = await rig.trail("acme")
    assert SECRET not in repr(trail)
    assert SECRET not in (await rig.ask("GET", "/api/v1/tenants/acme/backends")).text


async def test_values_stay_until_they_are_given_again(rig):
    await add(rig)
    shown = await patch(rig, {"headers": {"Authorization": "***", "X-Other": "two"}, "url": "https://far.example/v2"})
    assert shown["headers"] == {"Authorization": "***", "X-Other": "***"}
    spec = await rig.admin.backends.get("acme", "far")
    assert OPENER(spec).headers == {"Authorization": SECRET, "X-Other": "two"}
    await patch(rig, {"headers": {"Authorization": "Bearer new", "X-Other": None}})
    spec = await rig.admin.backends.get("acme", "far")
    assert OPENER(spec).headers == {"Authorization": "Bearer new"}
    (change, *_) = await rig.trail("acme")
    assert "headers.Authorization" in repr(change.changes)
    await patch(rig, {"headers": {"X-New": "***"}}, 422)


@pytest.mark.parametrize("elsewhere", ["https://evil.example/mcp", "https://far.example:8443/mcp"])
async def test_a_value_goes_to_no_other_host(rig, elsewhere):
    """Whoever may change the URL could read it there."""
    await add(rig)
    problem = await patch(rig, {"url": elsewhere}, 422)
    assert "was given for another scheme, host or port" in problem["detail"]
    await patch(rig, {"url": elsewhere, "headers": {"Authorization": "***"}}, 422)
    await patch(rig, {"url": elsewhere, "headers": {"Authorization": "Bearer theirs"}})
    await patch(rig, {"url": FAR["url"], "headers": None})
    assert (await rig.admin.backends.get("acme", "far")).headers == {}


async def test_an_administrator_of_the_tenant_may_and_of_another_may_not(rig):
    member: dict[str, Any]
    key = await rig.key("acme", "tenant:admin")
    await add(rig, key=key, enabled=False)
    assert (await patch(rig, {"enabled": True, "timeouts": {"call_s": 5}, "recovery": "respawn"}, key=key))["enabled"]
    for member in ({"warm": 1}, {"sandbox": {}}, {"command": "sh"}, {"limits": {"memory_mb": 16}}):
        await patch(rig, member, 403, key=key)
    assert (await rig.ask("POST", PATH, {"name": "x", "command": "sh"}, key=key)).status_code == 403
    for member in ({"timeouts": {"call_s": 5}}, {"recovery": "respawn"}, {"url": "https://far.example/"}):
        assert (await rig.ask("PATCH", PATH + "/echo", member, key=key)).status_code == 403
    for name, status in (("echo", 403), ("none", 403), ("far", 204)):
        assert (await rig.ask("DELETE", f"{PATH}/{name}", key=key)).status_code == status
    for scopes in (("mcp:connect",), ("tenant:read",)):
        await add(rig, 403, key=await rig.key("acme", *scopes))
    await add(rig, 404, key=await rig.key("zenith", "tenant:admin"))


@pytest.mark.parametrize(
    "change",
    [
        {"url": None, "headers": None},
        {"command": "cat"},
        {"args": ["x"]},
        {"env": {"A": "b"}},
        {"cwd": "/srv"},
        {"isolation": "shared"},
        {"warm": 1},
        {"max_processes": 3},
        {"broadcast": True},
        {"state": "keep"},
        {"start": "fork"},
        {"sandbox": {"network": "web"}},
        {"limits": {"memory_mb": 16}},
        {"url": None, "command": "cat"},
        {"url": None, "command": "cat", "headers": None, "transport": "sse"},
        {"url": "ftp://far.example/"},
        {"url": "https://user:pass@far.example/"},
        {"url": "https://far.example/#x"},
        {"url": "http://far.example/mcp"},
        {"url": "https://127.0.0.1/mcp"},
        {"url": "https://169.254.169.254/latest"},
        {"url": "https://[::1]/mcp"},
        {"url": "https://0x7f.1/"},
        {"url": "https://" + "x" * 3000},
        {"transport": "websocket"},
        {"headers": {"Host": "other.example"}},
        {"headers": {"Mcp-Session-Id": "x"}},
        {"headers": {"Content-Length": "5"}},
        {"headers": {"X": "a\r\nHost: b"}},
        {"headers": {"X": "é"}},
        {"headers": {"X": ""}},
        {"headers": {"X": "***"}},
        {"headers": {"X": "x" * 9000}},
        {"headers": {"X": "1", "x": "2"}},
        {"headers": {f"X-{n}": "x" for n in range(33)}},
    ],
    ids=str,
)
async def test_what_does_not_fit_is_refused(untouched, change):
    await add(untouched, 422, **change)
    assert untouched.heard == []


async def test_a_command_does_not_become_a_url_nor_the_reverse(rig):
    await add(rig, headers=None)
    assert (await rig.ask("PATCH", PATH + "/echo", {"url": FAR["url"]})).status_code == 422
    assert (await rig.ask("PATCH", PATH + "/echo", {"url": FAR["url"], "command": None})).status_code == 422
    await patch(rig, {"command": "cat", "url": None}, 422)
    await patch(rig, {"url": None}, 422)
    await patch(rig, {"warm": 1}, 422)
