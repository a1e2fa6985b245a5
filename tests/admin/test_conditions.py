"""ETag and If-Match: who changes an object says which state of it was read."""

from typing import Any

import anyio
import pytest

from app.auth.api_keys import key_id

TENANT = "/api/v1/tenants/acme"
ISSUER = {"issuer": "https://idp", "algorithms": ["HS256"], "secret": "s" * 32}


async def address_of(rig, kind: str) -> str:
    if kind == "tenant":
        return TENANT
    if kind == "backend":
        return TENANT + "/backends/echo"
    if kind == "key":
        return f"{TENANT}/keys/{key_id(await rig.key('acme', 'mcp:connect'))}"
    return (await rig.ask("POST", TENANT + "/issuers", ISSUER)).headers["Location"]


PATCHES = {"tenant": {"limits": {"burst": 5}}, "backend": {"warm": 1}, "issuer": {"audience": ["x"]}}


@pytest.mark.parametrize("kind", ["tenant", "backend", "key", "issuer"])
async def test_deleting_needs_the_state_that_was_read(rig, kind):
    path = await address_of(rig, kind)
    tag = (await rig.ask("GET", path)).headers["ETag"]
    assert tag.startswith('"')
    for wrong in ('"other"', f"W/{tag}", "", "other", tag.strip('"')):
        answer = await rig.ask("DELETE", path, headers={"If-Match": wrong})
        assert (answer.status_code, answer.json()["reason"]) == (412, "precondition_failed"), wrong
    assert (await rig.ask("GET", path)).headers["ETag"] == tag
    assert (await rig.ask("DELETE", path, headers={"If-Match": f'"other", {tag}'})).status_code == 204


@pytest.mark.parametrize("kind", ["tenant", "backend", "issuer"])
async def test_changing_needs_the_state_that_was_read_and_answers_with_the_new_one(rig, kind):
    path = await address_of(rig, kind)
    first = (await rig.ask("GET", path)).headers["ETag"]
    changed = await rig.ask("PATCH", path, PATCHES[kind], headers={"If-Match": first})
    assert changed.status_code == 200
    second = changed.headers["ETag"]
    assert second != first
    assert (await rig.ask("GET", path)).headers["ETag"] == second
    assert (await rig.ask("PATCH", path, PATCHES[kind], headers={"If-Match": first})).status_code == 412
    assert (await rig.ask("PATCH", path, PATCHES[kind], headers={"If-Match": "*"})).status_code == 200
    assert (await rig.ask("PATCH", path, PATCHES[kind])).status_code == 200


async def test_a_principal_is_switched_only_from_the_state_that_was_read(rig):
    path, who = TENANT + "/principals", {"issuer": "https://idp", "subject": "alice"}
    off = await rig.ask("PATCH", path, {**who, "enabled": False, "reason": "left"})
    tag = off.headers["ETag"]
    same = await rig.ask("PATCH", path, {**who, "reason": "left"}, headers={"If-Match": tag})
    assert (same.status_code, same.headers["ETag"]) == (200, tag)
    changed = await rig.ask("PATCH", path, {**who, "reason": "lost"}, headers={"If-Match": tag})
    assert changed.headers["ETag"] != tag
    late = await rig.ask("PATCH", path, {**who, "enabled": True}, headers={"If-Match": tag})
    assert (late.status_code, late.json()["reason"]) == (412, "precondition_failed")
    assert (await rig.ask("GET", path)).json()["items"][0]["reason"] == "lost"
    on = await rig.ask("PATCH", path, {**who, "enabled": True}, headers={"If-Match": changed.headers["ETag"]})
    assert (on.status_code, on.json()["enabled"]) == (200, True)


async def test_a_new_object_comes_with_its_tag(rig):
    for path, body in (
        ("/api/v1/tenants", {"name": "new"}),
        (TENANT + "/backends", {"name": "new", "command": "cat"}),
        (TENANT + "/issuers", ISSUER),
        (TENANT + "/keys", {"scopes": ["mcp:connect"]}),
    ):
        made = await rig.ask("POST", path, body)
        assert (await rig.ask("GET", made.headers["Location"])).headers["ETag"] == made.headers["ETag"]


async def test_an_object_made_anew_under_an_old_name_has_another_tag(rig):
    path = TENANT + "/backends/echo"
    tag = (await rig.ask("GET", path)).headers["ETag"]
    await rig.ask("DELETE", path)
    await rig.ask("POST", TENANT + "/backends", {"name": "echo", "command": "/bin/other"})
    assert (await rig.ask("DELETE", path, headers={"If-Match": tag})).status_code == 412


@pytest.mark.parametrize("kind", ["tenant", "backend", "toolset"])
async def test_so_has_one_that_looks_the_same(rig, kind):
    """What it hides, or contains, is not what was read: the condition held, and the new one was removed."""
    kinds: dict[str, tuple[str, str, dict[str, Any]]] = {
        "tenant": ("/api/v1/tenants/twice", "/api/v1/tenants", {"name": "twice"}),
        "backend": (TENANT + "/backends/b", TENANT + "/backends", {"name": "b", "command": "cat", "env": {"K": "1"}}),
        "toolset": (TENANT + "/toolsets/t", TENANT + "/toolsets", {"name": "t", "members": [{"backend": "echo"}]}),
    }
    path, among, body = kinds[kind]
    made = await rig.ask("POST", among, body)
    tag = (await rig.ask("GET", path)).headers["ETag"]
    assert made.headers["ETag"] == tag
    await rig.ask("DELETE", path)
    await rig.ask("POST", among, {**body, "env": {"K": "2"}} if kind == "backend" else body)
    assert (await rig.ask("DELETE", path, headers={"If-Match": tag})).status_code == 412
    assert (await rig.ask("GET", path)).status_code == 200


async def test_a_keys_use_does_not_change_its_tag_and_its_revocation_does(rig):
    key = await rig.key("acme", "tenant:read")
    path = f"{TENANT}/keys/{key_id(key)}"
    tag = (await rig.ask("GET", path, key=key)).headers["ETag"]
    await rig.admin.authenticator.flush_last_used()
    assert (await rig.ask("GET", path)).headers["ETag"] == tag
    await rig.ask("DELETE", path)
    assert (await rig.ask("GET", path)).headers["ETag"] != tag


async def test_of_many_who_read_the_same_state_one_changes_it(rig):
    path = TENANT + "/backends/echo"
    tag = (await rig.ask("GET", path)).headers["ETag"]
    statuses = list[int]()

    async def change(warm: int) -> None:
        answer = await rig.ask("PATCH", path, {"warm": warm}, headers={"If-Match": tag})
        statuses.append(answer.status_code)

    async with anyio.create_task_group() as tasks:
        for number in range(1, 7):
            tasks.start_soon(change, number)
    assert sorted(statuses) == [200] + [412] * 5
    assert (await rig.ask("GET", path)).json()["version"] == 2


async def test_without_a_condition_who_comes_second_gets_409(rig, monkeypatch):
    path, real = TENANT + "/backends/echo", rig.admin.backends.get

    async def stale(tenant, name):
        monkeypatch.undo()
        spec = await real(tenant, name)
        await rig.admin.backends.replace(tenant, spec)
        return spec

    monkeypatch.setattr(rig.admin.backends, "get", stale)
    answer = await rig.ask("PATCH", path, {"warm": 2})
    assert (answer.status_code, answer.json()["reason"]) == (409, "conflict")


async def test_a_condition_is_bounded(untouched):
    answer = await untouched.ask("DELETE", TENANT + "/backends/none", headers={"If-Match": '"' + "x" * 2000 + '"'})
    assert answer.status_code == 422
