"""Tenants, keys, backends and principals are switched off and on: who may, what is kept and told, what callers hear."""

from typing import Any

import pytest

from app.auth.api_keys import key_id
from app.storage.access import switches
from tests.admin.rig import Rig

ACME = "/api/v1/tenants/acme"
ALICE = {"issuer": "https://idp.example", "subject": "alice/ä?#%2F\\ x"}


async def patch(rig: Rig, path: str, body: dict[str, Any], expect: int = 200, key: str | None = None) -> dict[str, Any]:
    answer = await rig.ask("PATCH", path, body, key=key)
    assert answer.status_code == expect, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def new_key(rig: Rig, tenant: str = "acme", *scopes: str) -> tuple[str, str]:
    """Its text, and its path."""
    key = await rig.key(tenant, *(scopes or ("tenant:admin",)))
    return key, f"/api/v1/tenants/{tenant}/keys/{key_id(key)}"


@pytest.mark.parametrize("kind", ["tenant", "backend", "key", "principal"])
async def test_off_has_a_reason_and_on_again_has_none(rig, kind):
    path = {"tenant": ACME, "backend": ACME + "/backends/echo", "principal": ACME + "/principals"}.get(kind)
    path, whom = path or (await new_key(rig))[1], ALICE if kind == "principal" else {}
    off = await patch(rig, path, {**whom, "enabled": False, "reason": "moved to zenith"})
    assert (off["enabled"], off["reason"]) == (False, "moved to zenith")
    if kind != "principal":
        assert {"enabled": False, "reason": "moved to zenith"}.items() <= (await rig.ask("GET", path)).json().items()
    heard, acts = len(rig.heard), len(await rig.trail())
    assert await patch(rig, path, {**whom, "enabled": False, "reason": "moved to zenith"}) == off  # as it was: no act
    assert (len(rig.heard), len(await rig.trail())) == (heard, acts)
    again = await patch(rig, path, {**whom, "reason": "gone"})
    assert (again["enabled"], again["reason"]) == (False, "gone")
    on = await patch(rig, path, {**whom, "enabled": True})
    assert (on["enabled"], on["reason"]) == (True, "")
    assert on.get("off_by_platform", False) is False
    for wrong in ({"reason": "why"}, {"enabled": True, "reason": "why"}, {"enabled": "no"}, {"reason": "two\nlines"},
                  {"enabled": False, "reason": "x" * 301}):  # fmt: skip
        await patch(rig, path, {**whom, **wrong}, 422)
    changes = [{each.member: (each.old, each.new) for each in act.changes} for act in (await rig.trail())[-3:]]
    assert changes[0]["enabled"] == (True, False)
    assert changes[1]["reason"] == ("moved to zenith", "gone")
    assert changes[2]["enabled"] == (False, True)


async def test_the_node_is_told(rig):
    key, path = await new_key(rig)
    identity = ("acme", "key", key_id(key))
    await patch(rig, path, {"enabled": False, "reason": "lost"})
    await patch(rig, path, {"enabled": True})
    who = ("acme", ALICE["issuer"], ALICE["subject"])
    await patch(rig, ACME + "/principals", {**ALICE, "enabled": False})
    await patch(rig, ACME + "/principals", {**ALICE, "enabled": True})
    assert rig.heard == [
        ("principal", *identity),
        ("principal", *identity),
        ("principal", *who),
        ("principal", *who),
    ]


# --- what callers hear


async def hears(rig: Rig, key: str, path: str = ACME) -> tuple[int, str, str]:
    answer = (await rig.ask("GET", path, key=key)).json()
    return answer.get("status", 200), answer.get("reason", ""), answer.get("detail", "")


async def test_the_callers_of_a_tenant_that_is_off_hear_so_and_why_and_nobody_else_does(rig):
    key, _ = await new_key(rig)
    other, _ = await new_key(rig, "zenith")
    strangers = [await rig.ask("GET", ACME, key=each) for each in (other, "tlk_nobody", "")]
    await patch(rig, ACME, {"enabled": False, "reason": "unpaid since May"})
    assert await hears(rig, key) == (403, "disabled", "the tenant `acme` is switched off: unpaid since May")
    for path in (ACME + "/backends", ACME + "/audit", "/api/v1/tenants/zenith", "/api/v1/tenants"):
        assert (await hears(rig, key, path))[:2] == (403, "disabled")
    rig.admin.authenticator.forget_everything()
    for before, each in zip(strangers, (other, "tlk_nobody", ""), strict=True):
        after = await rig.ask("GET", ACME, key=each)
        assert (after.status_code, after.content) == (before.status_code, before.content)
    assert (await hears(rig, rig.root))[0] == 200
    await patch(rig, ACME, {"enabled": True})
    assert (await hears(rig, key))[0] == 200


async def test_a_key_that_is_off_opens_nothing_and_can_come_back_unlike_a_revoked_one(rig):
    key, path = await new_key(rig)
    await patch(rig, path, {"enabled": False, "reason": "lost on a train"})
    assert await hears(rig, key) == (403, "disabled", "this key is switched off: lost on a train")
    assert "hint" in (await rig.ask("GET", ACME, key=key)).json()
    wrong = key[:-10] + ("a" if key[-10] != "a" else "b") + key[-9:]
    assert (await hears(rig, wrong))[0] == 401
    await patch(rig, path, {"enabled": True})
    assert (await hears(rig, key))[0] == 200
    await rig.ask("DELETE", path)
    assert (await patch(rig, path, {"enabled": False}, 409))["reason"] == "conflict"
    assert (await hears(rig, key))[0] == 401


# --- who may


async def test_an_administrator_of_the_tenant_may_for_what_is_its_own_and_not_for_the_tenant(rig):
    admin, own = await new_key(rig)
    reader, other = await new_key(rig, "acme", "tenant:read", "mcp:connect")
    off = {"enabled": False, "reason": "by us"}
    for path, whom in ((ACME + "/backends/echo", {}), (other, {}), (ACME + "/principals", ALICE)):
        await patch(rig, path, {**whom, **off}, 403, key=reader)
        assert (await patch(rig, path, {**whom, **off}, key=admin))["off_by_platform"] is False
        assert (await patch(rig, path, {**whom, "enabled": True}, key=admin))["enabled"] is True
    await patch(rig, ACME, off, 403, key=admin)
    await patch(rig, own, off, 409, key=admin)  # not the key that it uses
    for body in ({"command": "/bin/sh"}, {**off, "args": ["-c", "id"]}, {"warm": 3}):
        await patch(rig, ACME + "/backends/echo", body, 403, key=admin)
    for path in (ACME.replace("acme", "zenith") + "/backends/echo", "/api/v1/tenants/zenith/principals"):
        await patch(rig, path, {**(ALICE if "principals" in path else {}), **off}, 404, key=admin)
    assert (await rig.ask("GET", "/api/v1/tenants/zenith/backends/echo")).json()["enabled"] is True


async def test_what_the_platform_has_switched_off_the_platform_switches_on(rig):
    admin, _ = await new_key(rig)
    _, other = await new_key(rig, "acme", "mcp:connect")
    for path, whom in ((ACME + "/backends/echo", {}), (other, {}), (ACME + "/principals", ALICE)):
        assert (await patch(rig, path, {**whom, "enabled": False}))["off_by_platform"] is True
        for body in ({"enabled": True}, {"reason": "nicer"}, {"enabled": None}):
            await patch(rig, path, {**whom, **body}, 403, key=admin)
        await patch(rig, path, {**whom, "enabled": True})
        await patch(rig, path, {**whom, "enabled": False}, key=admin)
        await patch(rig, path, {**whom, "enabled": True}, key=admin)
    held = await rig.ask("POST", ACME + "/backends", {"name": "held", "command": "cat", "enabled": False})
    assert held.json()["off_by_platform"] is True  # a command that is not permitted to run yet
    await patch(rig, ACME + "/backends/held", {"enabled": True}, 403, key=admin)


async def test_nobody_locks_the_platform_out_by_accident(rig):
    refused = await patch(rig, "/api/v1/tenants/default", {"enabled": False}, 409)
    assert "platform administrators" in refused["detail"]
    own = f"/api/v1/tenants/default/keys/{key_id(rig.root)}"
    assert "you are using this key" in (await patch(rig, own, {"enabled": False}, 409))["detail"]
    small, _ = await new_key(rig, "default", "tenant:admin")
    await patch(rig, own, {"enabled": False}, 403, key=small)
    await patch(rig, "/api/v1/tenants/default/principals", {**ALICE, "enabled": False}, 403, key=small)
    assert (await hears(rig, rig.root, "/api/v1/tenants"))[0] == 200


# --- principals


async def test_principals_that_are_off_are_listed_whatever_they_are_called(rig):
    names = [ALICE["subject"], "bob", "../../keys", "\u202eevil" if "\u202e".isprintable() else "evil"]
    for name in names:
        await patch(rig, ACME + "/principals", {**ALICE, "subject": name, "enabled": False, "reason": name})
    listed, cursor = list[dict[str, Any]](), ""
    while cursor is not None:
        page = (await rig.ask("GET", f"{ACME}/principals?limit=3&cursor={cursor}")).json()
        listed += page["items"]
        cursor = page["next_cursor"]
    assert {(each["subject"], each["reason"], each["enabled"]) for each in listed} == {(n, n, False) for n in names}
    assert [each["id"] for each in listed] == sorted(each["id"] for each in listed)
    assert (await rig.ask("GET", "/api/v1/tenants/zenith/principals")).json()["items"] == []
    targets = {act.target for act in await rig.trail("acme")}
    assert targets == {f"principals/{each['id']}" for each in listed}
    await patch(rig, ACME + "/principals", {**ALICE, "enabled": True})
    assert len((await rig.ask("GET", ACME + "/principals")).json()["items"]) == 3
    await rig.ask("DELETE", ACME)
    await rig.ask("POST", "/api/v1/tenants", {"name": "acme"})
    assert (await rig.ask("GET", ACME + "/principals")).json()["items"] == []


async def test_a_principal_needs_a_name_and_an_issuer_and_a_key_is_a_key(rig):
    for wrong in ({"subject": ""}, {"subject": "a\nb"}, {"issuer": "key"}, {"issuer": "two words"}, {"issuer": "CLI"},
                  {"subject": "x" * 256}, {"issuer": "x" * 513}):  # fmt: skip
        await patch(rig, ACME + "/principals", {**ALICE, **wrong, "enabled": False}, 422)
    await patch(rig, ACME + "/principals", {"enabled": False}, 422)
    longest = {"issuer": "https://" + "i" * 504, "subject": "\U0001f600" * 255, "enabled": False, "reason": "ä" * 300}
    await patch(rig, ACME + "/principals", longest)


async def test_not_more_principals_are_off_than_can_be(rig, monkeypatch):
    monkeypatch.setattr(switches, "MAX_PRINCIPALS_OFF", 2)
    for name in ("a", "b"):
        await patch(rig, ACME + "/principals", {**ALICE, "subject": name, "enabled": False})
    refused = await patch(rig, ACME + "/principals", {**ALICE, "subject": "c", "enabled": False}, 429)
    assert refused["reason"] == "quota_exceeded"
    await patch(rig, ACME + "/principals", {**ALICE, "subject": "a", "enabled": False, "reason": "still"})
    await patch(rig, "/api/v1/tenants/zenith/principals", {**ALICE, "enabled": False})


async def test_of_two_changes_to_one_state_the_second_is_refused(rig):
    for path in (ACME, ACME + "/backends/echo", (await new_key(rig, "acme", "mcp:connect"))[1]):
        tag = (await rig.ask("GET", path)).headers["ETag"]
        first = await rig.ask("PATCH", path, {"enabled": False}, headers={"If-Match": tag})
        assert first.status_code == 200
        assert first.headers["ETag"] != tag
        assert (await rig.ask("PATCH", path, {"enabled": True}, headers={"If-Match": tag})).status_code == 412
